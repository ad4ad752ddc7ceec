"""A worker and the schedules that its program declares."""

from datetime import UTC, datetime
from typing import Any

import pytest

from pulsed import Pulse, ScheduleState, Status
from pulsed.errors import InvalidOption, TransientStorageError
from pulsed.store.sql_store import SqlStore
from tests.support.workers import Working, until

PAST = datetime(2026, 1, 1, tzinfo=UTC)


def an_app(url: str, **when: Any) -> Pulse:
    app = Pulse(url)

    @app.schedule("tick", **when)
    @app.job
    async def tick() -> None: ...

    return app


async def succeeded(app: Pulse) -> bool:
    return (await app.jobs.acounts())[Status.SUCCEEDED] > 0


async def test_a_worker_writes_what_is_declared_and_fires_it(url):
    async with an_app(url, at=PAST) as app:
        working = Working(app.worker(poll=0.02))
        await until(lambda: succeeded(app))
        assert (await app.schedules.aget("tick")).state is ScheduleState.DONE
        await working.stop()


async def test_a_worker_told_so_leaves_schedules_alone(url):
    async with an_app(url, at=PAST) as app:
        await app.schedules.aput("other", "tick", at=PAST)
        working = Working(app.worker(poll=0.02, schedules=False))
        await app.aenqueue("tick")
        await until(lambda: succeeded(app))
        assert [each.name for each in await app.schedules.alist()] == ["other"]
        assert (await app.schedules.aget("other")).state is ScheduleState.ACTIVE
        await working.stop()


async def test_declarations_wait_for_a_database_that_is_away(url, monkeypatch):
    tries = 0
    put = SqlStore.declare_schedules

    async def away_at_first(*args: Any, **options: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise TransientStorageError("away")
        return await put(*args, **options)

    monkeypatch.setattr(SqlStore, "declare_schedules", away_at_first)
    async with an_app(url, at=PAST) as app:
        working = Working(app.worker(poll=0.02))
        await until(lambda: succeeded(app))
        assert tries == 2
        await working.stop()


async def test_a_declaration_that_outlived_its_end_does_not_keep_a_worker_from_starting(url):
    async with an_app(url, every=60, start=PAST, end=datetime(2026, 2, 1, tzinfo=UTC)) as app:
        assert (await app.schedules.aapply()).created == ["tick"]
        schedule = await app.schedules.aget("tick")
        assert (schedule.state, schedule.next(5)) == (ScheduleState.DONE, [])
        with pytest.raises(InvalidOption, match="never run"):
            await app.schedules.aput("by_hand", "tick", every=60, end=PAST)
