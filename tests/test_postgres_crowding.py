"""Connections are given back, and a fleet that finds a server full recovers."""

import asyncio
import logging
import math
import signal
from contextlib import closing

import psycopg
import pytest

from pulsed import Pulse
from pulsed.errors import ConfigError, TooManyConnections, TransientStorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.model.ids import new_job_id
from pulsed.model.job import Lease
from pulsed.model.outcome import Beat
from pulsed.store.blocking import run_blocking
from pulsed.store.log_throttle import Throttle, level_of
from pulsed.store.postgres import listen as postgres_listen
from pulsed.store.postgres import session as postgres_session
from pulsed.store.postgres.asyncpg_lane import LanePool
from pulsed.store.postgres.psycopg_pool import ThreadPool
from pulsed.store.postgres.session import LONGEST_PAUSE, Crowding, Lane, Sessions
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from tests.support.commands import Command
from tests.support.commands import until as until_true
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.workers import until

PATIENT = RetryPolicy(max_attempts=1000, initial=0.01, max=0.05)


async def burst(store: PostgresStore, number: int = 5) -> None:
    """Use so many connections at once."""
    await asyncio.gather(*(store.now() for _ in range(number)))


def sessions(url: str, name: str) -> int:
    with closing(psycopg.connect(url, autocommit=True)) as admin:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s"
        [number] = admin.execute(asked, [f"{name}/%"]).fetchone() or [0]
        return int(number)


async def test_what_a_burst_opened_is_given_back(postgres_url, monkeypatch):
    monkeypatch.setattr(LanePool, "keep_idle", 0.02)
    store = PostgresStore(postgres_url, PostgresOptions(application_name="burst"))
    await store.now()
    await burst(store, 8)
    await until(lambda: sessions(postgres_url, "burst") == 1)
    await burst(store, 2)
    await store.aclose()


def test_blocking_callers_give_back_what_they_do_not_use(postgres_url, monkeypatch):
    monkeypatch.setattr(ThreadPool, "keep_idle", -1.0)
    store = PostgresStore(postgres_url, PostgresOptions(application_name="calls"))
    pool = store._threads
    for connection in [pool._connect(5.0) for _ in range(3)]:
        pool._give_back(connection)
    assert len(pool._opened) == 1
    run_blocking(store.aclose())


