"""A job table in plain Python, built on ``pulsed.lifecycle``: what every store must agree with."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

from pulsed.model.backoff import Backoff
from pulsed.model.job import JobRow, Lease, NewJob, Status, TopicPolicy
from pulsed.model.lifecycle import (
    CLAIMABLE,
    DELETABLE,
    REPLAYABLE,
    SUSPECT_AFTER,
    TERMINAL,
    Ending,
    crashes_after,
    ending_of_silence,
    gives_attempt_back,
    outcome_name,
    status_after,
    status_after_cancel,
)
from pulsed.model.outcome import (
    INTERRUPTED,
    LEASE_ERROR,
    LEASE_ERROR_TOGETHER,
    LEASE_EXPIRED,
    Beat,
    Cancelled,
    Failed,
    Report,
    Snoozed,
    Succeeded,
    Waiting,
)
from pulsed.model.step import StepKind
from pulsed.model.timetable import to_micros
from tests.support.clock import Clock

FOREVER = datetime(9999, 12, 31, tzinfo=UTC)


@dataclass
class ModelJob:
    id: UUID
    queue: str
    topic: str
    priority: int
    next_run_at: datetime
    max_attempts: int | None
    backoff: Backoff | None
    lease_seconds: float | None
    status: Status = Status.PENDING
    attempts: int = 0
    token: int = 0
    locked_by: UUID | None = None
    lease_until: datetime | None = None
    cancel_requested: bool = False
    last_worker: UUID | None = None
    last_outcome: str | None = None
    last_error: str | None = None
    result: str | None = None
    completed_at: datetime | None = None
    updated_at: datetime | None = None
    progress: str | None = None
    failures: list[tuple[int, str]] = field(default_factory=list)
    waits_for: StepKind | None = None
    signals: int = 0
    crashes: int = 0
    shared_token: int | None = None

    @property
    def is_suspect(self) -> bool:
        return self.crashes >= SUSPECT_AFTER

    def holds(self, lease: Lease) -> bool:
        return (
            self.status is Status.RUNNING
            and self.locked_by == lease.worker_id
            and self.token == lease.token
        )

    def differences(self, row: JobRow) -> dict[str, tuple[object, object]]:
        """Return what a store's row says otherwise: (expected, found)."""
        pairs: dict[str, tuple[object, object]] = {
            "status": (self.status, row.status),
            "attempts": (self.attempts, row.attempts),
            "max_attempts": (self.max_attempts, row.max_attempts),
            "lease_seconds": (self.lease_seconds, row.lease_seconds),
            "token": (self.token, row.lease_token),
            "locked_by": (self.locked_by, row.locked_by),
            "lease_until": (self.lease_until, row.lease_until),
            "next_run_at": (self.next_run_at, row.next_run_at),
            "cancel_requested": (self.cancel_requested, row.cancel_requested),
            "last_outcome": (self.last_outcome, row.last_outcome),
            "last_error": (self.last_error, row.last_error),
            "result": (self.result, row.result),
            "completed_at": (self.completed_at, row.completed_at),
            "updated_at": (self.updated_at, row.updated_at),
            "progress": (self.progress, row.progress),
            "crashes": (self.crashes, row.crashes),
        }
        if self.last_outcome != "REPLAYED":  # a replay's id is its own
            pairs["last_worker"] = (self.last_worker, row.last_worker)
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


