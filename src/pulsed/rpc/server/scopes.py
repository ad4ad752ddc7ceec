"""Which jobs, leases, schedules and workers a limited caller may use.

Only the topic and the queue of a job are read for it. A refusal names what the caller has named,
and reveals nothing else about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from pulsed.errors import InvalidOption
from pulsed.model.job import JobPlace, Lease, NewJob
from pulsed.model.outcome import Report, Waiting
from pulsed.model.schedule import ScheduleRow
from pulsed.model.step import StepKind
from pulsed.rpc.messages.errors import invalid
from pulsed.rpc.server.access import Caller, TokenRole, denied
from pulsed.store.base import Store

MOST_SCHEDULES = 100
"""Schedules in whose name one request may submit jobs: each is looked up."""


class Scopes:
    """Refuses what is outside of a caller's topics and queues."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def check_worker(self, worker_id: UUID, caller: Caller) -> None:
        """Refuse to act for a worker with topics or queues that the caller may not use."""
        if not caller.is_limited:
            return
        worker = await self._store.worker(worker_id)
        if worker is not None and not caller.may_use_all(worker.topics, worker.queues):
            raise denied(f"{caller.name} may not use worker {worker_id}.")

    async def check_new(self, jobs: Iterable[NewJob], caller: Caller) -> None:
        """Refuse jobs of topics, queues or schedules that the caller may not use."""
        schedules = set()
        for job in jobs:
            caller.check_job(job.topic, job.queue)
            caller.check_limit(job.limit_key)
            if job.schedule_id is not None:
                schedules.add(job.schedule_id)
        if schedules and TokenRole.ADMIN not in caller.roles:
            raise denied(f"{caller.name} may not submit a job in a schedule's name.")
        if not caller.is_limited:
            return
        if len(schedules) > MOST_SCHEDULES:
            raise invalid(f"Jobs of more than {MOST_SCHEDULES} schedules; send several requests.")
        for schedule_id in schedules:
            row = await self._store.schedules.find(schedule_id)
            if row is None or not owns_schedule(row, caller):
                raise denied(f"{caller.name} may not use schedule {schedule_id}.")

    async def check_parents(self, jobs: Iterable[NewJob], caller: Caller) -> None:
        """Refuse children of a job that the caller may not use: it would have to wait for them."""
        parents = {job.parent_id for job in jobs if job.parent_id is not None}
        if parents and TokenRole.ADMIN not in caller.roles:
            raise denied(f"{caller.name} may not submit a job in another job's name.")
        if parents and caller.is_limited:
            places = await self._store.places([*parents])
            for parent in parents:
                if not is_own(places.get(parent), caller):
                    raise denied(f"{caller.name} may not use job {parent}.")

    async def are_children(self, ids: list[UUID]) -> bool:
        """Whether those of these jobs that exist are all children of workflows."""
        places = await self._store.places(ids)
        return all(place.parent_id is not None for place in places.values())

    async def check_reports(
        self, reports: Sequence[Report], caller: Caller, *, also: Sequence[UUID] = ()
    ) -> None:
        """Refuse to end runs of jobs, or to wait for jobs, that the caller may not use.

        ``also`` has the jobs of further runs that are to end.
        """
        if not caller.is_limited:
            return
        waits = [each.outcome.wait for each in reports if isinstance(each.outcome, Waiting)]
        awaited = [UUID(wait.key) for wait in waits if wait.kind is StepKind.JOB]
        ending = [report.lease.job_id for report in reports]
        await self.check_readable([*ending, *also, *awaited], caller)

    async def check_leases(
        self, leases: list[Lease], caller: Caller, *, urgent: bool = False
    ) -> None:
        """Refuse a lease on a job outside the caller's limits, even with the right token."""
        if caller.is_limited:
            ids = [lease.job_id for lease in leases]
            caller.check_places(await self._store.places(ids, urgent=urgent))

    async def check_readable(self, ids: list[UUID], caller: Caller) -> None:
        """Refuse to show or change jobs that the caller may not use."""
        if caller.is_limited:
            caller.check_places(await self._store.places(ids))


def owns_schedule(row: ScheduleRow, caller: Caller) -> bool:
    """Whether the caller may use a schedule; an unreadable one is for unlimited callers only."""
    if not caller.is_limited:
        return True
    try:
        return caller.may_use(row.spec.topic, row.spec.queue)
    except InvalidOption:
        return False


def is_own(place: JobPlace | None, caller: Caller) -> bool:
    """Whether a job exists and the caller may use it."""
    return place is not None and caller.may_use(place.topic, place.queue)
