"""The methods with which clients read and change schedules."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from pulsed.engine.enqueuing import publish_enqueued
from pulsed.engine.upkeep.scheduler import template
from pulsed.errors import ScheduleNotFound
from pulsed.handler.options import checked_count, checked_name
from pulsed.model.job import JobRow
from pulsed.model.schedule import ScheduleFilter, ScheduleKey, ScheduleRow
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages import schedules as to_schedule
from pulsed.rpc.messages import values
from pulsed.rpc.server.access import Caller, denied
from pulsed.rpc.server.checks import items as checks
from pulsed.rpc.server.scopes import owns_schedule
from pulsed.rpc.server.services.backend import LARGEST_PAGE, Backend, operator_of
from pulsed.rpc.server.sized_page import M, SizedPage


class ScheduleService:
    """The methods of this name in the contract."""

    def __init__(self, backend: Backend) -> None:
        self._store = backend.store
        self._check_batch = backend.check_batch

    async def put_schedule(
        self, request: pb.PutScheduleRequest, caller: Caller
    ) -> pb.PutScheduleResponse:
        name = checked_name("name of the schedule", request.name)
        spec = checks.spec(request.spec)
        caller.check_job(spec.topic, spec.queue)
        if caller.is_limited and (old := await self._schedule(request)) is not None:
            _check_schedule(old, caller)
        seen = None
        if request.HasField("seen"):
            seen = checks.converted(to_schedule.version_of, request.seen)
        put = await self._store.schedules.put(
            _app(request),
            name,
            spec,
            declared=request.declared,
            seen=seen,
            by=operator_of(request, caller),
        )
        return pb.PutScheduleResponse(
            schedule=to_schedule.schedule_message(put.row), effect=put.effect
        )

    async def edit_schedule(
        self, request: pb.PutScheduleRequest, caller: Caller
    ) -> pb.PutScheduleResponse:
        await self._existing(request, caller)
        return await self.put_schedule(request, caller)

    async def sync_schedules(
        self, request: pb.SyncSchedulesRequest, caller: Caller
    ) -> pb.SyncSchedulesResponse:
        self._check_batch(request.schedules)
        specs = {
            checked_name("name of the schedule", each.name): checks.spec(each.spec)
            for each in request.schedules
        }
        app = _app(request)
        for name, spec in specs.items():
            caller.check_job(spec.topic, spec.queue)
            if (
                caller.is_limited
                and (old := await self._store.schedules.get(app, name)) is not None
            ):
                _check_schedule(old, caller)
        removed = [] if request.partial else await self._undeclared(app, specs, caller)
        answer = pb.SyncSchedulesResponse(removed=removed)
        by = operator_of(request, caller)
        effects = await self._store.schedules.declare(app, specs, by=by)
        for name, effect in effects.items():
            getattr(answer, effect).append(name)
        for name in removed if request.pause_removed else ():
            await self._store.schedules.pause(app, name, by=by)
        return answer

    async def _undeclared(self, app: str, specs: Container[str], caller: Caller) -> list[str]:
        return [
            row.name
            async for row in self._store.schedules.each(ScheduleFilter(app))
            if row.declared and row.name not in specs and owns_schedule(row, caller)
        ]

    async def get_schedule(self, request: pb.GetScheduleRequest, caller: Caller) -> pb.Schedule:
        if not request.id:
            return to_schedule.schedule_message(await self._existing(request, caller))
        row = await self._store.schedules.find(checks.job_id_of(request.id))
        if row is None:
            raise ScheduleNotFound(f"There is no schedule {request.id}.")
        _check_schedule(row, caller)
        return to_schedule.schedule_message(row)

    async def list_schedules(
        self, request: pb.ListSchedulesRequest, caller: Caller
    ) -> pb.ListSchedulesResponse:
        where = checks.converted(to_schedule.filter_of, request)
        limit = checked_count("limit", request.limit or LARGEST_PAGE, 1, LARGEST_PAGE)
        begin = ScheduleKey(request.after_app, request.after_name) if request.after_app else None

        async def read(count: int, last: ScheduleRow | None) -> list[ScheduleRow]:
            """Read ``count`` schedules that the caller may see; fewer if there are no more."""
            after = begin if last is None else last.key
            own: list[ScheduleRow] = []
            while len(own) < count:
                rows = await self._store.schedules.list_page(where, limit=count, after=after)
                own += (row for row in rows if owns_schedule(row, caller))
                if len(rows) < count:
                    break
                after = rows[-1].key
            return own[:count]

        found = SizedPage(to_schedule.schedule_message, limit=limit)
        await found.fill_from(read)
        return pb.ListSchedulesResponse(schedules=found.messages, cut=found.is_cut)

    async def pause_schedule(self, request: pb.ScheduleName, caller: Caller) -> pb.Schedule:
        await self._existing(request, caller)
        by = operator_of(request, caller)
        row = await self._store.schedules.pause(_app(request), request.name, by=by)
        return to_schedule.schedule_message(_there(row, request))

    async def resume_schedule(self, request: pb.ScheduleName, caller: Caller) -> pb.Schedule:
        await self._existing(request, caller)
        by = operator_of(request, caller)
        row = await self._store.schedules.resume(_app(request), request.name, by=by)
        return to_schedule.schedule_message(_there(row, request))

    async def delete_schedule(
        self, request: pb.ScheduleName, caller: Caller
    ) -> pb.DeleteScheduleResponse:
        await self._existing(request, caller)
        by = operator_of(request, caller)
        await self._store.schedules.delete(_app(request), request.name, by=by)
        return pb.DeleteScheduleResponse()

    async def run_schedule_now(
        self, request: pb.RunScheduleNowRequest, caller: Caller
    ) -> pb.RunScheduleNowResponse:
        job_id = checks.job_id_of(request.job_id)
        row = await self._existing(request, caller)
        job = template(row, row.spec, job_id)
        by = operator_of(request, caller)
        await self._store.schedules.run_now(_app(request), request.name, job, by=by)
        publish_enqueued(self._store.events, [job])
        return pb.RunScheduleNowResponse(job_id=str(job_id))

    async def list_schedule_jobs(
        self, request: pb.ListScheduleJobsRequest, caller: Caller
    ) -> pb.ListScheduleJobsResponse:
        jobs = await self._fires(request, caller, to.job_message)
        return pb.ListScheduleJobsResponse(jobs=jobs.messages, cut=jobs.is_cut)

    async def list_schedule_fires(
        self, request: pb.ListScheduleJobsRequest, caller: Caller
    ) -> pb.ListScheduleFiresResponse:
        fires = await self._fires(request, caller, to_schedule.fired_message)
        return pb.ListScheduleFiresResponse(fires=fires.messages, cut=fires.is_cut)

    async def _fires(
        self, request: Any, caller: Caller, pack: Callable[[JobRow], M]
    ) -> SizedPage[JobRow, M]:
        schedule_id = checks.job_id_of(request.schedule_id)
        jobs = SizedPage(pack, limit=checked_count("limit", request.limit, 1, LARGEST_PAGE))
        before = values.maybe_instant(request, "before")
        before_id = checks.job_id_of(request.before_id) if request.before_id else None

        async def read(count: int, last: JobRow | None) -> list[JobRow]:
            moment, job_id = (before, before_id) if last is None else (last.moment, last.id)
            rows = await self._store.schedules.fires(
                schedule_id, limit=count, before=moment, before_id=job_id
            )
            if not all(caller.may_use(row.topic, row.queue) for row in rows):
                raise denied(f"{caller.name} may not see the jobs of this schedule.")
            return rows

        await jobs.fill_from(read)
        return jobs

    async def _schedule(self, request: Any) -> ScheduleRow | None:
        return await self._store.schedules.get(_app(request), request.name)

    async def _existing(self, request: Any, caller: Caller) -> ScheduleRow:
        row = _there(await self._schedule(request), request)
        _check_schedule(row, caller)
        return row


def _app(request: Any) -> str:
    return checked_name("name of the app", request.app or "default")


def _there(row: ScheduleRow | None, request: Any) -> ScheduleRow:
    if row is None:
        raise ScheduleNotFound(f"The app {_app(request)!r} has no schedule {request.name!r}.")
    return row


def _check_schedule(row: ScheduleRow, caller: Caller) -> None:
    if not owns_schedule(row, caller):
        raise denied(f"{caller.name} may not use schedule {row.name!r}.")