class Model:
    """The same verbs as a store, on dictionaries."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.jobs: dict[UUID, ModelJob] = {}
        self.looks: list[datetime] = []
        """Of watchdogs; the first had no tick before it."""

    def submit(self, job: NewJob) -> int:
        if job.id in self.jobs:
            return 0
        self.jobs[job.id] = ModelJob(
            id=job.id,
            queue=job.queue,
            topic=job.topic,
            priority=job.priority,
            next_run_at=self.clock.after(max(job.delay, 0)),
            max_attempts=job.max_attempts,
            backoff=job.backoff,
            lease_seconds=job.lease,
            updated_at=self.clock.now,
        )
        return 1

    def is_suspect(self, job_id: UUID) -> bool:
        return job_id in self.jobs and self.jobs[job_id].is_suspect

    def claim(
        self, worker: UUID, queue: str, topics: list[TopicPolicy], limit: int, *, looks: bool
    ) -> list[tuple[UUID, int, int]]:
        """Claim as a store does. A store may scan for a suspect at any time (``looks``), and must
        when there is nothing else to claim."""
        policies = {policy.topic: policy for policy in topics}
        due = [
            job
            for job in self.jobs.values()
            if job.status in CLAIMABLE
            and job.queue == queue
            and job.topic in policies
            and job.next_run_at <= self.clock.now
        ]
        due.sort(key=lambda job: (-job.priority, job.next_run_at, job.id))
        runs_one = any(job.locked_by == worker and job.is_suspect for job in self.jobs.values())
        suspects = [] if runs_one else [job for job in due if job.is_suspect][:1]
        due = [job for job in due if not job.is_suspect]
        if due and not looks:
            suspects = []
        claimed = []
        for job in due[: limit - len(suspects)] + suspects:
            policy = policies[job.topic]
            job.max_attempts = job.max_attempts or policy.max_attempts
            job.backoff = job.backoff or policy.backoff
            job.lease_seconds = job.lease_seconds or policy.lease
            job.status = Status.RUNNING
            job.attempts += 1
            job.token = max(job.token + 1, to_micros(self.clock.now))
            job.locked_by = worker
            job.updated_at = self.clock.now
            job.lease_until = self.clock.after(job.lease_seconds)
            claimed.append((job.id, job.attempts, job.token))
        return claimed

    def beat(self, leases: list[Lease]) -> dict[Lease, Beat]:
        answers = dict.fromkeys(leases, Beat.LOST)
        for lease in leases:
            job = self.jobs.get(lease.job_id)
            if job is not None and job.holds(lease):
                job.lease_until = self.clock.after(job.lease_seconds or 0)
                answers[lease] = Beat.CANCEL if job.cancel_requested else Beat.OK
        return answers

    def settle(self, reports: list[Report]) -> set[Lease]:
        accepted = set()
        for lease, outcome, _, _ in reports:
            job = self.jobs.get(lease.job_id)
            if job is not None and job.holds(lease):
                self._end(job, outcome)
                accepted.add(lease)
        for lease, outcome, _, _ in reports:
            job = self.jobs.get(lease.job_id)
            if job is not None and _ended_so_before(job, lease, outcome):
                accepted.add(lease)
        return accepted

    def watchdog(self, limit: int) -> tuple[set[UUID], bool]:
        now = self.clock.now
        self.looks.append(now)
        expired = [
            job
            for job in self.jobs.values()
            if job.lease_until is not None and job.lease_until < now
        ]
        reaped = [job for job in expired if not self._is_spared(job)]
        reaped.sort(key=lambda job: (job.lease_until, job.id))
        holders = [job.locked_by for job in self.jobs.values()]
        silent = {job.locked_by for job in reaped[:limit]}
        for job in reaped[:limit]:
            alone = holders.count(job.locked_by) == 1 and job.shared_token != job.token
            self._end(job, ending_of_silence(alone=alone, crashes=job.crashes))
        for job in self.jobs.values():
            if job.locked_by is not None and job.locked_by in silent:
                job.shared_token = job.token
        return {job.id for job in reaped[:limit]}, len(reaped) < len(expired)

    def _is_spared(self, job: ModelJob) -> bool:
        """Whether its worker may have been cut off: by the whole history of scans."""
        lease = timedelta(seconds=job.lease_seconds or 0)
        gaps = [(None, self.looks[0]), *pairwise(self.looks)]
        ends = [end for begin, end in gaps if begin is None or end - begin > lease / 3]
        grace = lease / 3 + min(lease / 3, timedelta(seconds=5))
        since = [end for end in ends if job.lease_until is None or end > job.lease_until]
        return ends[-1] + grace > self.clock.now and len(since) <= 3

    def set_progress(self, lease: Lease, progress: str) -> bool:
        job = self.jobs.get(lease.job_id)
        if job is None or not job.holds(lease):
            return False
        job.progress, job.updated_at = progress, self.clock.now
        return True

    def cancel(self, job_id: UUID) -> dict[UUID, Status]:
        job = self.jobs.get(job_id)
        if job is None:
            return {}
        if job.status not in TERMINAL:
            job.cancel_requested, job.updated_at = True, self.clock.now
        after = status_after_cancel(job.status)
        if after is not job.status:
            job.status, job.completed_at = after, self.clock.now
        return {job_id: job.status}

    def replay(self, job_id: UUID) -> dict[UUID, tuple[bool, Status]]:
        job = self.jobs.get(job_id)
        if job is None:
            return {}
        if job.status not in REPLAYABLE:
            return {job_id: (False, job.status)}
        job.status, job.attempts, job.next_run_at = Status.PENDING, 0, self.clock.now
        job.completed_at, job.cancel_requested, job.progress = None, False, None
        job.last_outcome, job.updated_at = "REPLAYED", self.clock.now
        return {job_id: (True, Status.PENDING)}

    def prune(self, ages: dict[Status, float], limit: int) -> dict[Status, int]:
        removed = dict.fromkeys(ages, 0)
        for status, age in ages.items():
            cutoff = self.clock.after(-age)
            old = [
                (job.completed_at, job.id)
                for job in self.jobs.values()
                if job.status is status and job.completed_at is not None
                if job.completed_at < cutoff
            ]
            for _, job_id in sorted(old)[: limit - sum(removed.values())]:
                del self.jobs[job_id]
                removed[status] += 1
        return removed

    def delete(self, job_id: UUID) -> dict[UUID, tuple[bool, Status]]:
        job = self.jobs.get(job_id)
        if job is None:
            return {}
        if job.status in DELETABLE:
            del self.jobs[job_id]
        return {job_id: (job.status in DELETABLE, job.status)}

    def signal(self, job_id: UUID) -> tuple[bool, Status | None]:
        job = self.jobs.get(job_id)
        if job is None or job.status in TERMINAL:
            return False, None if job is None else job.status
        before = job.status
        job.signals += 1
        self._wake(job)
        return True, before

    def _wake(self, job: ModelJob) -> None:
        waits = job.status is Status.WAITING and job.waits_for is StepKind.SIGNAL
        if waits and job.signals:
            job.status, job.next_run_at = Status.PENDING, self.clock.now
            job.updated_at = self.clock.now

    def _end(self, job: ModelJob, ending: Ending) -> None:
        assert job.max_attempts is not None
        assert job.backoff is not None
        error = _error(ending)
        if isinstance(ending, Failed) or ending == LEASE_EXPIRED:
            job.failures.append((job.token, error or ""))
        elif ending == INTERRUPTED:
            job.failures.append((job.token, LEASE_ERROR_TOGETHER))
        job.status = status_after(
            ending,
            attempts=job.attempts,
            max_attempts=job.max_attempts,
            cancel_requested=job.cancel_requested,
        )
        match job.status:
            case Status.RETRYING:
                delay = ending.delay if isinstance(ending, Failed) else None
                wait = job.backoff.delay(job.attempts) if delay is None else delay
                job.next_run_at = self.clock.after(wait)
            case Status.PENDING:
                job.next_run_at = self.clock.after(
                    ending.delay if isinstance(ending, Snoozed) else 0
                )
            case Status.WAITING:
                assert isinstance(ending, Waiting)
                job.waits_for = ending.wait.kind
                delay = ending.wait.delay
                job.next_run_at = FOREVER if delay is None else self.clock.after(delay)
                self._wake(job)
        job.attempts -= gives_attempt_back(ending)
        job.crashes = crashes_after(ending, job.crashes)
        job.completed_at = self.clock.now if job.status in TERMINAL else None
        job.result = ending.result if isinstance(ending, Succeeded) else None
        job.last_error = None if isinstance(ending, Succeeded) else error or job.last_error
        job.last_worker, job.last_outcome = job.locked_by, outcome_name(ending)
        job.locked_by = job.lease_until = None
        job.updated_at = self.clock.now


def _error(ending: Ending) -> str | None:
    match ending:
        case Failed(error=error):
            return error
        case Cancelled(reason=reason):
            return reason
        case str():
            return LEASE_ERROR
        case _:
            return None


def _ended_so_before(job: ModelJob, lease: Lease, outcome: Ending) -> bool:
    return (
        job.status is not Status.RUNNING
        and job.token == lease.token
        and job.last_worker == lease.worker_id
        and job.last_outcome == outcome_name(outcome)
    )
