"""The options of a job, checked in one place: for ``using()``, by name, and for handlers.

A value that passes here fits every database column and every loop of the worker; no layer below
checks it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict
from uuid import UUID

from pulsed.errors import LONGEST_DELAY, InvalidOption, checked_seconds
from pulsed.model.backoff import Backoff
from pulsed.model.checked import checked_count as checked_count  # noqa: PLC0414 - for others
from pulsed.model.checked import checked_name as checked_name  # noqa: PLC0414
from pulsed.model.keys import UNTIL_END, UNTIL_START, OnDuplicate
from pulsed.model.limit import Limit

PRIORITIES = (-100, 100)
MAX_ATTEMPTS = 10_000
SHORTEST_LEASE = 0.05
"""With a shorter one a worker would do nothing but send heartbeats."""
SHORTEST_TIMEOUT = 0.001
EARLIEST_DUE = datetime(1000, 1, 1, tzinfo=UTC)
LATEST_DUE = datetime(9000, 1, 1, tzinfo=UTC)
"""Drivers read the first and the last of all instants as infinity, each store in its own way, and a
wall time needs room on both sides."""
MOST_HEADERS = 64
LARGEST_HEADERS = 16_384
MOST_TAGS = 32
LONGEST_KEY = 255
OF_KEYS: tuple[str, ...] = ("key_for", "on_duplicate")
"""Options that mean something only for a job that has a key."""
EXPIRY: tuple[str, ...] = ("expires", "expires_at")
"""Both say when a job expires. ``expires=`` with a datetime becomes the other one."""
SHORTEST_PERIOD = 0.001
"""Seconds for which a job may hold its key, or may wait before it expires."""

LEAST_MEMORY = 32 * 2**20
"""Bytes; with less, not even an interpreter starts."""
MOST_MEMORY = 2**62

_FORBIDDEN_IN_KEYS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_FORBIDDEN_IN_HEADERS = re.compile("[\x00\ud800-\udfff]")


class Options(TypedDict, total=False):
    """What ``using()`` takes; the handler decides what you leave out."""

    delay: float | timedelta
    """Start no earlier than this many seconds from now."""
    at: datetime
    """Start no earlier than this instant, which must have a time zone."""
    expires: float | timedelta | datetime
    """Do not start it any more after this instant, or this many seconds after it may start. A job
    that has started is not affected, nor are its retries."""
    queue: str
    priority: int
    """-100 to 100; higher runs first."""
    max_attempts: int
    backoff: Backoff
    timeout: float | timedelta
    """Stop a run after this many seconds."""
    lease: float | timedelta
    """Seconds that a worker keeps the job without a heartbeat."""
    headers: Mapping[str, str]
    """Passed on to the handler, for a trace or a tenant; pulsed does not interpret them."""
    tags: Iterable[str]
    key: str
    """At most one job of the topic holds a key: 1 to 255 characters."""
    key_for: Literal["start", "end"] | float | timedelta
    """How long the job holds its key: until its first run starts, until it ends (the default), or
    so many seconds from now."""
    on_duplicate: Literal["return", "raise", "replace"]
    """What happens if another job holds the key. ``return`` (the default): you get that job, whose
    ``is_new`` is False. ``raise``: ``DuplicateKey``. ``replace``: that job gets the new arguments,
    options and time, if it has not started; the key is then held until the start, unless
    ``key_for`` is given."""
    id: UUID | str
    """Your own id of the job, for idempotency: enqueued twice with it, the job is stored once."""
    conn: Any
    """Your own connection or session: the job is stored in its transaction, if you commit that."""


class HandlerOptions(TypedDict, total=False):
    """What ``@app.job(...)`` takes."""

    topic: str
    queue: str
    priority: int
    expires: float | timedelta
    """Jobs that no worker starts within so many seconds are not started any more."""
    max_attempts: int
    backoff: Backoff
    timeout: float | timedelta | None
    lease: float | timedelta
    determinism: Literal["strict", "warn"]
    """What happens to a workflow whose code asks for another step than the stored one. ``strict``:
    it is dead-lettered. ``warn``: a warning is logged, and stored steps are found by name."""
    key: str | Callable[..., str | None]
    """The key of each job, from its arguments: ``"invoice-{invoice_id}"``, or a function of some of
    the arguments, such as ``lambda invoice_id: ...``; None means no key."""
    key_for: Literal["start", "end"] | float | timedelta
    on_duplicate: Literal["return", "raise", "replace"]
    executor: Literal["worker", "process"]
    """Where the handler runs. ``worker``: on the worker's event loop, or in a thread if it is
    plain. ``process``: in a process of its own, which can be killed and may crash."""
    memory_limit: int
    """Bytes that a process may use while it runs the handler; only with ``executor="process"``."""
    limit: Limit | int
    """How many of its jobs may run at once, or start in a period; ``limit=5`` is short for
    ``limit=Limit(running=5)``."""
    sequential: bool | str
    """One job at a time, in order: of the topic, or for each value of the argument named."""
    keep_steps: bool
    """Whether a job that succeeds keeps its checkpoints for inspection, until retention."""


_OF_ONE_JOB = Options.__annotations__.keys() - HandlerOptions.__annotations__.keys()


def refuse_options_of_one_job(given: Mapping[str, Any]) -> None:
    """Refuse handler options that only a single job can have."""
    for name in sorted(_OF_ONE_JOB & given.keys()):
        if given[name] is not None:
            raise InvalidOption(
                f"{name}= is for one job, not for all jobs of a handler: give it to "
                f"using({name}=...) when you enqueue."
            )
    if isinstance(given.get("expires"), datetime):
        raise InvalidOption(
            "expires= of a handler is a number of seconds: each of its jobs has its own instant."
        )


def checked_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in the form a ``NewJob`` keeps, or raise ``InvalidOption``.

    ``None`` means the same as leaving an option out.
    """
    checked = {}
    for given_name, value in given.items():
        name = given_name
        if name == "expires" and isinstance(value, datetime):
            name = "expires_at"
        if name not in OPTIONS:
            raise InvalidOption(f"There is no option {name!r}.{did_you_mean(name, OPTIONS)}")
        if value is not None:
            checked[name] = OPTIONS[name](value)
    if "delay" in checked and "at" in checked:
        raise InvalidOption("delay= and at= both say when the job may start; give one of them.")
    if "expires" in checked and "expires_at" in checked:
        raise InvalidOption("expires= is a number of seconds or an instant, not both.")
    return checked


