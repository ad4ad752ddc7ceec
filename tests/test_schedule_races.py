"""Concurrent acts on a schedule: the one that locks the row first wins, and the other one notices.

Two connections of their own, stopped by barriers inside their transactions. And guards, tested by
removal: take one out of a statement and a check must fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from pulsed.errors import ScheduleChanged, StorageError
from pulsed.model.schedule import CatchUp, ScheduleState
from pulsed.store.blocking import run_blocking
from pulsed.store.sql_store.store import SqlStore
from tests.support.backends import Backend, PostgresBackend, close_blocking
from tests.support.interleaving import WAITING_FOR_LOCKS
from tests.support.processes import together
from tests.support.schedules import (
    APP,
    MINUTE,
    REVISION,
    a_spec,
    after_statements,
    all_jobs,
    decided,
    jobs_of,
    put,
    read,
    tick,
    without,
)

pytestmark = pytest.mark.embedded("stops transactions half way")

PATIENCE = 60.0

Act = Callable[[SqlStore], Coroutine[Any, Any, Any]]


# -- two transactions at once ---------------------------------------------------------------------


class Race:
    """Two processes' stores: the first is stopped within its transaction until the second waits."""

    def __init__(self, backend: Backend, threads: ThreadPoolExecutor) -> None:
        self._backend = backend
        self._threads = threads
        self.first, self.second = backend.open(), backend.open()

    def run(self, verb: str, statements: int, first: Act, second: Act) -> tuple[Any, Any]:
        """Let ``first`` have executed so many statements of its verb when ``second`` begins."""
        holding, go, begun = threading.Event(), threading.Event(), threading.Event()

        def hold() -> None:
            holding.set()
            assert go.wait(PATIENCE)

        after_statements(self.first, verb, statements, hold)
        one = self._start(self.first, first)
        assert holding.wait(PATIENCE), one.result(0) if one.done() else "it never got there"
        perform = self.second.perform

        async def beginning(verb: Any) -> Any:
            begun.set()
            return await perform(verb)

        setattr(self.second, "perform", beginning)  # noqa: B010
        other = self._start(self.second, second)
        assert begun.wait(PATIENCE)
        self._wait_until_blocked()
        assert not other.done()
        go.set()
        return one.result(PATIENCE), other.result(PATIENCE)

    def _start(self, store: SqlStore, act: Act) -> Future[Any]:
        return self._threads.submit(lambda: run_blocking(act(store)))

    def _wait_until_blocked(self) -> None:
        if not isinstance(self._backend, PostgresBackend):
            return  # BEGIN IMMEDIATE comes before the first statement: it cannot but wait
        with contextlib.closing(self._backend.connect()) as looking:
            for _ in range(4_000):
                if looking.execute(WAITING_FOR_LOCKS).fetchone() == (1,):
                    return
                threading.Event().wait(0.005)
        raise AssertionError("the second never waited for the first")


@pytest.fixture
def race(backend) -> Iterator[Race]:
    with ThreadPoolExecutor(2) as threads:
        made = Race(backend, threads)
        for store in (made.first, made.second):
            run_blocking(store.now())  # connected, and the tables are there
        yield made
        for store in (made.first, made.second):
            threads.submit(close_blocking, store).result()
            close_blocking(store)


@pytest.fixture
def calm(backend) -> Iterator[SqlStore]:
    """A third store, to prepare and to check."""
    store = backend.open()
    yield store
    close_blocking(store)


def now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return run_blocking(coroutine)


def due(calm: SqlStore, backend: Backend, **says: Any) -> Any:
    """Put a schedule and let it become due; returns what a scheduler decides about it."""
    now(put(calm, **says))
    backend.clock.advance(61)
    return now(decided(calm))


def a_fire(fire: Any) -> Act:
    return lambda store: store.schedules.fire([fire])


def edit_payload(store: SqlStore) -> Coroutine[Any, Any, Any]:
    return put(store, payload='{"n":1}')


def edit_times(store: SqlStore) -> Coroutine[Any, Any, Any]:
    return put(store, every=7 * MINUTE)


def pause(store: SqlStore) -> Coroutine[Any, Any, Any]:
    return store.schedules.pause(APP, "s")


def delete(store: SqlStore) -> Coroutine[Any, Any, Any]:
    return store.schedules.delete(APP, "s")


