"""A handler: the user's function for a topic, and the policy of its jobs."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, Generic, TypeVar, Unpack

from pulsed.errors import InvalidHandler, InvalidOption
from pulsed.handler.codec import Codec, Parameter
from pulsed.handler.keys import key_maker
from pulsed.handler.limits import checked_limit, limit_rule
from pulsed.handler.options import (
    EXPIRY,
    LEAST_MEMORY,
    MOST_MEMORY,
    OF_KEYS,
    HandlerOptions,
    checked_count,
    checked_name,
    checked_options,
    refuse_options_of_one_job,
)
from pulsed.model.backoff import Backoff
from pulsed.model.job import DEFAULT_QUEUE, TopicPolicy
from pulsed.model.limit import LimitRule

R_co = TypeVar("R_co", covariant=True)

_OWN = (
    "topic", "determinism", "keep_steps", "key", "limit", "sequential", "executor", "memory_limit",
)  # fmt: skip
"""Options of the handler that no job has."""


class Handler(Generic[R_co]):
    """A function that runs the jobs of one topic.

    The constructor checks its signature. Its type hints are resolved on first use, because at
    decoration time they may name what the module defines further down; ``resolve`` does it now.
    """

    def __init__(self, fn: Callable[..., Any], **options: Unpack[HandlerOptions]) -> None:
        _check_shape(fn)
        self.fn = fn
        self.is_async = inspect.iscoroutinefunction(fn)
        self._options = options
        try:
            self.topic = checked_name("topic", options.get("topic", _default_topic(fn)))
            refuse_options_of_one_job(options)
            settings = checked_options({k: v for k, v in options.items() if k not in _OWN})
            self._key = self._checked_key(options.get("key"))
            self.limit = checked_limit(options.get("limit"), options.get("sequential", False))
            rule = limit_rule(self.topic, self.limit, inspect.signature(fn).parameters)
            self.determinism = _checked_determinism(options.get("determinism", "strict"))
            self.in_process = _checked_executor(options.get("executor", "worker")) == "process"
            self.memory_limit = _checked_memory(options.get("memory_limit"), self.in_process)
        except InvalidOption as error:
            raise InvalidHandler(f"{describe(fn)} cannot be a handler. {error}") from error
        self.queue: str = settings.pop("queue", DEFAULT_QUEUE)
        self.priority: int = settings.pop("priority", 0)
        self.expires: float | None = settings.pop("expires", None)
        self.limit_rule = rule
        self.policy = _policy(self.topic, settings, rule)
        self._key_options = {name: settings[name] for name in OF_KEYS if name in settings}
        self.keep_steps = bool(options.get("keep_steps", True))

    @property
    def takes_context(self) -> bool:
        """Whether the function's first parameter receives the run's context."""
        return self.codec.takes_context

    @property
    def has_key(self) -> bool:
        """Whether the keys of its jobs are computed from their arguments."""
        return self._key is not None

    @property
    def parameters(self) -> Sequence[Parameter]:
        """What a payload has values for."""
        return self.codec.parameters

    @property
    def location(self) -> str:
        """Where the function is written, for messages."""
        return describe(self.fn)

    def defaults(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of its jobs that are decided where they are enqueued."""
        options: dict[str, Any] = {"queue": self.queue, "priority": self.priority}
        if self.expires is not None and not any(name in given for name in EXPIRY):
            options["expires"] = self.expires
        return options

    def resolve(self) -> None:
        """Resolve all hints now, so that a bad one is found before a job needs it."""
        _ = self.codec

    def renamed(self, topic: str) -> Handler[R_co]:
        """Return the same handler for another topic."""
        options = self._options.copy()
        options["topic"] = topic
        return Handler(self.fn, **options)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the payload for a call with these arguments; raises if they do not fit."""
        return self.codec.encode(args, kwargs)

    def encode_many(self, calls: Sequence[tuple[Any, ...]]) -> list[str]:
        """Return the payload of each call with these positional arguments."""
        return self.codec.encode_many(calls)

    def encode_json(self, arguments: Mapping[str, Any]) -> str:
        """Return the payload for named arguments that may be plain data in place of objects."""
        return self.codec.encode_json(arguments)

    def key_options(self, payload: str) -> dict[str, Any]:
        """Return the options about the key of a job with this payload, or none without a key."""
        if self._key is None:
            return {}
        key = self._key(self._defaults | self.decode(payload))
        return {} if key is None else {"key": key, **self._key_options}

    def decode(self, payload: str) -> dict[str, Any]:
        """Return the named arguments in a payload, by the function's hints."""
        return self.codec.decode(payload)

    def encode_result(self, value: Any) -> str:
        """Return a result as JSON, with characters replaced that cannot be stored."""
        return self.codec.encode_result(value)

    def decode_result(self, text: str) -> R_co:
        """Return a stored result, by the function's return hint."""
        result: R_co = self.codec.decode_result(text)
        return result

    def _checked_key(self, key: Any) -> Callable[[Mapping[str, Any]], str | None] | None:
        if key is None:
            return None
        parameters = inspect.signature(self.fn).parameters
        return key_maker(key, parameters)

    @functools.cached_property
    def _defaults(self) -> dict[str, Any]:
        """The values of parameters that a payload may leave out."""
        parameters = inspect.signature(self.fn).parameters.values()
        return {each.name: each.default for each in parameters if each.default is not each.empty}

    @functools.cached_property
    def codec(self) -> Codec:
        """The function's signature, ready to encode and decode; its hints are resolved here."""
        return Codec(self.topic, self.fn)

    def __repr__(self) -> str:
        return f"<Handler {self.topic!r}: {self.location}>"