def checked_instant(what: str, value: Any) -> datetime:
    """Return an aware datetime in UTC."""
    if not isinstance(value, datetime):
        raise InvalidOption(f"{what} must be a datetime, not {value!r}.")
    if value.utcoffset() is None:
        raise InvalidOption(
            f"{what} has no time zone, so it means another instant on every machine: {value!r}. "
            "Give it one, as in datetime.now(UTC) or value.astimezone()."
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidOption(f"{what} is out of range: {value!r}.") from None


def checked_due(what: str, value: Any) -> datetime:
    """Return an instant at which something can be due, in UTC."""
    instant = checked_instant(what, value)
    if not EARLIEST_DUE <= instant <= LATEST_DUE:
        raise InvalidOption(
            f"{what} must be between the years {EARLIEST_DUE:%Y} and {LATEST_DUE:%Y}, "
            f"not {value.isoformat()}."
        )
    return instant


def checked_timeout(value: Any) -> float:
    """Return a timeout in seconds."""
    seconds: float = OPTIONS["timeout"](value)
    return seconds


def checked_option(name: str, value: Any) -> Any:
    """Return one option as a ``NewJob`` keeps it, or raise ``InvalidOption``."""
    return OPTIONS[name](value)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` if there is something similar, or nothing."""
    import difflib  # noqa: PLC0415 - only for a mistake

    close = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _seconds(what: str, least: float = 0.0) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        if isinstance(value, timedelta):
            value = value.total_seconds()
        return checked_seconds(what, value, least=least)

    return check


def _at(value: Any) -> datetime:
    instant = checked_due("at", value)
    if (instant - datetime.now(UTC)).total_seconds() > LONGEST_DELAY:
        raise InvalidOption(f"at is more than ten years away: {value!r}.")
    return instant


def _backoff(value: Any) -> Backoff:
    if not isinstance(value, Backoff):
        raise InvalidOption(
            f"backoff must be a Backoff, such as Backoff.linear(30), not {value!r}."
        )
    return value


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidOption(f"headers must map strings to strings; this is {value!r:.100}.")
    texts: list[Any] = [text for pair in value.items() for text in pair]
    if any(not isinstance(text, str) or _FORBIDDEN_IN_HEADERS.search(text) for text in texts):
        raise InvalidOption(
            "headers must map strings to strings, without NUL or lone surrogates; "
            f"this is {value!a:.100}."
        )
    size = sum(len(text.encode()) for text in texts)
    if len(value) > MOST_HEADERS or size > LARGEST_HEADERS:
        raise InvalidOption(
            f"{len(value)} headers of {size:,} bytes are too many: at most {MOST_HEADERS}, "
            f"of {LARGEST_HEADERS:,} bytes together."
        )
    return {str(name): str(text) for name, text in value.items()}


def checked_id(value: Any) -> UUID:
    """Return the job id that a caller gave, as a UUID."""
    try:
        found = value if isinstance(value, UUID) else UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise InvalidOption(f"id must be a UUID or its text, not {value!r:.100}.") from None
    if found.int == 0:
        raise InvalidOption("id must not be the nil UUID: every job needs one of its own.")
    return found


def _tags(value: Any) -> tuple[str, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidOption(f"tags must be a list of strings, not {value!r:.100}.")
    tags = tuple(dict.fromkeys(checked_name("tag", tag) for tag in value))
    if len(tags) > MOST_TAGS:
        raise InvalidOption(f"{len(tags)} tags are too many: at most {MOST_TAGS}.")
    return tags


def checked_key(value: Any) -> str:
    """Return the key of a job, or raise ``InvalidOption``."""
    if not isinstance(value, str):
        raise InvalidOption(f"key must be a string, not {value!r:.100}.")
    if not 1 <= len(value) <= LONGEST_KEY:
        raise InvalidOption(f"key must have 1 to {LONGEST_KEY} characters, not {len(value):,}.")
    if value.isspace() or _FORBIDDEN_IN_KEYS.search(value):
        raise InvalidOption(f"key must not be blank or contain control characters: {value!a}.")
    return value


def _key_for(value: Any) -> str:
    if value in (UNTIL_START, UNTIL_END):
        return str(value)
    if isinstance(value, str):  # as it is stored, and as it comes from another process
        try:
            value = float(value)
        except ValueError:
            raise InvalidOption(
                f"key_for must be 'start', 'end' or a number of seconds, not {value!r:.100}."
            ) from None
    return repr(_seconds("key_for", SHORTEST_PERIOD)(value))


def _on_duplicate(value: Any) -> str:
    try:
        return OnDuplicate(value).value
    except ValueError:
        raise InvalidOption(
            f"on_duplicate must be 'return', 'raise' or 'replace', not {value!r:.100}."
        ) from None


OPTIONS: dict[str, Callable[[Any], Any]] = {
    "delay": _seconds("delay"),
    "at": _at,
    "expires": _seconds("expires", SHORTEST_PERIOD),
    "expires_at": lambda value: checked_due("expires", value),
    "queue": lambda value: checked_name("queue", value),
    "priority": lambda value: checked_count("priority", value, *PRIORITIES),
    "max_attempts": lambda value: checked_count("max_attempts", value, 1, MAX_ATTEMPTS),
    "backoff": _backoff,
    "timeout": _seconds("timeout", SHORTEST_TIMEOUT),
    "lease": _seconds("lease", SHORTEST_LEASE),
    "headers": _headers,
    "tags": _tags,
    "key": checked_key,
    "key_for": _key_for,
    "on_duplicate": _on_duplicate,
    "id": checked_id,
    "conn": lambda value: value,
}
"""The options of a job, and the check of each."""