ACTS: dict[str, tuple[Act, str, int]] = {
    "edit of the payload": (edit_payload, "put_schedule", 3),
    "edit of the times": (edit_times, "put_schedule", 3),
    "pause": (pause, "pause_schedule", 2),
    "delete": (delete, "delete_schedule", 2),
}
every_act = pytest.mark.parametrize("what", list(ACTS))


@every_act
def test_an_act_that_comes_during_a_fire_finds_the_cursor_moved(race, calm, backend, what):
    fire = due(calm, backend)
    act, _, _ = ACTS[what]
    made, _ = race.run("fire", 1, a_fire(fire), act)
    assert len(made) == 1
    (job,) = now(all_jobs(calm))
    assert (job.id, job.payload) == (made[0].id, "{}")
    assert now(tick(calm)) == []
    if what == "delete":
        assert now(calm.schedules.get(APP, "s")) is None
        return
    row = now(read(calm))
    assert row.last_occurrence == job.occurrence
    assert row.next_run_at > job.occurrence
    assert row.state is (ScheduleState.PAUSED if what == "pause" else ScheduleState.ACTIVE)
    if what != "edit of the times":
        assert row.next_run_at == fire.plan.next


@every_act
def test_a_fire_that_comes_during_an_act_does_nothing(race, calm, backend, what):
    fire = due(calm, backend)
    act, verb, statements = ACTS[what]
    _, made = race.run(verb, statements, act, a_fire(fire))
    assert made == []
    assert now(all_jobs(calm)) == []
    again = now(tick(calm))
    if what == "edit of the payload":  # it is still due, and says the new thing
        assert [(job.occurrence, job.payload) for job in again] == [(fire.plan.fire[0], '{"n":1}')]
    else:
        assert again == []


def test_two_fires_of_one_cursor(race, calm, backend):
    fire = due(calm, backend, catch_up=CatchUp.ALL)
    first, second = race.run("fire", 1, a_fire(fire), a_fire(fire))
    assert (len(first), second) == (1, [])
    assert len(now(jobs_of(calm))) == 1


def test_a_fire_that_was_rolled_back_leaves_the_cursor_to_the_other(race, calm, backend):
    fire = due(calm, backend)

    async def failing(store: SqlStore) -> Any:
        with contextlib.suppress(ZeroDivisionError):
            after_statements(store, "fire", 2, lambda: 1 / 0)  # type: ignore[arg-type]
            return await store.schedules.fire([fire])

    first, second = race.run("fire", 1, failing, a_fire(fire))
    assert (first, len(second)) == (None, 1)
    assert len(now(jobs_of(calm))) == 1


def test_parking_waits_for_a_fire_and_then_leaves_the_schedule_alone(race, calm, backend):
    fire = due(calm, backend)
    race.run(
        "fire", 1, a_fire(fire), lambda store: store.schedules.set_error(fire.row, "I could not")
    )
    row = now(read(calm))
    assert (row.state, row.error, row.next_run_at) == (
        ScheduleState.ACTIVE,
        None,
        fire.plan.next,
    )


def test_a_fire_waits_for_parking_and_then_does_nothing(race, calm, backend):
    fire = due(calm, backend)
    park: Act = lambda store: store.schedules.set_error(fire.row, "because")  # noqa: E731
    if not isinstance(backend, PostgresBackend):  # one statement that commits by itself
        now(park(race.first))
        assert now(race.second.schedules.fire([fire])) == []
    else:
        with contextlib.closing(backend.connect()) as holder, holder.transaction():
            holder.execute("UPDATE pulse_schedules SET state = 'ERROR', revision = revision + 1")
            answer = race._start(race.second, a_fire(fire))
            race._wait_until_blocked()
        assert answer.result(PATIENCE) == []
    assert now(all_jobs(calm)) == []


def test_two_processes_that_create_the_same_schedule(race, calm):
    """The second finds what the first has made; both say the same afterwards."""
    first, second = race.run("put_schedule", 3, put, put)
    assert first.effect == "created"
    assert second.effect == "unchanged"
    assert second.row == first.row
    assert now(calm.schedules.list_page()) == [first.row]


def declare(store: SqlStore) -> Coroutine[Any, Any, Any]:
    return store.schedules.declare(APP, {"s": a_spec(priority=7), "t": a_spec()})


