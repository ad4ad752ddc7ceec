"""What the verbs of a store return, where it is more than a job, a lease or a number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from pulsed.model.job import Assignment, Lease, Status


class Submitted(NamedTuple):
    """What became of each job of a submit, by its position."""

    total: int
    existing: frozenset[int] = frozenset()
    """Positions whose id was in use before, by a stored job or by an earlier position."""
    unknown: frozenset[int] = frozenset()
    """Positions whose id is in use, perhaps by this very call: it was retried after an attempt
    that ended without an answer, which may have been committed."""
    holders: Mapping[int, UUID] = MappingProxyType({})
    """Positions that were not stored, because another job holds their key, and that job."""
    replaced: frozenset[int] = frozenset()
    """Those of them that have replaced payload, options and time of that job."""

    @property
    def new(self) -> int:
        """How many jobs this call is known to have stored."""
        return self.total - len(self.existing) - len(self.unknown) - len(self.holders)

    def is_new(self, position: int) -> bool | None:
        """Return whether this call stored a job; None if that is not known."""
        if position in self.unknown:
            return None
        return position not in self.existing and position not in self.holders

    def of(self, position: int) -> Submitted:
        """Return what became of a single job, as if it had been submitted alone."""
        if not self.existing and not self.unknown and not self.holders:
            return ONE_NEW

        def alone(positions: frozenset[int]) -> frozenset[int]:
            return frozenset((0,)) if position in positions else frozenset()

        holders = {0: self.holders[position]} if position in self.holders else {}
        return Submitted(
            1, alone(self.existing), alone(self.unknown), holders, alone(self.replaced)
        )

    def after_lost_answer(self) -> Submitted:
        """Return what is known if an earlier attempt may have stored any of the jobs."""
        return self._replace(existing=frozenset(), unknown=self.existing | self.unknown)

    def of_fresh_ids(self) -> Submitted:
        """Return what is known if no other call can have used the jobs' ids."""
        if not self.existing and not self.unknown:
            return self
        return self._replace(existing=frozenset(), unknown=frozenset())


ONE_NEW = Submitted(1)
"""The answer to nearly every submit of a single job."""


class Assignments(list[Assignment]):
    """The jobs that a claim has leased, best first."""

    def __init__(
        self, claimed: Iterable[Assignment] = (), *, again_in: float | None = None
    ) -> None:
        super().__init__(claimed)
        self.again_in = again_in
        """Seconds after which the next claim may find more: when a rate permits the next job that
        is due, or at once if a scan of the whole queue is due. None if neither is so."""


class Accepted(set[Lease]):
    """The leases whose reports were accepted."""

    def __init__(self, leases: Iterable[Lease] = (), cancelled: Iterable[Lease] = ()) -> None:
        super().__init__(leases)
        self.cancelled = set(cancelled)
        """Those of them whose jobs are CANCELLED now, although their runs ended in another way:
        the request came while they ran."""

    def merge(self, other: Accepted) -> None:
        """Add the leases of another answer."""
        self.update(other)
        self.cancelled |= other.cancelled


class Partly(NamedTuple):
    """The result of settling reports some of which could not be decided."""

    accepted: Accepted
    locked: set[Lease]
    """Another session has locked their rows, or rows that have to change with them."""


class Reaped(NamedTuple):
    """A job whose lease expired, and the status it went to."""

    job_id: UUID
    topic: str
    status: Status
    worker_id: UUID
    queue: str
    attempt: int
    """The attempt that its lease was for."""


class WatchdogTick(NamedTuple):
    """What one scan for expired leases did."""

    reaped: list[Reaped]
    in_grace: bool
    """Some expired leases were not reaped yet, because their workers may have been cut off."""


class Expired(NamedTuple):
    """A job that was ended because no worker had started it in time."""

    job_id: UUID
    topic: str
    queue: str
    expired_at: datetime


class Pruned(NamedTuple):
    """The jobs that one prune removed, by status, and its watermarks."""

    removed: dict[Status, int]
    reached: dict[Status, datetime]
    """The watermark: when the last of them ended. The next batch may begin there."""

    @property
    def total(self) -> int:
        """How many jobs were removed."""
        return sum(self.removed.values())


class Audit(NamedTuple):
    """How many jobs break an invariant, and when a watchdog last scanned."""

    running: int
    leaseless: int
    """RUNNING without a lease, or not RUNNING but with a lease."""
    overspent: int
    """With more attempts than allowed."""
    overdue: int
    """RUNNING under a lease that expired so long ago that a watchdog should have reaped it."""
    last_tick: datetime | None
    in_grace: bool
    reasonless: int = 0
    """WAITING without a recorded reason."""
    overslept: int = 0
    """WAITING for what has already happened: their wake-up was lost."""
    untold: int = 0
    """Ended without success, so long ago that their children should have been cancelled."""


class Backlog(NamedTuple):
    """The due jobs of one topic in one queue."""

    queue: str
    topic: str
    due: int
    oldest: datetime
    at_least: bool = False
    """``due`` is a lower bound: the scan stopped at its limit."""


class Running(NamedTuple):
    """The running jobs of one topic in one queue."""

    queue: str
    topic: str
    running: int
    at_least: bool = False
    """``running`` is a lower bound: the scan stopped at its limit."""
