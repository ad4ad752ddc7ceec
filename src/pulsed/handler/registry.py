"""The handlers an app knows, by topic, and calls bound to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic
from uuid import UUID

from pulsed.errors import InvalidHandler, InvalidOption, UnknownTopic
from pulsed.handler.function import Handler, R_co
from pulsed.handler.options import OF_KEYS, Options, checked_options, did_you_mean
from pulsed.model.ids import new_job_id
from pulsed.model.job import NewJob, TopicPolicy
from pulsed.model.keys import held_for
from pulsed.model.limit import LimitRule

if TYPE_CHECKING:
    from pulsed.model.control import Numbers

_NO_OPTIONS: Mapping[str, Any] = {}


ONE_ID = (
    "id= is for one job: using(id=...).enqueue(...). Jobs that are enqueued many at a time, by a "
    "schedule or by a fan-out get ids of their own."
)


class Call(Generic[R_co]):
    """A topic with its arguments, checked and ready to be stored as a job any number of times."""

    __slots__ = ("handler", "options", "payload", "topic")

    def __init__(
        self,
        topic: str,
        payload: str,
        handler: Handler[R_co] | None = None,
        options: Mapping[str, Any] = _NO_OPTIONS,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.handler = handler
        self.options = options
        """Checked ones, as given to ``using()`` before ``bind()``."""

    def __repr__(self) -> str:
        return f"Call({self.topic!r}, {self.payload!r})"

    def new_job(self, options: Options | None = None, *, job_id: UUID | None = None) -> NewJob:
        """Return a job to submit; ``options`` overrule those of the call."""
        given = checked_options(options) if options else _NO_OPTIONS
        return new_job(self.topic, self.payload, self.handler, {**self.options, **given}, job_id)


def new_job(
    topic: str,
    payload: str,
    handler: Handler[Any] | None,
    options: Mapping[str, Any],
    job_id: UUID | None = None,
) -> NewJob:
    """Return a job with checked options; the handler decides what they leave out.

    Only the queue and the priority are taken from the handler here. The rest of its policy is
    filled in by the worker that claims the job, so that the policy deployed then applies.
    """
    return job_maker(topic, handler, options)(id=job_id or new_job_id(), payload=payload)


def job_maker(
    topic: str, handler: Handler[Any] | None, options: Mapping[str, Any]
) -> Callable[..., NewJob]:
    """Return a factory of jobs that differ only in their ``id`` and their ``payload``."""
    if "conn" in options:
        raise InvalidOption("conn= says where to store a job and is not part of it.")
    if "id" in options:
        raise InvalidOption(ONE_ID)
    fields: dict[str, Any] = {**options}
    if handler is not None:
        fields = {**handler.defaults(options), **options}
        if (rule := handler.limit_rule) is not None and not rule.per:
            fields["limit_key"] = rule.name
        make: Callable[..., NewJob]
        if handler.has_key and "key" not in options:
            make = partial(_with_computed_key, handler, topic=topic, **fields)
        else:
            make = partial(NewJob, topic=topic, **with_key_settled(fields))
        return partial(_with_limit_key, make, rule) if rule and rule.per else make
    return partial(NewJob, topic=topic, **with_key_settled(fields))


def job_template(topic: str, handler: Handler[Any], options: Mapping[str, Any]) -> NewJob | None:
    """Return what all jobs with these options have in common, if only ids and payloads differ.

    None if more depends on the payload. A key makes a batch of one job.
    """
    rule = handler.limit_rule
    if handler.has_key or "key" in options or (rule is not None and rule.per):
        return None
    return job_maker(topic, handler, options)(id=_NO_ID, payload="")


_NO_ID = UUID(int=0)


def _with_limit_key(
    make: Callable[..., NewJob], rule: LimitRule, *, payload: str, **fields: Any
) -> NewJob:
    """Return a job whose limit has a key for each value of an argument."""
    return make(payload=payload, limit_key=rule.key_of(payload), **fields)


def _with_computed_key(handler: Handler[Any], *, payload: str, **fields: Any) -> NewJob:
    """Return a job whose key is computed from its arguments; there may be none."""
    of_key = handler.key_options(payload)
    if not of_key:
        fields = {name: value for name, value in fields.items() if name not in OF_KEYS}
    return NewJob(payload=payload, **with_key_settled({**of_key, **fields}))


def with_key_settled(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a job; how long it holds its key may follow from other options."""
    if given := [name for name in OF_KEYS if name in fields]:
        if "key" not in fields:
            raise InvalidOption(f"{given[0]}= is about the key of a job: give it key=, too.")
        held = held_for(fields.get("key_for"), fields.get("on_duplicate"))
        return {**fields, "key_for": held}
    return fields