def test_two_processes_that_declare_the_same_schedules(race, calm):
    first, second = race.run("declare_schedules", 3, declare, declare)
    assert first == dict.fromkeys("st", "created")
    assert second == dict.fromkeys("st", "unchanged")
    assert len(now(calm.schedules.list_page())) == 2


@pytest.mark.parametrize("guarded", [True, False])
def test_a_pause_that_comes_during_a_declaration_lasts(race, calm, backend, guarded):
    """Only PostgreSQL has two writers at once: there, a declaration without its guard goes on."""
    now(put(calm))
    if not guarded:
        without(race.second, "update_declared", REVISION)
    _, effects = race.run("pause_schedule", 2, pause, declare)
    assert effects == {"s": "changed", "t": "created"}
    row = now(read(calm))
    assert row.spec == a_spec(priority=7)
    lasts = guarded or not isinstance(backend, PostgresBackend)
    assert (row.state is ScheduleState.PAUSED) is lasts


def test_two_edits_of_one_schedule_are_done_one_after_the_other(race, calm):
    now(put(calm))
    first, second = race.run("put_schedule", 3, edit_payload, edit_times)
    assert (first.effect, second.effect) == ("changed", "changed")
    row = now(read(calm))
    assert row == second.row
    assert row.revision == 2


def test_an_edit_that_comes_during_another_finds_its_version_gone(race, calm):
    row, _ = now(put(calm))

    async def edit_what_was_seen(store: SqlStore) -> bool:
        try:
            await store.schedules.put(APP, "s", a_spec(priority=7), seen=row.version)
        except ScheduleChanged:
            return False
        return True

    first, came_through = race.run("put_schedule", 3, edit_payload, edit_what_was_seen)
    assert not came_through
    assert now(read(calm)) == first.row


def test_pausing_during_an_edit_and_editing_during_a_pause(race, calm):
    now(put(calm))
    race.run("put_schedule", 3, edit_payload, pause)
    row = now(read(calm))
    assert (row.state, row.spec.payload) == (ScheduleState.PAUSED, '{"n":1}')


def test_batches_in_opposite_order_do_not_deadlock(race, calm, backend):
    fires = []
    for name in "abc":
        now(put(calm, name))
    backend.clock.advance(61)
    fires = [now(decided(calm, name)) for name in "abc"]
    first, second = race.run(
        "fire",
        1,
        lambda store: store.schedules.fire(fires),
        lambda store: store.schedules.fire(fires[::-1]),
    )
    assert (len(first), second) == (3, [])


def sync_in_a_process(where: str) -> list[str]:
    """Write twenty declarations, as a starting worker does."""
    from tests.support.processes import open_store  # noqa: PLC0415 - in the child

    store = open_store(where)
    effects = [
        run_blocking(store.schedules.put(APP, f"s{n}", a_spec(), declared=True)).effect
        for n in range(20)
    ]
    run_blocking(store.aclose())
    return effects


def test_processes_that_start_at_once_declare_each_schedule_once(backend, calm):
    now(calm.now())
    where = str(getattr(backend, "path", backend.app_url))
    answers = together(2, sync_in_a_process, where)
    assert sorted(effect for effects in zip(*answers, strict=True) for effect in effects) == (
        ["created"] * 20 + ["unchanged"] * 20
    )
    assert len(now(calm.schedules.list_page())) == 20


# -- the row lock of an act -----------------------------------------------------------------------


async def test_an_edit_reads_the_row_under_its_lock(postgres_url, clock):
    """Without it, an edit that waited for a fire would put the cursor back."""
    backend = PostgresBackend(postgres_url, clock)

    async def edited_after_a_fire(*removed: str) -> bool:
        store = backend.open()
        await store.now()
        backend.empty()
        await put(store)
        clock.advance(61)
        fire = await decided(store)
        with ThreadPoolExecutor(2) as threads:
            race = Race(backend, threads)
            without(race.second, "get", *removed)
            try:
                await asyncio.to_thread(race.run, "fire", 1, a_fire(fire), edit_payload)
                row = await read(store)
            except StorageError:
                return False
            finally:
                for each in (race.first, race.second, store):
                    await each.aclose()
        return row.next_run_at == fire.plan.next

    assert await edited_after_a_fire()
    assert not await edited_after_a_fire("FOR NO KEY UPDATE")
