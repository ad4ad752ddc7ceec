"""The schedule verbs over the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

from google.protobuf.message import Message

from pulsed.batches import TRANSACTION, Limits, batches
from pulsed.errors import ScheduleNotFound
from pulsed.model.audit import Operator
from pulsed.model.job import JobRow, NewJob
from pulsed.model.schedule import ScheduleFilter, ScheduleKey, ScheduleRow, ScheduleSpec, Version
from pulsed.rpc.client.connection import ServerConnection
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import audit as to_audit
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages import schedules as to_schedule
from pulsed.rpc.messages import values
from pulsed.rpc.messages.contract import PART
from pulsed.store.schedules import EVERY_SCHEDULE, SCHEDULE_PAGE, Due, Fire, Put, ScheduleStore


class RemoteSchedules(ScheduleStore):
    """Schedules whose store is behind a server."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    async def put(
        self,
        app: str,
        name: str,
        spec: ScheduleSpec,
        *,
        declared: bool = False,
        seen: Version | None = None,
        by: Operator | None = None,
    ) -> Put:
        request = pb.PutScheduleRequest(
            app=app,
            name=name,
            spec=to_schedule.spec_message(spec),
            declared=declared,
            seen=None if seen is None else to_schedule.version_message(seen),
            operator=to_audit.operator_message(by),
        )
        answer = await self._connection.call("PutSchedule", request)
        return Put(to_schedule.schedule_of(answer.schedule), answer.effect)

    async def declare(
        self, app: str, specs: Mapping[str, ScheduleSpec], *, by: Operator | None = None
    ) -> dict[str, str]:
        effects: dict[str, str] = {}
        messages = to_schedule.declared_messages(specs)
        limits = Limits(TRANSACTION.items, PART.bytes)
        for part in batches(messages, lambda each: each.ByteSize(), limits):
            request = pb.SyncSchedulesRequest(
                app=app, schedules=part, partial=True, operator=to_audit.operator_message(by)
            )
            answer = await self._connection.call("SyncSchedules", request)
            for effect in ("created", "changed", "unchanged"):
                effects |= dict.fromkeys(getattr(answer, effect), effect)
        return effects

    async def get(self, app: str, name: str) -> ScheduleRow | None:
        return await self._schedule("GetSchedule", pb.GetScheduleRequest(app=app, name=name))

    async def find(self, schedule_id: UUID) -> ScheduleRow | None:
        return await self._schedule("GetSchedule", pb.GetScheduleRequest(id=str(schedule_id)))

    async def list_page(
        self,
        where: ScheduleFilter = EVERY_SCHEDULE,
        *,
        limit: int = SCHEDULE_PAGE,
        after: ScheduleKey | None = None,
    ) -> list[ScheduleRow]:
        rows: list[ScheduleRow] = []
        while True:
            request = to_schedule.list_message(where, limit - len(rows), after)
            answer = await self._connection.call("ListSchedules", request)
            rows += map(to_schedule.schedule_of, answer.schedules)
            if not answer.cut:
                return rows
            after = rows[-1].key

    async def pause(self, app: str, name: str, *, by: Operator | None = None) -> ScheduleRow | None:
        return await self._schedule("PauseSchedule", _name_of(app, name, by))

    async def resume(
        self, app: str, name: str, *, by: Operator | None = None
    ) -> ScheduleRow | None:
        return await self._schedule("ResumeSchedule", _name_of(app, name, by))

    async def delete(self, app: str, name: str, *, by: Operator | None = None) -> bool:
        try:
            await self._connection.call("DeleteSchedule", _name_of(app, name, by))
        except ScheduleNotFound:
            return False
        return True

    async def prune(self, age: float, *, limit: int, by: Operator | None = None) -> int:
        request = pb.PruneSchedulesRequest(
            age_seconds=age, limit=limit, operator=to_audit.operator_message(by)
        )
        return int((await self._connection.call("PruneSchedules", request)).removed)

    async def run_now(
        self, app: str, name: str, job: NewJob, *, by: Operator | None = None
    ) -> None:
        request = pb.RunScheduleNowRequest(
            app=app, name=name, job_id=str(job.id), operator=to_audit.operator_message(by)
        )
        await self._connection.call("RunScheduleNow", request)

    async def due(self, limit: int, *, skip: int = 0) -> Due:
        request = pb.ListDueSchedulesRequest(limit=limit, skip=skip)
        answer = await self._connection.upkeep("ListDueSchedules", request)
        if answer is None:
            return Due([], None, datetime.now(UTC))
        rows = [to_schedule.schedule_of(message) for message in answer.schedules]
        return Due(rows, values.maybe_instant(answer, "next_run_at"), values.instant(answer.now))

    async def fire(self, fires: Sequence[Fire]) -> list[NewJob]:
        if not fires:
            return []
        request = pb.FireSchedulesRequest(fires=map(to_schedule.fire_message, fires))
        inserted = set((await self._connection.call("FireSchedules", request)).job_ids)
        return [job for fire in fires for job in fire.jobs if str(job.id) in inserted]

    async def set_error(self, row: ScheduleRow, reason: str) -> None:
        request = pb.SetScheduleErrorRequest(
            schedule=to_schedule.schedule_message(row), reason=reason
        )
        await self._connection.call("SetScheduleError", request)

    async def fires(
        self,
        schedule_id: UUID,
        *,
        limit: int = 50,
        before: datetime | None = None,
        before_id: UUID | None = None,
    ) -> list[JobRow]:
        rows: list[JobRow] = []
        while True:
            request = pb.ListScheduleJobsRequest(
                schedule_id=str(schedule_id),
                limit=limit - len(rows),
                before=values.maybe_stamp(before),
                before_id=values.maybe_text(before_id),
            )
            answer = await self._connection.call("ListScheduleJobs", request)
            rows += map(to.job_of, answer.jobs)
            if not answer.cut:
                return rows
            before, before_id = rows[-1].moment, rows[-1].id

    async def _schedule(self, method: str, which: Message) -> ScheduleRow | None:
        try:
            answer = await self._connection.call(method, which)
        except ScheduleNotFound:
            return None
        return to_schedule.schedule_of(answer)


def _name_of(app: str, name: str, by: Operator | None) -> pb.ScheduleName:
    return pb.ScheduleName(app=app, name=name, operator=to_audit.operator_message(by))
