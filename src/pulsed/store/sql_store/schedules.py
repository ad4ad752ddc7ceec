"""Schedules over any SQL engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from msgspec.structs import replace

from pulsed.batches import batches
from pulsed.model.audit import Operator
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobRow, NewJob
from pulsed.model.keys import OnDuplicate
from pulsed.model.schedule import ScheduleFilter, ScheduleKey, ScheduleRow, ScheduleSpec, Version
from pulsed.store.listener import SCHEDULES
from pulsed.store.schedules import (
    EVERY_SCHEDULE,
    SCHEDULE_PAGE,
    Due,
    Fire,
    FireMark,
    Put,
    ScheduleStore,
)
from pulsed.store.verbs import firing, schedules, submit
from pulsed.store.verbs.audit import ActResult

if TYPE_CHECKING:
    from pulsed.store.sql_store.store import SqlStore

DECLARE_TRIES = 5
"""Attempts to declare schedules that other processes keep writing concurrently."""


class SqlSchedules(ScheduleStore):
    """The schedules of a store made of verbs."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

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
        wanted = schedules.ScheduleChange(app, name, spec, declared, new_job_id(), seen)
        verb = schedules.put(self._store.engine, wanted)
        put = await self._store.act(
            verb,
            by,
            "put schedule",
            lambda put: _schedule(app, name, changed=put.effect != "unchanged"),
        )
        if put.effect != "unchanged":
            await self._store.hint({SCHEDULES})
        return put

    async def declare(
        self, app: str, specs: Mapping[str, ScheduleSpec], *, by: Operator | None = None
    ) -> dict[str, str]:
        wanted = [
            schedules.ScheduleChange(app, name, spec, declared=True, new_id=new_job_id())
            for name, spec in sorted(specs.items())
        ]
        effects: dict[str, str] = {}
        for batch in batches(wanted, schedules.size):
            effects |= await self._declare(batch, by)
        return effects

    async def get(self, app: str, name: str) -> ScheduleRow | None:
        return await self._store.run(schedules.get(self._store.engine, app, name))

    async def find(self, schedule_id: UUID) -> ScheduleRow | None:
        return await self._store.run(schedules.find(self._store.engine, schedule_id))

    async def list_page(
        self,
        where: ScheduleFilter = EVERY_SCHEDULE,
        *,
        limit: int = SCHEDULE_PAGE,
        after: ScheduleKey | None = None,
    ) -> list[ScheduleRow]:
        return await self._store.run(
            schedules.list_schedules(self._store.engine, where, limit, after)
        )

    async def pause(self, app: str, name: str, *, by: Operator | None = None) -> ScheduleRow | None:
        verb = schedules.pause(self._store.engine, app, name)
        return await self._store.act(
            verb, by, "pause schedule", lambda row: _schedule(app, name, changed=row is not None)
        )

    async def resume(
        self, app: str, name: str, *, by: Operator | None = None
    ) -> ScheduleRow | None:
        verb = schedules.resume(self._store.engine, app, name)
        row = await self._store.act(
            verb, by, "resume schedule", lambda row: _schedule(app, name, changed=row is not None)
        )
        await self._store.hint({SCHEDULES})
        return row

    async def delete(self, app: str, name: str, *, by: Operator | None = None) -> bool:
        verb = schedules.delete(self._store.engine, app, name)
        return await self._store.act(
            verb, by, "delete schedule", lambda gone: _schedule(app, name, changed=gone)
        )

    async def run_now(
        self, app: str, name: str, job: NewJob, *, by: Operator | None = None
    ) -> None:
        if job.key is not None:  # a run by hand has a caller, who wants to know
            job = replace(job, on_duplicate=OnDuplicate.RAISE)
        verb = submit.submit(self._store.engine, [job])
        await self._store.act(
            verb, by, "run schedule", lambda done: _schedule(app, name, changed=done.new > 0)
        )
        await self._store.hint_at([job])

    async def due(self, limit: int, *, skip: int = 0) -> Due:
        return await self._store.run(firing.due(self._store.engine, limit, skip))

    async def fire(self, fires: Sequence[Fire]) -> list[NewJob]:
        if not fires:
            return []
        jobs = await self._store.run(firing.fire(self._store.engine, fires))
        await self._store.hint_at(jobs)
        return jobs

    async def set_error(self, row: ScheduleRow, reason: str) -> None:
        await self._store.run(firing.set_error(self._store.engine, row, reason))

    async def last_fires(self, ids: Sequence[UUID], *, limit: int) -> dict[UUID, list[FireMark]]:
        if not ids:
            return {}
        return await self._store.run(firing.last_fires(self._store.engine, ids, limit))

    async def fires(
        self,
        schedule_id: UUID,
        *,
        limit: int = 50,
        before: datetime | None = None,
        before_id: UUID | None = None,
    ) -> list[JobRow]:
        return await self._store.run(
            firing.fires(self._store.engine, schedule_id, limit, before, before_id)
        )

    async def prune(self, age: float, *, limit: int, by: Operator | None = None) -> int:
        verb = schedules.prune(self._store.engine, age, limit)
        return await self._store.act(
            verb, by, "prune schedules", lambda gone: ActResult(gone, f"done for {age:.0f} s")
        )

    async def _declare(
        self, wanted: list[schedules.ScheduleChange], by: Operator | None
    ) -> dict[str, str]:
        effects: dict[str, str] = {}
        for _ in range(DECLARE_TRIES):
            verb = schedules.declare(self._store.engine, wanted)
            done = await self._store.act(verb, by, "declare schedules", _declared)
            effects |= done
            wanted = [each for each in wanted if each.name not in effects]
            if not wanted:
                break
        else:
            raise schedules.changed_meanwhile(wanted[0])
        if set(effects.values()) != {"unchanged"}:
            await self._store.hint({SCHEDULES})
        return effects


def _declared(effects: Mapping[str, str]) -> ActResult:
    changed = [name for name, effect in effects.items() if effect != "unchanged"]
    return ActResult(len(changed), " ".join(changed))


def _schedule(app: str, name: str, *, changed: bool) -> ActResult:
    return ActResult(int(changed), f"{name} of app {app}")
