"""Limits: how many jobs may run at once, and how many may start in a period.

A limit's *key* is its name, or its name and the value of one argument: ``openai`` or
``openai,acme``. The key is a column of the job, so every process computes it in the same way, from
the payload alone. The numbers are not in the job: workers declare them, operators override them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from pulsed.errors import InvalidOption, checked_seconds
from pulsed.model.checked import checked_count, checked_name

MOST_RUNNING = 1_000_000
MOST_STARTS = 1_000_000
MOST_WEIGHTS = 1_000
HEAVIEST = 100
SHORTEST_PERIOD = 0.001
LONGEST_PERIOD = 366 * 86_400.0

LONGEST_VALUE = 128
"""Characters of a value in a key; a longer one is replaced by its digest."""

LONGEST_LIMIT_KEY = 400
"""Characters of a key: more than a name, a comma and a value have."""

LONGEST_PATH = 200
MOST_FIELDS = 16
"""Fields in the path of ``per``."""


class Rate(msgspec.Struct, frozen=True):
    """So many starts per so many seconds.

    Permits come one by one at an even pace, and up to ``burst`` of them are saved up (GCRA, the
    generic cell rate algorithm). So at most ``count + burst`` jobs start in any ``per`` seconds.
    ``burst`` is a tenth of ``count`` unless given, and at least 1.
    """

    count: int
    per: float
    burst: int | None = None

    def __post_init__(self) -> None:
        checked_count("The count of a rate", self.count, 1, MOST_STARTS)
        per = checked_seconds(
            "The period of a rate", self.per, least=SHORTEST_PERIOD, most=LONGEST_PERIOD
        )
        force_setattr(self, "per", per)
        if self.burst is not None:
            checked_count("The burst of a rate", self.burst, 1, MOST_STARTS)

    @property
    def interval(self) -> float:
        """The seconds between two permits."""
        return self.per / self.count

    @property
    def saved(self) -> int:
        """The permits that are saved up at most."""
        return max(1, self.count // 10) if self.burst is None else self.burst

    def permits(self, full_at: datetime | None, now: datetime) -> int:
        """Return how many jobs may start now.

        ``full_at`` is when all permits will be there again, which is what a store keeps; None and
        an instant that has passed mean that they are.
        """
        owed = 0.0 if full_at is None else (full_at - now).total_seconds() / self.interval
        return max(0, math.floor(self.saved - max(0.0, owed) + _ROUNDING))

    def next_in(self, full_at: datetime | None, now: datetime) -> float:
        """Return the seconds until the next permit; zero if there is one."""
        if full_at is None or self.permits(full_at, now) > 0:
            return 0.0
        return (full_at - now).total_seconds() - (self.saved - 1) * self.interval

    def after(self, full_at: datetime | None, now: datetime, starts: int) -> datetime:
        """Return when all permits will be there again, after so many starts now."""
        begin = now if full_at is None else max(full_at, now)
        return begin + timedelta(seconds=starts * self.interval)


_ROUNDING = 1e-6
"""Permits that are not lost to the rounding of instants to microseconds."""


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
    """Return a value as part of a key: texts as they are, all else as JSON, long ones digested."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else _sorted(value).decode()
    if len(text) <= LONGEST_VALUE:
        return text
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