async def test_a_fleet_that_finds_the_server_full_recovers(monkeypatch):
    """The first to come let go of what they do not need; the others wait, each its own time."""
    monkeypatch.setattr(LanePool, "keep_idle", 0.05)
    monkeypatch.setattr(postgres_session, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(postgres_session, "LONGEST_PAUSE", 0.1)
    with ScratchPostgres(settings={"max_connections": "10"}) as server:
        options = PostgresOptions(retry=PATIENT, pool_size=8)
        fleet = [PostgresStore(server.url, options) for _ in range(5)]
        await fleet[0].migrate()
        await burst(fleet[0], 8)
        await asyncio.wait_for(asyncio.gather(*map(burst, fleet)), 30)
        for store in fleet:
            await store.aclose()


def test_after_a_refusal_nothing_is_asked_for_a_while_and_for_longer_each_time():
    now = 0.0
    crowding = Crowding(lambda: now)
    crowding.check()
    pauses = []
    for _ in range(8):
        crowding.note(psycopg.errors.TooManyConnections())
        with pytest.raises(TransientStorageError, match="no connection left"):
            crowding.check()
        pauses.append(crowding._until - now)
        now = crowding._until
        crowding.check()
    assert pauses[0] < 2 < LONGEST_PAUSE / 2 <= pauses[-1] <= LONGEST_PAUSE * 1.5
    crowding.note(None)
    crowding.note(psycopg.errors.TooManyConnections())
    assert crowding._until - now < 2


@pytest.mark.parametrize("most", [9, 12, 20, 100])
def test_all_pools_together_stay_within_max_connections(most):
    options = PostgresOptions(max_connections=most)
    lanes = Sessions(options).sizes()
    listener = heartbeats = 1
    worker = sum(size for lane, size in lanes.items() if lane is not Lane.URGENT) + options.size
    assert worker + listener + heartbeats <= most
    server = sum(size for lane, size in lanes.items() if lane is not Lane.STEP)
    assert server + listener <= most


def test_too_few_connections_are_refused():
    with pytest.raises(ConfigError, match="9 or more"):
        PostgresOptions(max_connections=8)


async def test_heartbeats_ask_a_full_server_all_the_same(postgres_url):
    """A lease may be shorter than the pause, and one connection is all that they need."""
    store = PostgresStore(postgres_url, PostgresOptions(retry=RetryPolicy(max_attempts=1)))
    await store.now()
    await store.aclose()
    store._sessions.crowding.note(psycopg.errors.TooManyConnections())
    with pytest.raises(TransientStorageError, match="no connection left"):
        await store.now()
    lease = Lease(new_job_id(), 1, new_job_id())
    assert await store.beat([lease]) == {lease: Beat.LOST}
    store._sessions.crowding.note(psycopg.errors.TooManyConnections())
    with pytest.raises(TransientStorageError, match="no connection left"):
        await asyncio.to_thread(run_blocking, store.now())
    assert await asyncio.to_thread(run_blocking, store.beat([lease])) == {lease: Beat.LOST}
    await store.aclose()


def test_a_full_server_is_known_by_either_driver_and_left_alone(monkeypatch):
    """The blocking driver does not say the state of a refused connection."""
    monkeypatch.setattr(postgres_session, "FIRST_PAUSE", 3600.0)
    with ScratchPostgres(settings={"max_connections": "5"}) as server:
        held = [psycopg.connect(server.url) for _ in range(5)]

        async def ask() -> None:
            store = PostgresStore(server.url, PostgresOptions(retry=RetryPolicy.disabled()))
            with pytest.raises(TooManyConnections, match="too many clients"):
                await store.now()
            with pytest.raises(TooManyConnections, match="none is opened for another"):
                await store.now()

        run_blocking(ask())
        asyncio.run(ask())
        for connection in held:
            connection.close()


def test_refused_connections_are_one_line_a_minute_with_a_count(caplog):
    now = 0.0
    caplog.set_level(logging.INFO, "pulsed.store")
    crowding = Crowding(lambda: now, Throttle(60.0, lambda: now))
    for _ in range(240):
        crowding.note(psycopg.errors.TooManyConnections())
        now += 0.5
    first, second = caplog.messages
    assert "no connection left" in first
    assert "(119 more refusals since the last line)" in second


def test_what_repeats_on_a_full_server_is_not_logged_again_by_every_loop():
    assert level_of(TooManyConnections("full")) == logging.DEBUG
    assert level_of(TransientStorageError("away")) == logging.WARNING


async def test_a_listener_that_finds_the_server_full_comes_back(postgres_url, monkeypatch):
    monkeypatch.setattr(postgres_listen, "FIRST_PAUSE", 0.001)
    store = PostgresStore(postgres_url)
    crowding = store._sessions.crowding
    crowding._until = math.inf
    refused = asyncio.Event()
    check = crowding.check

    def noted_check() -> None:
        refused.set()
        check()

    monkeypatch.setattr(crowding, "check", noted_check)
    async with store.listen(["mail"], lambda _: None) as listener, asyncio.timeout(30):
        await refused.wait()
        crowding._until = -math.inf
        await until(lambda: listener.healthy)
    await store.aclose()


CROWDED = """
from pulsed import Pulse
from pulsed.store.postgres import session as postgres_session

postgres_session.LONGEST_PAUSE = 0.5
app = Pulse()

@app.job(max_attempts=1)
async def double(number: int) -> int:
    return 2 * number
"""


def test_worker_processes_that_find_the_server_full_all_come_up_in_the_end(tmp_path):
    processes = 3
    (tmp_path / "crowded.py").write_text(CROWDED)
    command = ("worker", "crowded:app", "--processes", str(processes), "--tick", "500ms")
    with (
        ScratchPostgres(settings={"max_connections": "16"}) as server,
        Pulse(server.url) as producer,
    ):
        enqueued = [producer.enqueue("double", {"number": number}) for number in range(20)]
        others = [psycopg.connect(server.url) for _ in range(13)]
        with Command(tmp_path, *command, "--max-connections", "9", "--url", server.url) as workers:
            workers.said("no connection left")
            enqueued += [producer.enqueue("double", {"number": number}) for number in range(20)]
            for connection in others:
                connection.close()
            until_true(lambda: len(run_blocking(producer.store.workers())) == processes)
            assert [job.result(60) for job in enqueued] == [2 * n for n in range(20)] * 2
            workers.signal(signal.SIGTERM)
            assert workers.ended() == 0
            assert workers.log.count("no connection left") <= processes
            assert "Traceback" not in workers.log
