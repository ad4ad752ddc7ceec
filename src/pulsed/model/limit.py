"""Limits: how many jobs may run at once, and how many may start in a period.

A limit's *key* is its name, or its name and the value of one argument: ``openai`` or
``openai,acme``. The key is a column of the job, so every process computes it in the same way, from
the payload alone. The numbers are not in the job: workers declare them, operators override them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from pulsed.errors import InvalidOption
from pulsed.model.checked import checked_count, checked_name
from pulsed.model.rate import Rate

MOST_RUNNING = 1_000_000
MOST_WEIGHTS = 1_000
HEAVIEST = 1_000

LONGEST_VALUE = 128
"""Characters of a value in a key; a longer one is replaced by its digest."""

LONGEST_LIMIT_KEY = 400
"""Characters of a key: more than a name, a comma and a value have."""

LONGEST_PATH = 200
MOST_FIELDS = 16
"""Fields in the path of ``per``."""


class LimitRule(msgspec.Struct, frozen=True):
    """How the key of a topic's jobs is computed: all that a process without the code needs."""

    name: str
    per: str = ""
    """The argument whose value is part of the key, with dots before fields of it; empty: none."""
    default: str = ""
    """The value of that argument, as JSON, in a payload that leaves it out."""

    def __post_init__(self) -> None:
        checked_name("name of the limit", self.name)
        if self.per:
            checked_path(self.per)

    def key_of(self, payload: str) -> str:
        """Return the key of a job with this payload. One that cannot be read has an empty value."""
        if not self.per:
            return self.name
        return f"{self.name},{_text_of(_value_at(payload, self.per, self.default))}"


class _Named(msgspec.Struct, frozen=True):
    name: str | None = None


class Limit(_Named, frozen=True, kw_only=True):
    """What all jobs with the same key share, wherever they run.

    ``running`` jobs at once, and starts at a ``rate``; ``per`` an argument, each of its values has
    these numbers for itself. Jobs of several topics share a limit that has a name; without one it
    is the topic's own. Keys take turns at free slots, by their ``weights`` (1 unless given, by the
    value of ``per``).
    """

    running: int | None = None
    rate: Rate | None = None
    per: str | None = None
    weights: Mapping[str, int] | None = None
    sequential: bool = False
    """One at a time and in order: a job that has started comes before all others until it ends,
    through its retries and waits."""

    def __post_init__(self) -> None:
        if self.name is not None:
            checked_name("name of the limit", self.name)
        if self.running is not None:
            checked_count("running", self.running, 1, MOST_RUNNING)
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise InvalidOption(
                f"rate must be a Rate, such as Rate(60, per=60), not {self.rate!r}."
            )
        if self.per is not None:
            checked_path(self.per)
        if self.weights is not None:
            self._check_weights(self.weights)
        if self.sequential and self.running is not None:
            raise InvalidOption("sequential=True means one at a time: leave running= out.")
        if not (self.running or self.rate or self.per or self.sequential):
            raise InvalidOption("A Limit needs running=, rate=, per= or sequential=True.")

    def _check_weights(self, weights: Mapping[str, int]) -> None:
        if self.per is None:
            raise InvalidOption("weights= are for the values of an argument: say which by per=.")
        if not isinstance(weights, Mapping) or len(weights) > MOST_WEIGHTS:
            raise InvalidOption(f"weights must map at most {MOST_WEIGHTS:,} values to integers.")
        for value, weight in weights.items():
            if not isinstance(value, str):
                raise InvalidOption(f"weights must map strings to integers, not {value!r:.100}.")
            checked_count(f"The weight of {value!r:.100}", weight, 1, HEAVIEST)


class KeyUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one key of a limit has in use, and what waits for it."""

    key: str
    running: int = 0
    waiting: int = 0
    """Jobs that wait for their time, a slot or a permit; a lower bound if there are many."""
    holders: tuple[UUID, ...] = ()
    """The first of the jobs that run."""
    tat: datetime | None = None
    """When its rate is all there again; None: it is."""

    @property
    def value(self) -> str | None:
        """The value of the argument that the limit is per."""
        return split_key(self.key)[1]


class LimitUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a limit has in use."""

    running: int = 0
    waiting: int = 0
    keys: tuple[KeyUse, ...] = ()
    """The busiest keys."""
    at_least: bool = False
    """There is more than was counted."""


def checked_path(path: Any) -> str:
    """Return the path of an argument or of a field of it, or raise ``InvalidOption``."""
    is_text = isinstance(path, str) and len(path) <= LONGEST_PATH
    fields = path.split(".") if is_text else []
    if not 1 <= len(fields) <= MOST_FIELDS or not all(field.isidentifier() for field in fields):
        raise InvalidOption(
            "per= is the name of an argument, or a field of one with dots: 'tenant', "
            f"'order.tenant'. This is {path!a:.100}."
        )
    return str(path)


def checked_limit_key(key: str) -> str:
    """Return the key of a limit, or raise ``InvalidOption``."""
    name, value = split_key(key)
    checked_name("name of the limit", name)
    if value is not None and (len(value) > LONGEST_VALUE or _UNSTORABLE.search(value)):
        raise InvalidOption(
            f"The value in the key of a limit must have at most {LONGEST_VALUE} characters, and "
            f"neither NUL nor lone surrogates: {value!a:.100}."
        )
    return key


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def split_key(key: str) -> tuple[str, str | None]:
    """Return the name of a limit and the value in one of its keys."""
    name, comma, value = key.partition(",")
    return name, value if comma else None


_objects = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_anything = msgspec.json.Decoder().decode
_sorted = msgspec.json.Encoder(order="sorted").encode


def _value_at(payload: str, path: str, default: str) -> Any:
    """Return the value at a path, parsing nothing but the objects that lead to it."""
    first, *rest = path.split(".")
    try:
        found: Any = _objects(payload).get(first, default)
        for name in rest:
            found = _objects(found)[name]
        return _anything(found) if found else None
    except (msgspec.MsgspecError, KeyError, ValueError):
        return None


def _text_of(value: Any) -> str:
    """Return a value as part of a key: texts as they are, all else as JSON.

    Long ones are digested, and those that no database stores.
    """
    if value is None:
        return ""
    text = value if isinstance(value, str) else _sorted(value).decode()
    if len(text) <= LONGEST_VALUE and not _UNSTORABLE.search(text):
        return text
    import hashlib  # noqa: PLC0415 - few values need it

    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
