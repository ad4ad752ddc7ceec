"""One database engine as verbs see it: its statements, and the steps that differ by engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from pulsed.model.control import Ageing
from pulsed.model.job import Lease, NewJob
from pulsed.model.outcome import Beat
from pulsed.store.sql.audit_log import AuditStatements
from pulsed.store.sql.bulk import BulkStatements
from pulsed.store.sql.checkpoints import CheckpointStatements
from pulsed.store.sql.claiming import ClaimStatements
from pulsed.store.sql.columns import assigned_columns
from pulsed.store.sql.controls import ControlStatements
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.expiry import ExpiryStatements
from pulsed.store.sql.families import FamilyStatements
from pulsed.store.sql.health import HealthStatements
from pulsed.store.sql.keys import KeyStatements
from pulsed.store.sql.leases import LeaseStatements
from pulsed.store.sql.limited import LimitedStatements
from pulsed.store.sql.operators import OperatorStatements
from pulsed.store.sql.presence import PresenceStatements
from pulsed.store.sql.reading import ReadStatements
from pulsed.store.sql.recovery import RecoveryStatements
from pulsed.store.sql.retention import RetentionStatements
from pulsed.store.sql.rollups import RollupStatements
from pulsed.store.sql.schedules import ScheduleStatements
from pulsed.store.sql.search import SearchStatements
from pulsed.store.sql.settling import SettleStatements
from pulsed.store.sql.signals import SignalStatements
from pulsed.store.sql.statement import Row, Rows, Statement
from pulsed.store.sql.streams import StreamStatements
from pulsed.store.sql.submission import SubmitStatements
from pulsed.store.sql.tags import TagStatements
from pulsed.store.sql.tokens import TokenStatements
from pulsed.store.sql.waiting import WaitStatements
from pulsed.store.verbs.floors import Walk
from pulsed.store.verbs.script import Script
from pulsed.store.verbs.topics import Topics


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim asks for, whichever priorities it visits."""

    worker_id: UUID
    queue: str
    topics: Topics
    is_governed: bool = False
    """Whether the queue has a control, and this claim its lock and its permission."""
    ageing: Ageing | None = None
    """How the priorities of waiting jobs rise; None: they stay."""


by_time = assigned_columns("next_run_at", "id")
by_priority = assigned_columns("priority")
"""The order of claimed rows, by the driver's values: they compare faster than decoded ones."""
by_id = assigned_columns("id")


class Claimed(NamedTuple):
    """The jobs that were claimed, best first, and the priorities that were visited for them."""

    rows: list[Row]
    """Of the columns ``ASSIGNED``."""
    visited: list[int]


class KeyGrant(NamedTuple):
    """So many jobs of a key that a claim may have, of one priority: a row of GRANT."""

    key: str
    priority: int
    place: int
    """Of several priorities, the first come first; ``most`` is for all of them."""
    most: int
    begun: bool
    """Only jobs that have started before."""


SuccessRow: TypeAlias = tuple[UUID, int, str | None]
"""A run that succeeded: its job, its token and its result, as the batch SUCCESS has them."""

SuccessColumns: TypeAlias = tuple[Sequence[UUID], Sequence[int], Sequence[str | None]]
"""The same for several runs, by column."""


class EndedChildren(NamedTuple):
    """The number of children's runs that have ended, and the parents that may wait for them."""

    number: int
    parents: Sequence[Any]


