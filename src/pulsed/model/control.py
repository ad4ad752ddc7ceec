"""Controls: what governs a queue, a topic or a limit while jobs run.

An operator pauses and resumes, and overrides the numbers that the code declares. The numbers are
one JSON text in the database, which only Python reads: a claim decides by them without SQL.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from pulsed.errors import InvalidOption, checked_seconds
from pulsed.model.checked import checked_count
from pulsed.model.limit import HEAVIEST, MOST_RUNNING, MOST_WEIGHTS, Limit
from pulsed.model.rate import Rate
from pulsed.wording import counted

SHORTEST_AGE = 0.001
"""Seconds after which a waiting job's priority rises by one."""
LONGEST_WEIGHED = 255
"""Characters of the value that a weight is for."""
HIGHEST_PRIORITY = 100
"""The priority that a job reaches at most by waiting."""
MOST_CONTROLS = 10_000
"""Controls in one database."""


class ControlScope(StrEnum):
    """What a control governs."""

    QUEUE = "queue"
    TOPIC = "topic"
    LIMIT = "limit"


class Numbers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The numbers of a queue or a limit. None: no such limit."""

    running: int | None = None
    """The most jobs that run at the same time."""
    rate: Rate | None = None
    age: float | None = None
    """Of a queue: seconds of waiting that raise the priority of a job by one."""
    sequential: bool = False
    """Of a limit: one job at a time, in order."""
    weights: dict[str, int] = {}
    """Of a limit: the shares of single values, if they differ."""

    def __post_init__(self) -> None:
        if self.running is not None:
            checked_count("running", self.running, 1, MOST_RUNNING)
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise InvalidOption(
                f"rate must be a Rate, such as Rate(60, per=60), not {self.rate!r}."
            )
        if self.age is not None:
            age = checked_seconds("age", self.age, least=SHORTEST_AGE)
            msgspec.structs.force_setattr(self, "age", age)
        _check_weights(self.weights)


def numbers_of(limit: Limit) -> Numbers:
    """Return the numbers of a limit."""
    return Numbers(
        running=limit.running,
        rate=limit.rate,
        sequential=limit.sequential,
        weights=dict(limit.weights or {}),
    )


class ControlKey(NamedTuple):
    """The name of a control; pages are in the order of these."""

    scope: ControlScope
    name: str


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """What governs a queue, a topic or a limit; by default, nothing does."""

    scope: ControlScope
    name: str
    paused: bool = False
    paused_at: datetime | None = None
    paused_by: str | None = None
    """Who has paused it, as the audit log has it."""
    declared: Numbers | None = None
    """The numbers of the code, written by workers at their start."""
    override: Numbers | None = None
    """An operator's numbers, which count instead."""
    updated_at: datetime | None = None
    """None: there is no row, because nothing governs it."""

    @property
    def key(self) -> ControlKey:
        """Its name."""
        return ControlKey(self.scope, self.name)

    @property
    def numbers(self) -> Numbers:
        """The numbers that count."""
        if self.override is not None:
            return self.override
        return NO_NUMBERS if self.declared is None else self.declared

    @property
    def is_neutral(self) -> bool:
        """Whether it governs nothing, so that it needs no row."""
        return not self.paused and self.declared is None and self.override is None


class Ageing(NamedTuple):
    """How the priorities of a queue's jobs rise while they wait, as of one instant."""

    seconds: float
    """Of waiting, that raise a priority by one."""
    now: datetime

    def priority(self, priority: int, due_at: datetime) -> int:
        """Return the priority of a job that has been due since an instant."""
        waited = (self.now - due_at) / timedelta(seconds=self.seconds)
        return min(HIGHEST_PRIORITY, priority + max(0, math.floor(waited)))


def encoded(numbers: Numbers | None) -> str | None:
    """Return numbers as JSON text; equal ones have equal texts."""
    return None if numbers is None else msgspec.json.encode(numbers, order="sorted").decode()


def decoded(text: str | None) -> Numbers | None:
    """Return the numbers of a JSON text; raises InvalidOption if another program wrote it."""
    if text is None:
        return None
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidOption(
            f"The numbers of a control cannot be read: {error}. Set or clear them again."
        ) from error


def changed(numbers: Numbers, new: Numbers, fields: Collection[str]) -> Numbers:
    """Return numbers with these fields of the new ones."""
    unknown = [name for name in fields if name not in Numbers.__struct_fields__]
    if unknown:
        raise InvalidOption(f"A control has no number {unknown[0]!r}.")
    return msgspec.structs.replace(numbers, **{name: getattr(new, name) for name in fields})


def described(numbers: Numbers) -> str:
    """Return numbers in words, for a log line or the audit log."""
    words = []
    if numbers.running is not None:
        words.append(f"running {numbers.running:,}")
    if (rate := numbers.rate) is not None:
        words.append(f"rate {rate.count:,} per {rate.seconds:g} s, {rate.at_once:,} at once")
    if numbers.age is not None:
        words.append(f"age {numbers.age:g} s")
    if numbers.sequential:
        words.append("sequential")
    if numbers.weights:
        words.append(counted(len(numbers.weights), "weight"))
    return ", ".join(words) or "no limits"


def _check_weights(weights: Mapping[str, Any]) -> None:
    if len(weights) > MOST_WEIGHTS:
        raise InvalidOption(f"{len(weights):,} weights are too many: at most {MOST_WEIGHTS:,}.")
    for value, weight in weights.items():
        if not isinstance(value, str) or len(value) > LONGEST_WEIGHED:
            raise InvalidOption(
                f"A weight is for a text of up to {LONGEST_WEIGHED} characters, not {value!r:.60}."
            )
        checked_count(f"The weight of {value!r}", weight, 1, HEAVIEST)


NO_NUMBERS = Numbers()

_decode = msgspec.json.Decoder(Numbers).decode