def code_of(fn: Callable[..., Any]) -> CodeType | None:
    """Return the code of a function below its decorators; a callable object may have none."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return code if isinstance(code, CodeType) else None


def describe(fn: Callable[..., Any]) -> str:
    """Return the name of a function and its line, for messages."""
    name = f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', repr(fn))}"
    code = code_of(fn)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


def _default_topic(fn: Callable[..., Any]) -> str | None:
    """Return the function's name; a lambda has none."""
    return None if fn.__name__ == "<lambda>" else fn.__name__


def _checked_determinism(value: Any) -> str:
    if value not in ("strict", "warn"):
        raise InvalidOption(f"determinism must be 'strict' or 'warn', not {value!r}.")
    return str(value)


def _checked_executor(value: Any) -> str:
    if value not in ("worker", "process"):
        raise InvalidOption(f"executor must be 'worker' or 'process', not {value!r}.")
    if value == "process" and os.name != "posix":
        raise InvalidOption("executor='process' needs Linux, macOS or another POSIX system.")
    return str(value)


def _checked_memory(value: Any, in_process: bool) -> int | None:  # noqa: FBT001 - private
    if value is None:
        return None
    if not in_process:
        raise InvalidOption("memory_limit= is for executor='process': threads share their memory.")
    return checked_count("memory_limit", value, LEAST_MEMORY, MOST_MEMORY)


def _policy(topic: str, settings: Mapping[str, Any], rule: LimitRule | None) -> TopicPolicy:
    return TopicPolicy(
        topic=topic,
        max_attempts=settings.get("max_attempts", 3),
        backoff=settings.get("backoff") or Backoff.quadratic(),
        timeout=settings.get("timeout"),
        lease=settings.get("lease", 30.0),
        limit_name=rule.name if rule else "",
        limit_per=rule.per if rule else "",
        limit_default=rule.default if rule else "",
    )


def _check_shape(fn: Any) -> None:
    """Refuse a function that cannot be a handler, whatever its hints are."""
    if not (inspect.isfunction(fn) or inspect.ismethod(fn)):
        kind = "a class" if inspect.isclass(fn) else f"of type {type(fn).__name__}"
        raise InvalidHandler(
            f"{fn!r} is {kind}; a handler must be a function, made by `def` or `async def`."
        )
    inner = inspect.unwrap(fn)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidHandler(
            f"{describe(fn)} is a generator: it contains `yield`, so calling it would run nothing. "
            "Return the result instead."
        )
    for parameter in inspect.signature(fn).parameters.values():
        if problem := _PARAMETER_PROBLEMS.get(parameter.kind):
            raise InvalidHandler(f"{describe(fn)} {problem.format(parameter.name)}")


_PARAMETER_PROBLEMS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: (
        "takes *{}; a payload has named arguments only. Take a list instead."
    ),
    inspect.Parameter.VAR_KEYWORD: (
        "takes **{}, so a misspelt argument could not be distinguished from a real one. "
        "Take a dict instead."
    ),
    inspect.Parameter.POSITIONAL_ONLY: (
        "takes {!r} by position only; a payload has named arguments. Remove the `/`."
    ),
}