class Engine(ABC):
    """The statements of one engine, grouped by noun, and the steps of verbs that differ.

    A step is a script: it yields statements and is sent their rows, as a verb's own script does.
    """

    claiming: ClaimStatements
    leases: LeaseStatements
    limited: LimitedStatements
    recovery: RecoveryStatements
    settling: SettleStatements
    submission: SubmitStatements

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.operators = OperatorStatements(dialect)
        self.retention = RetentionStatements(dialect)
        self.presence = PresenceStatements(dialect)
        self.reading = ReadStatements(dialect)
        self.searching = SearchStatements(dialect)
        self.health = HealthStatements(dialect)
        self.audit_log = AuditStatements(dialect)
        self.bulk = BulkStatements(dialect)
        self.tags = TagStatements(dialect)
        self.tokens = TokenStatements(dialect)
        self.checkpoints = CheckpointStatements(dialect)
        self.waiting = WaitStatements(dialect)
        self.expiry = ExpiryStatements(dialect)
        self.families = FamilyStatements(dialect)
        self.signals = SignalStatements(dialect)
        self.streams = StreamStatements(dialect)
        self.keys = KeyStatements(dialect)
        self.schedules = ScheduleStatements(dialect)
        self.rollups = RollupStatements(dialect)
        self.controls = ControlStatements(dialect)

    @abstractmethod
    def insert(self, jobs: Sequence[NewJob]) -> Script[Iterable[UUID] | None]:
        """Insert a batch of jobs; returns the ids that are new, or None if all of them are."""

    @abstractmethod
    def claim_due(
        self, claim: Claim, limit: int, walk: Walk, *, suspects: bool = False
    ) -> Script[Claimed]:
        """Claim due jobs of all priorities, beginning at the floors of the walk."""

    @abstractmethod
    def claim_granted(
        self, claim: Claim, grants: Sequence[KeyGrant], *, suspects: bool = False
    ) -> Script[list[Row]]:
        """Claim due jobs of limits' keys, as many of each as were granted.

        The rows have the columns ASSIGNED, and then the key.
        """

    @abstractmethod
    def extend(self, leases: Sequence[Lease]) -> Script[dict[Lease, Beat]]:
        """Extend leases. One that was not extended is lost, unless its row is only locked."""

    def end_successes(self, worker_id: UUID, runs: SuccessColumns) -> Script[int]:
        """End successful runs of jobs that no other job waits for; returns how many."""
        worker = {"worker": worker_id}
        [(count,)] = yield Statement(self.settling.settle_succeeded, worker, columns=runs)
        return int(count)

    @abstractmethod
    def end_children(self, worker_id: UUID, ended: Sequence[SuccessRow]) -> Script[EndedChildren]:
        """End successful runs of children. Their parents are locked until the transaction ends."""

    @abstractmethod
    def reap(self, limit: int, expiries: Sequence[tuple[int, datetime]]) -> Script[Rows]:
        """End the runs of silent workers, and lock the jobs that this may wake.

        An expiry is a length in milliseconds, and the instant before which leases of that length
        must have ended. A family that another session has locked is left for a later tick, or its
        lock would delay the recovery of all others.
        """

    def lock(self, ids: Iterable[Any]) -> Script[None]:  # noqa: ARG002
        """Lock jobs until the transaction ends. An engine with a single writer need not."""
        yield from ()

    def lock_keys(self, keys: Iterable[tuple[str, str]]) -> Script[None]:  # noqa: ARG002
        """Lock keys until the transaction ends, in the same order as every other batch."""
        yield from ()

    def confirm(self) -> Script[None]:
        """Have the answer of a verb without a transaction be as durable as what it has read."""
        yield from ()

    def set_savepoint(self) -> Script[None]:
        """Begin a part of the transaction that can be taken back."""
        yield from ()

    def return_to_savepoint(self) -> Script[bool]:
        """Take back what was done since the savepoint, and release its locks; whether it did.

        An engine with a single writer need not: nobody waits for its locks and holds others.
        """
        yield from ()
        return False

    def release_savepoint(self) -> Script[None]:
        """Keep what was done since the savepoint."""
        yield from ()

    def lock_queue(self, queue: str) -> Script[None]:  # noqa: ARG002
        """Lock a queue that a control governs until the transaction ends."""
        yield from ()

    def claims_in_flight(self) -> Script[set[Any]]:
        """Find transactions that may claim jobs by what they saw before the last commit."""
        yield from ()
        return set()

    def lock_families(self, ids: Iterable[Any]) -> Script[None]:  # noqa: ARG002
        """Lock jobs and their parents, before any of them is changed."""
        yield from ()

    def lock_free(self, ids: Iterable[Any]) -> Script[set[Any]]:  # noqa: ARG002
        """Lock jobs, their parents and their waiters, without waiting for other sessions' locks.

        Returns the jobs of which some row is locked by another session.
        """
        yield from ()
        return set()
