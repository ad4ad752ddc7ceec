"""The steps of a workflow, as they are stored, and what a suspended one waits for."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec


class StepKind(StrEnum):
    """What a checkpoint is about."""

    STEP = "STEP"
    SLEEP = "SLEEP"
    SIGNAL = "SIGNAL"
    FAN_OUT = "FAN_OUT"
    JOB = "JOB"
    """Another job that is waited for."""
    VERSION = "VERSION"
    """Which version of its code a workflow follows at a change."""


class StepState(StrEnum):
    """How far it is. Only OPEN ever changes."""

    OPEN = "OPEN"
    """A wait that has begun."""
    DONE = "DONE"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"


class StepKey(NamedTuple):
    """A step's name, and which use of that name it is."""

    name: str
    nth: int

    def __str__(self) -> str:
        return self.name if self.nth == 1 else f"{self.name} (use {self.nth})"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a job as it is stored, under the job, its name, and the nth use of that name."""

    name: str
    nth: int
    seq: int
    """Its place among the calls of the workflow, from 1; a version has that of the next call."""
    kind: StepKind
    state: StepState = StepState.DONE
    input_hash: str = ""
    value: str | None = None
    """What it came to, as JSON text."""
    error: str | None = None
    tries: int = 1
    took: float = 0.0
    """Seconds, as the worker measured them; only on the way to the database."""
    until: datetime | None = None
    """When an OPEN wait ends at the latest."""
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def key(self) -> StepKey:
        """What it is stored under."""
        return StepKey(self.name, self.nth)


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """What a suspended job waits for, and for how long at the most."""

    kind: StepKind
    key: str = ""
    """The family of its children, the signal's name, or the job's id."""
    delay: float | None = None
    """Seconds until the wait ends; None, with no ``until``: never."""
    until: datetime | None = None
    enough: int | None = None
    """So many successes decide a fan-out…"""
    too_many: int | None = None
    """…and so many failures."""
