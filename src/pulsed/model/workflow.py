"""What a durable workflow does beyond its steps: its history, signals, children. Pure.

A workflow is an ordinary job that uses its context. Its progress is stored as checkpoints, one for
each step, in the order of their calls; a later run replays them and continues from there. Its row
says what it waits for, and other processes wake it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha1
from typing import NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from pulsed.errors import InvalidOption
from pulsed.model.ids import computed_id
from pulsed.model.job import Lease, Status
from pulsed.model.step import Checkpoint, StepKey


class Record(NamedTuple):
    """A checkpoint to write, under the lease of the run that made it."""

    lease: Lease
    checkpoint: Checkpoint


class History(NamedTuple):
    """All that a workflow has done so far."""

    checkpoints: list[Checkpoint]
    """In the order of their calls."""
    generation: int
    """How often it was restarted from the beginning (``fresh``)."""
    now: datetime
    """The database's clock when it was read."""


class Signal(msgspec.Struct, frozen=True, kw_only=True):
    """A message to a workflow. Its id is made by the sender: sent twice, it arrives once."""

    id: UUID
    job_id: UUID
    name: str
    payload: str


class JobOutcome(msgspec.Struct, frozen=True):
    """The state of another job, for one that waits for it."""

    id: UUID
    topic: str
    status: Status
    result: str | None
    error: str | None
    outcome: str | None = None
    """Its ``last_outcome``."""


def family(key: StepKey, generation: int = 0) -> str:
    """Return the key that a fan-out's children share, unique among the fan-outs of the parent."""
    name = f"{key.name}|{key.nth}"
    return f"{name}|{generation}" if generation else name


def fan_out_of(family: str) -> str:
    """Return the name of a family's fan-out for people; an unknown format stays as it is."""
    name, _, rest = family.partition("|")
    nth = rest.partition("|")[0]
    return str(StepKey(name, int(nth))) if nth.isdecimal() else family


def child_id(parent: UUID, family: str, index: int) -> UUID:
    """Return the id of a fan-out's child: the same in every process and run.

    It begins with the parent's time, so a family stands together in every list.
    """
    name = parent.bytes + f"{family}|{index}".encode()
    return computed_id(parent.int >> 80, sha1(name, usedforsecurity=False).digest())


def child_ids(parent: UUID, family: str, count: int) -> list[UUID]:
    """Return the ``child_id`` of each of a fan-out's first children, in a third of the time.

    Their names share a prefix, which is hashed once.
    """
    begun = parent.int >> 80
    beginning = sha1(parent.bytes + f"{family}|".encode(), usedforsecurity=False)
    ids = []
    for index in range(count):
        digest = beginning.copy()
        digest.update(b"%d" % index)
        ids.append(computed_id(begun, digest.digest()))
    return ids


# -- fan-outs -------------------------------------------------------------------------------------


class Strategy(msgspec.Struct, frozen=True):
    """When a fan-out is decided: by the first failure, at the end of all, or by enough of them."""

    name: str
    share: float = 1.0

    def enough(self, total: int) -> int | None:
        """Return how many successes decide it before all have ended; None if no number does."""
        return self._needed(total) if self.name == "threshold" else None

    def too_many(self, total: int) -> int | None:
        """Return how many failures decide it before all have ended; None if no number does."""
        return None if self.name == "collect_all" else total - self._needed(total) + 1

    def _needed(self, total: int) -> int:
        # 0.8 of 10 is 8, not the 9 that 8.000000000000002 would be rounded up to.
        return math.ceil(round(self.share * total, 9))

    def __str__(self) -> str:
        return f"threshold({self.share:g})" if self.name == "threshold" else self.name


fail_fast = Strategy("fail_fast")
"""The first failure fails the fan-out, and cancels the children that are left."""

collect_all = Strategy("collect_all")
"""Every child runs to its end; failures are in the result."""


def threshold(share: float) -> Strategy:
    """Succeed once this share of the children has succeeded; those that are left continue."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise InvalidOption(f"threshold(share) must be above 0 and at most 1, not {share!r}.")
    return Strategy("threshold", float(share))


FAILED_CHILD = (Status.DEAD_LETTERED, Status.CANCELLED)

Verdict: TypeAlias = bool | None


def verdict(strategy: Strategy, statuses: Sequence[Status | None]) -> Verdict:
    """Return whether a fan-out has succeeded; None while it is undecided.

    ``None`` among the statuses is a child that was deleted, which counts as a failure.
    ``store/sql/waiting.py`` says in SQL when it is decided.
    """
    succeeded = sum(status is Status.SUCCEEDED for status in statuses)
    failed = sum(status is None or status in FAILED_CHILD for status in statuses)
    enough, too_many = strategy.enough(len(statuses)), strategy.too_many(len(statuses))
    if too_many is not None and failed >= too_many:
        return False
    if enough is not None and succeeded >= enough:
        return True
    return True if succeeded + failed == len(statuses) else None
