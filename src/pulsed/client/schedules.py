"""``app.schedules``: create, inspect and change schedules, and read the jobs they made."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple, Unpack
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from pulsed.client.job import Client, Job
from pulsed.client.operator import operator
from pulsed.client.schedule_spec import (
    JOB_OPTIONS,
    KINDS,
    ScheduleOptions,
    Target,
    make_spec,
    options_of,
)
from pulsed.engine.enqueuing import enqueuing, publish_enqueued
from pulsed.engine.upkeep.scheduler import template
from pulsed.errors import ScheduleChanged, ScheduleNotFound
from pulsed.handler import Registry
from pulsed.handler.options import checked_count, checked_instant, checked_name
from pulsed.model.ids import new_job_id
from pulsed.model.job import Status, with_limit_key
from pulsed.model.schedule import CatchUp, ScheduleFilter, ScheduleRow, ScheduleSpec, ScheduleState
from pulsed.model.timetable import (
    MICROSECOND,
    Cron,
    describe,
    is_interval,
    split_zone,
    upcoming,
    zone_of,
)
from pulsed.store.base import Store
from pulsed.store.blocking import blocking

LARGEST_LIMIT = 10_000
EDIT_TRIES = 10
"""How often an edit is tried, if concurrent changes get in between."""


class ScheduleFire(NamedTuple):
    """One job that a schedule made."""

    job_id: UUID
    occurrence: datetime | None
    """The instant that was due; None for a manual run."""
    fired_at: datetime
    status: Status

    @property
    def moment(self) -> datetime:
        """Its position in the history: its occurrence, or the time of a manual run."""
        return self.fired_at if self.occurrence is None else self.occurrence

    @property
    def lag(self) -> timedelta | None:
        """How long after its occurrence the job was made; None for a manual run."""
        return None if self.occurrence is None else self.fired_at - self.occurrence


class Synced(NamedTuple):
    """What ``apply()`` did, by the names of the schedules."""

    created: list[str]
    changed: list[str]
    unchanged: list[str]
    removed: list[str]
    """In the database but no longer declared; paused if you asked for it."""


class Schedule:
    """A schedule as the database had it when it was read."""

    def __init__(self, row: ScheduleRow) -> None:
        self.row = row

    @property
    def id(self) -> UUID:
        """Its id, which its jobs carry as ``schedule_id``."""
        return self.row.id

    @property
    def name(self) -> str:
        """Its name, unique within the app."""
        return self.row.name

    @property
    def app(self) -> str:
        """The name of the app it belongs to."""
        return self.row.app

    @property
    def state(self) -> ScheduleState:
        """ACTIVE, PAUSED, DONE or ERROR."""
        return self.row.state

    @property
    def error(self) -> str | None:
        """Why it could not be fired, in state ERROR."""
        return self.row.error

    @property
    def spec(self) -> ScheduleSpec:
        """When it runs, and which job."""
        return self.row.spec

    @property
    def topic(self) -> str:
        """The topic of its jobs."""
        return self.row.spec.topic

    @property
    def description(self) -> str:
        """When it runs, in plain words."""
        return describe(self.row.spec.timetable)

    @property
    def next_run_at(self) -> datetime | None:
        """Its next occurrence; None when it is done."""
        return self.row.next_run_at

    @property
    def last_occurrence(self) -> datetime | None:
        """The latest occurrence that was fired or skipped."""
        return self.row.last_occurrence

    @property
    def last_fired_at(self) -> datetime | None:
        """When it last made a job."""
        return self.row.last_fired_at

    @property
    def missed(self) -> int:
        """How many occurrences were skipped, by its catch-up and overlap rules."""
        return self.row.missed

    @property
    def zone(self) -> ZoneInfo:
        """The zone of its wall time."""
        timetable = self.row.spec.timetable
        return zone_of(timetable.zone if isinstance(timetable, Cron) else "UTC")

    def next(self, count: int = 5, *, after: datetime | None = None) -> list[datetime]:
        """Return the next occurrences, in UTC.

        With ``after``, those of the timetable later than this instant, fired or not.
        """
        checked_count("count", count, 1, 10_000)
        cursor = self.row.next_run_at
        if cursor is None:
            return []
        spec = self.row.spec
        first = [cursor] if after is None else []
        if after is not None:
            cursor = checked_instant("after", after)
            if spec.start is not None:
                cursor = max(cursor, spec.start - MICROSECOND)
        following = upcoming(spec.timetable, cursor, anchor=self.row.anchor, end=spec.end)
        return [*first, *islice(following, count - len(first))]

    def __repr__(self) -> str:
        return f"<Schedule {self.name!r} {self.state}: next {self.next_run_at}>"


class Schedules:
    """The schedules of an app: ``app.schedules``."""

    def __init__(
        self, client: Client, app: str, declared: Callable[[], Mapping[str, ScheduleSpec]]
    ) -> None:
        self._client = client
        self._app = app
        self._declared = declared

    def of(self, app: str) -> Schedules:
        """Return the schedules of another app in the same database.

        This process need not have that app's handlers, so arguments are not checked.
        """
        if app == self._app:
            return self
        return Schedules(self._client._replace(registry=Registry), app, dict)

    async def aput(
        self, name: str, target: Target, /, **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Create a schedule now, or change the one of this name."""
        checked_name("name of the schedule", name)
        spec = make_spec(target, options, self._client.registry())
        put = await self._store.schedules.put(self._app, name, spec, by=operator())
        return Schedule(put.row)

    async def aedit(self, name: str, /, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Change some of a schedule's options and keep the others; ``end=None`` removes one.

        Concurrent changes are kept: the edit is retried on top of them.
        """
        for _ in range(EDIT_TRIES - 1):
            with suppress(ScheduleChanged):
                return await self._edited(name, options)
        return await self._edited(name, options)

    async def _edited(self, name: str, options: ScheduleOptions) -> Schedule:
        old = (await self.aget(name)).row
        spec = _edited(old.spec, options, self._client.registry())
        put = await self._store.schedules.put(
            self._app, name, spec, declared=old.declared, seen=old.version, by=operator()
        )
        return Schedule(put.row)

    async def aget(self, name: str) -> Schedule:
        """Read one schedule; raises ``ScheduleNotFound`` if there is none."""
        return self._found(name, await self._store.schedules.get(self._app, name))

    async def alist(
        self, *, all_apps: bool = False, limit: int = 1_000, after: Schedule | None = None
    ) -> builtins.list[Schedule]:
        """Read schedules of this app, or of all apps in the database, by name.

        ``after`` is the last one of the previous page; ``iterate`` yields all of them.
        """
        checked_count("limit", limit, 1, LARGEST_LIMIT)
        key = None if after is None else after.row.key
        rows = await self._store.schedules.list_page(self._where(all_apps), limit=limit, after=key)
        return [Schedule(row) for row in rows]

    async def aiterate(self, *, all_apps: bool = False) -> AsyncIterator[Schedule]:
        """Yield all schedules of this app, or of all apps, reading a page at a time."""
        async for row in self._store.schedules.each(self._where(all_apps)):
            yield Schedule(row)

    def iterate(self, *, all_apps: bool = False) -> Iterator[Schedule]:
        """Yield all schedules of this app, or of all apps, reading a page at a time."""
        page: builtins.list[Schedule] = self.list(all_apps=all_apps)
        yield from page
        while page:
            page = self.list(all_apps=all_apps, after=page[-1])
            yield from page

    def _where(self, all_apps: bool) -> ScheduleFilter:  # noqa: FBT001
        return ScheduleFilter(None if all_apps else self._app)

    async def apause(self, name: str) -> Schedule:
        """Stop making jobs; those already enqueued stay."""
        row = await self._store.schedules.pause(self._app, name, by=operator())
        return self._found(name, row)

    async def aresume(self, name: str) -> Schedule:
        """Resume with the next occurrence; those that passed meanwhile are not caught up on."""
        row = await self._store.schedules.resume(self._app, name, by=operator())
        return self._found(name, row)

    async def adelete(self, name: str) -> None:
        """Remove a schedule; the jobs it made stay."""
        if not await self._store.schedules.delete(self._app, name, by=operator()):
            raise self._missing(name)

    async def arun_now(self, name: str) -> Job[Any]:
        """Enqueue its job now, by hand; its next occurrence stays as it is."""
        schedule = await self.aget(name)
        handler = self._client.registry().find(schedule.spec.topic)
        made = template(schedule.row, schedule.spec, new_job_id())
        made = with_limit_key(made, handler.limit_rule if handler else None)
        with enqueuing(self._client.arounds.enqueues, [made]) as (job,):
            await self._store.schedules.run_now(self._app, name, job, by=operator())
        publish_enqueued(self._store.events, [job])
        return Job(self._client, job, handler, is_new=True)

    async def afires(
        self, name: str, *, limit: int = 50, before: datetime | None = None
    ) -> Sequence[ScheduleFire]:
        """Read the jobs that a schedule made, the latest first.

        ``before`` is the ``moment`` of the last one of the previous page.
        """
        checked_count("limit", limit, 1, 10_000)
        schedule = await self.aget(name)
        rows = await self._store.schedules.fires(schedule.id, limit=limit, before=before)
        return [ScheduleFire(row.id, row.occurrence, row.submitted_at, row.status) for row in rows]

    async def anext(
        self, name: str, count: int = 5, *, after: datetime | None = None
    ) -> Sequence[datetime]:
        """Return the next occurrences of a schedule, in UTC."""
        return (await self.aget(name)).next(count, after=after)

    async def aapply(self, *, pause_removed: bool = False) -> Synced:
        """Store what you declared with ``app.schedule(...)``; workers do this when they start.

        Only schedules of this app are touched. One that is no longer declared is reported, and
        paused with ``pause_removed``.
        """
        declared = self._declared()
        effects = await self._store.schedules.declare(self._app, declared)
        removed = [
            row.name
            async for row in self._store.schedules.each(ScheduleFilter(self._app))
            if row.declared and row.name not in declared
        ]
        for name in removed if pause_removed else ():
            await self._store.schedules.pause(self._app, name, by=operator())
        by_effect = {
            effect: [name for name in declared if effects[name] == effect]
            for effect in ("created", "changed", "unchanged")
        }
        return Synced(**by_effect, removed=removed)

    put = blocking(aput)
    edit = blocking(aedit)
    get = blocking(aget)
    pause = blocking(apause)
    resume = blocking(aresume)
    delete = blocking(adelete)
    run_now = blocking(arun_now)
    fires = blocking(afires)
    next = blocking(anext)  # noqa: A003 - the twin of next
    apply = blocking(aapply)

    @property
    def _store(self) -> Store:
        return self._client.store()

    def _found(self, name: str, row: ScheduleRow | None) -> Schedule:
        if row is None:
            raise self._missing(name)
        return Schedule(row)

    def _missing(self, name: str) -> ScheduleNotFound:
        return ScheduleNotFound(f"The app {self._app!r} has no schedule {name!r}.")

    list = blocking(alist)


def _edited(old: ScheduleSpec, options: ScheduleOptions, registry: Registry) -> ScheduleSpec:
    """Return the old spec with some options replaced; those they rule out are dropped."""
    given = {name: value for name, value in options.items() if value is not None}
    kept = {name: value for name, value in options_of(old).items() if name not in options}
    if any(kind in given for kind in KINDS):
        bounds = ("start", "end") if "at" in given else ()
        gone = (*KINDS, "tz", *bounds)
        kept = {name: value for name, value in kept.items() if name not in gone}
        if old.cron is not None and "tz" not in given and _takes_zone(given.get("cron")):
            given["tz"] = old.zone
    if given.get("catch_up", old.catch_up) != CatchUp.ALL:
        kept.pop("limit", None)
    payload = given.pop("payload", None)
    if payload is None:
        payload = msgspec.json.decode(old.payload)
    made = make_spec(old.topic, {**kept, **given, "payload": payload}, registry)
    unsaid = {name: getattr(old, name) for name in JOB_OPTIONS if name not in options}
    return msgspec.structs.replace(made, **unsaid)


def _takes_zone(cron: Any) -> bool:
    """Whether a cron text takes its zone from ``tz``."""
    if not isinstance(cron, str):
        return False
    named, expression = split_zone(cron)
    return named is None and not is_interval(expression)