class Registry:
    """Handlers by topic."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler[Any]] = {}
        self.queues: dict[str, Numbers] = {}
        """The limits that the program declares for queues."""

    def add(self, handler: Handler[Any]) -> None:
        """Register a handler; a topic can have only one."""
        if (other := self._handlers.get(handler.topic)) is not None:
            raise InvalidHandler(
                f"The topic {handler.topic!r} has two handlers: {other.location} and "
                f"{handler.location}. Rename one, or give it topic=…"
            )
        self._check_limit(handler)
        self._handlers[handler.topic] = handler

    def _check_limit(self, handler: Handler[Any]) -> None:
        """Refuse a limit that another handler declares with other numbers."""
        if handler.limit is None or handler.limit_rule is None:
            return
        from pulsed.model.control import numbers_of  # noqa: PLC0415 - few have limits

        for other in self._handlers.values():
            if other.limit_rule is None or other.limit_rule.name != handler.limit_rule.name:
                continue
            if other.limit is not None and numbers_of(other.limit) != numbers_of(handler.limit):
                raise InvalidHandler(
                    f"The limit {handler.limit_rule.name!r} has two sets of numbers: that of "
                    f"{other.location} and that of {handler.location}. Jobs that share a limit "
                    "share its numbers: declare it once and use it for both."
                )

    def limits(self) -> dict[str, Numbers]:
        """Return the numbers of the handlers' limits, by name."""
        from pulsed.model.control import numbers_of  # noqa: PLC0415 - as above

        return {
            handler.limit_rule.name: numbers_of(handler.limit)
            for handler in self
            if handler.limit is not None and handler.limit_rule is not None
        }

    def find(self, topic: str) -> Handler[Any] | None:
        """Return the handler of a topic, if there is one."""
        return self._handlers.get(topic)

    def get(self, topic: str) -> Handler[Any]:
        """Return the handler of a topic, or raise ``UnknownTopic``."""
        if (handler := self._handlers.get(topic)) is None:
            raise UnknownTopic(
                f"There is no handler for the topic {topic!r}."
                f"{did_you_mean(topic, self._handlers)}{self._known()}"
            )
        return handler

    def policies(self) -> list[TopicPolicy]:
        """Return the policy of each handler's topic."""
        return [handler.policy for handler in self]

    def limit_rules(self) -> dict[str, LimitRule]:
        """Return how the keys of topics with a limit are computed."""
        return {
            handler.topic: handler.limit_rule for handler in self if handler.limit_rule is not None
        }

    def resolve_all(self) -> None:
        """Resolve the hints of every handler, so that a worker does not start with a bad one."""
        for handler in self:
            handler.resolve()

    def _known(self) -> str:
        if not self._handlers:
            return " None are registered."
        topics = ", ".join(sorted(self._handlers))
        return f" Known topics: {topics}." if len(topics) <= 500 else ""

    def __iter__(self) -> Iterator[Handler[Any]]:
        return iter(list(self._handlers.values()))

    def __len__(self) -> int:
        return len(self._handlers)

    def __contains__(self, topic: object) -> bool:
        return topic in self._handlers
