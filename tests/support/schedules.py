"""Helpers for tests of schedules: make one, fire it, read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from msgspec import structs

from pulsed.engine.upkeep.scheduler import Scheduler, decide
from pulsed.model.job import JobRow, NewJob
from pulsed.model.schedule import ScheduleRow, ScheduleSpec, ScheduleState
from pulsed.store.base import Store
from pulsed.store.schedules import Fire, Put
from pulsed.store.sql.schedules import NOT_ACTIVE
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.verbs.script import Script, Verb
from tests.support.guards import as_written
from tests.support.guards import unguarded as unguarded_sql
from tests.support.jobs import EVERYTHING, TOPIC

APP = "default"
ACTIVE, PAUSED = ScheduleState.ACTIVE, ScheduleState.PAUSED
DONE, ERROR = ScheduleState.DONE, ScheduleState.ERROR
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def a_spec(**says: Any) -> ScheduleSpec:
    """Return what a schedule says: every minute, unless told otherwise."""
    if not {"cron", "at", "every"} & says.keys():
        says["every"] = MINUTE
    if isinstance(says.get("every"), timedelta):
        says["every"] //= timedelta(microseconds=1)
    return ScheduleSpec(**{"topic": TOPIC, "payload": "{}"} | says)


async def put(store: Store, name: str = "s", /, *, declared: bool = False, **says: Any) -> Put:
    """Create or change a schedule."""
    return await store.schedules.put(APP, name, a_spec(**says), declared=declared)


async def read(store: Store, name: str = "s") -> ScheduleRow:
    """Read a schedule that must exist."""
    row = await store.schedules.get(APP, name)
    assert row is not None
    return row


async def tick(store: Store) -> list[NewJob]:
    """Fire what is due, as a worker would."""
    return await Scheduler(store).tick()


async def decided(store: Store, name: str = "s") -> Fire:
    """Return what a scheduler that polls now would do, without doing it."""
    return decide(await read(store, name), await store.now())


async def jobs_of(store: Store, name: str = "s") -> list[JobRow]:
    """Read the jobs of a schedule, the earliest occurrence first."""
    return (await store.schedules.fires((await read(store, name)).id, limit=10_000))[::-1]


async def all_jobs(store: Store) -> list[JobRow]:
    """Read all jobs, whatever became of their schedules."""
    return await store.list_jobs(EVERYTHING, limit=10_000)


def occurrences(jobs: Iterable[Any]) -> list[datetime]:
    """Return the instants that jobs are for, in the order of the jobs."""
    return [job.occurrence for job in jobs]


def after_statements(
    store: SqlStore, verb: str, number: int, act: Callable[[], None], *, times: int = 1
) -> None:
    """Call ``act`` inside a verb's transaction, when so many of its statements were executed."""
    perform = store.perform
    left = times

    def watched(script: Script[Any]) -> Script[Any]:
        done = 0
        rows: Rows | None = None
        while True:
            try:
                statement: Statement = next(script) if rows is None else script.send(rows)
            except StopIteration as finished:
                arrived(done)
                return finished.value
            arrived(done)
            rows = yield statement
            done += 1

    def arrived(done: int) -> None:
        nonlocal left
        if done == number and left:
            left -= 1
            act()

    async def performing(asked: Verb[Any]) -> Any:
        if asked.name == verb:
            script = asked.script
            asked = structs.replace(asked, script=lambda: watched(script()))
        return await perform(asked)

    setattr(store, "perform", performing)  # noqa: B010 - an instance's own method


CURSOR = "AND (s.next_run_at = r.old_cursor) IS TRUE"


REVISION = "AND s.revision = r.old_revision"


STATE = f"AND s.state NOT IN {NOT_ACTIVE}"


def without(store: SqlStore, statement: str, *guards: str) -> None:
    for guard in (as_written(store, each) for each in guards):
        there = store.engine.schedules
        sql = getattr(there, statement)
        assert guard in sql.text, f"{statement} has lost its guard {guard!r}"
        setattr(there, statement, unguarded_sql(sql, guard))
