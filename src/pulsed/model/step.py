"""The steps of a workflow, as they are stored, and what a suspended one waits for."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec


class StepKind(StrEnum):
    """The kind of call that a checkpoint records."""

    STEP = "STEP"
    SLEEP = "SLEEP"
    SIGNAL = "SIGNAL"
    FAN_OUT = "FAN_OUT"
    JOB = "JOB"
    """A wait for another job."""
    VERSION = "VERSION"
    """The version of its code that a workflow follows at a change."""


class StepState(StrEnum):
    """The state of a step. Only OPEN ever changes."""

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
    """Its result, as JSON text."""
    error: str | None = None
    tries: int = 1
    took: float = 0.0
    """Seconds, as the worker measured them; only in a checkpoint to be written."""
    until: datetime | None = None
    """When an OPEN wait ends at the latest."""
    started_at: datetime | None = None
    ended_at: datetime | None = None

    @property
    def key(self) -> StepKey:
        """The key that it is stored under."""
        return StepKey(self.name, self.nth)


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """What a suspended job waits for, and its deadline."""

    kind: StepKind
    key: str = ""
    """The family of its children, the signal's name, or the job's id."""
    delay: float | None = None
    """Seconds until the wait times out; None, without ``until``, is never."""
    until: datetime | None = None
    enough: int | None = None
    """Number of successes that decides a fan-out."""
    too_many: int | None = None
    """Number of failures that decides it."""
