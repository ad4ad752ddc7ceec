"""What becomes of PostgreSQL connections: over loops, forks, broken servers and poolers."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from pulsed import Pulse
from pulsed.errors import ConfigError, DuplicateKey, InvalidOption, SchemaError, StorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.model.job import JobFilter, Status
from pulsed.model.outcome import Beat, Failed, Report, Succeeded
from pulsed.store.blocking import run_blocking
from pulsed.store.migrations import newest
from pulsed.store.postgres.asyncpg_connection import AsyncpgConnection
from pulsed.store.postgres.session import ROLLBACK, Lane
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.verbs.script import Verb, VerbKind
from tests.support.jobs import ALICE, POLICIES, a_job, claim, claim_one, submitted
from tests.support.own_sessions import impatient, sessions
from tests.support.programs import python
from tests.support.raw_verbs import a_verb, both_drivers, perform, run
from tests.support.transaction_pooler import pooled
from tests.support.workers import handler, submit_with, until, working

store = impatient
ONCE = RetryPolicy.disabled()


# -- scripts: what only shows in a process of its own ----------------------------------------------


def script(code, url):
    """Run a program in which every warning is an error, also one at its end."""
    prelude = """if True:
    import asyncio, gc, logging, os, sys
    logging.getLogger("asyncio").setLevel("ERROR")  # a slow machine is no mistake
    from pulsed.model.job import JobFilter, NewJob
    from pulsed.model.ids import new_job_id
    from pulsed.store.blocking import run_blocking
    from pulsed.store.postgres.store import PostgresStore, PostgresOptions
    store = PostgresStore(sys.argv[1])
    def job(queue="default"): return [NewJob(id=new_job_id(), topic="t", payload="{}", queue=queue)]
    """
    done = python("-X", "dev", "-W", "error", "-c", prelude + code, url)
    assert done.stderr == ""
    return done.stdout


def test_consecutive_event_loops_leave_nothing_behind(postgres_url, admin):
    said = script(
        """
    async def main():
        await asyncio.gather(*(store.submit(job()) for _ in range(5)))
        assert len(store._loops) == 1
        return id(asyncio.get_running_loop())
    asyncio.run(main())
    asyncio.run(main())
    run_blocking(store.submit(job()))
    asyncio.run(main())
    gc.collect()
    print(len(run_blocking(store.list_jobs(JobFilter()))))
    """,
        postgres_url,
    )
    assert said.strip() == "16"
    assert sessions(admin) == set()


async def test_heartbeats_take_their_connection_along_when_the_worker_ends(postgres_url, admin):
    """Else a database of tests could not be dropped after a run that was long enough for one."""
    store = PostgresStore(postgres_url)
    release = asyncio.Event()

    async def slow():
        await release.wait()

    await submit_with(store, "slow", {})
    async with working(store, handler(slow, lease=1.0)):
        await until(lambda: store._threads._opened)
        release.set()
    assert not store._threads._opened
    await store.aclose()


def test_a_thread_that_ends_leaves_the_connections_of_others(postgres_url, admin):
    store = PostgresStore(postgres_url)
    pool = store._threads
    mine = pool._take(5.0, urgent=False)

    def take_and_end():
        other = pool._take(5.0, urgent=False)
        for connection in (mine, other):
            pool._give_back(connection)
        pool.thread_ends()
        assert other.closed

    with ThreadPoolExecutor(1) as threads:
        threads.submit(take_and_end).result()
    assert pool._opened == {mine}
    assert not mine.closed
    run_blocking(store.aclose())


def test_a_store_that_is_forgotten_in_a_running_loop_closes_its_sessions(postgres_url, admin):
    script(
        """
    async def main():
        global store
        await store.submit(job())
        store = None
        gc.collect()
        print(gc.collect() and "collected")
        while len(asyncio.all_tasks()) > 1 or asyncio._get_running_loop()._ready:
            await asyncio.sleep(0)
    asyncio.run(main())
    """,
        postgres_url,
    )
    assert sessions(admin) == set()


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_a_forked_child_neither_uses_nor_ends_the_sessions_of_its_parent(postgres_url, admin):
    said = script(
        """
    import psycopg
    def backends():
        with psycopg.connect(sys.argv[1]) as c:
            return set(c.execute("SELECT pid FROM pg_stat_activity WHERE application_name LIKE "
                "'pulsed/%' AND datname = current_database()").fetchall())
    async def main():
        await store.submit(job())
        run = lambda: run_blocking(store.submit(job()))
        await asyncio.to_thread(run)
        before = backends()
        assert len(before) >= 2, before
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run()                                # a session of its own for blocking calls
                asyncio.run(store.submit(job()))     # and for a loop of its own
                run_blocking(store.aclose())
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        assert (await asyncio.to_thread(os.waitpid, pid, 0))[1] == 0
        await store.submit(job())
        await asyncio.to_thread(run)
        assert backends() == before, (backends(), before)
        await store.aclose()
        print("fine")
    asyncio.run(main())
    """,
        postgres_url,
    )
    assert said.strip() == "fine"
    [(jobs,)] = admin.execute("SELECT count(*) FROM pulse_jobs").fetchall()
    assert jobs == 6


# -- lanes -----------------------------------------------------------------------------------------


async def test_claims_have_connections_of_their_own_and_wait_for_the_disk_like_all(store, admin):
    await submitted(store)
    assignment = await claim_one(store)
    assert await store.beat([assignment.lease]) == {assignment.lease: Beat.OK}
    await store.settle([Report.of(assignment, Succeeded())])
    assert len(sessions(admin, "work")) == len(sessions(admin, "claim")) == 1
    assert len(sessions(admin)) == 4  # and one each for the heartbeat and the report
    show = a_verb("SHOW synchronous_commit")
    assert [tuple(row) for row in await store.perform(show)] == [("on",)]
    apart = Verb("claim", VerbKind.SINGLE, show.script, claim_lane=True)
    assert [tuple(row) for row in await store.perform(apart)] == [("on",)]
    urgent = Verb("beat", VerbKind.SINGLE, show.script, urgent=True)
    assert [tuple(row) for row in await store.perform(urgent)] == [("on",)]
    assert await asyncio.to_thread(lambda: run_blocking(store.perform(apart))) == [("on",)]


async def test_a_pool_of_one_is_enough_for_many_callers(postgres_url, admin):
    store = PostgresStore(postgres_url, PostgresOptions(pool_size=1))
    answers = await asyncio.gather(*(store.submit([a_job()]) for _ in range(20)))
    assert [answer.new for answer in answers] == [1] * 20
    assert len(sessions(admin, "work")) == 1
    threads = [asyncio.to_thread(lambda: run_blocking(store.submit([a_job()]))) for _ in range(8)]
    assert [answer.new for answer in await asyncio.gather(*threads)] == [1] * 8
    assert len(sessions(admin, "sync")) == 1
    await store.aclose()
    assert (await claim(store, limit=50)) != []
    await store.aclose()
    assert sessions(admin) == set()


# -- behind a pooler -------------------------------------------------------------------------------


@both_drivers
async def test_a_transaction_pooler_works_without_prepared_statements(postgres_url, admin, mode):
    async with pooled(postgres_url) as url:
        options = PostgresOptions(prepared_statements=False, retry=ONCE, dequeue_retry=ONCE)
        store = PostgresStore(url, options)

        async def call(coroutine):
            if mode == "async":
                return await coroutine
            return await asyncio.to_thread(lambda: run_blocking(coroutine))

        jobs = [a_job() for _ in range(6)]
        for job in jobs:
            assert (await call(store.submit([job]))).new == 1
        held = await call(store.claim(ALICE, "default", POLICIES, 4))
        assert len(held) == 4
        assert set((await call(store.beat([a.lease for a in held]))).values()) == {Beat.OK}
        reports = [Report.of(held[0], Failed("no")), Report.of(held[1], Succeeded())]
        assert len(await call(store.settle(reports))) == 2
        assert (await call(store.counts(JobFilter())))[Status.RUNNING] == 2
        assert len(await call(store.list_jobs(JobFilter()))) == 6
        [got] = (await call(store.get([jobs[0].id]))).values()
        assert got.submitted_at.utcoffset().total_seconds() == 0
        assert (await call(store.check()))["wake_up"] == "polling"
        local = a_verb("SHOW enable_seqscan")
        assert [tuple(row) for row in await perform(store, mode, local)] == [("off",)]
        async with store.listen(["default"], lambda _: None) as listener:
            assert not listener.healthy
        await store.aclose()


async def test_a_pooler_with_prepared_statements_is_diagnosed(postgres_url, admin):
    async with pooled(postgres_url) as url:
        store = PostgresStore(url, PostgresOptions(retry=ONCE))
        with pytest.raises(StorageError, match="startup parameter"):
            await store.submit([a_job()])
        await store.aclose()


# -- schema ----------------------------------------------------------------------------------------


async def test_stores_in_different_schemas_do_not_see_each_other(postgres_url, admin):
    one, two = (
        PostgresStore(postgres_url, PostgresOptions(schema=name)) for name in ("Pulsed_One", "two")
    )
    await submitted(one)
    assert await claim(two) == []
    assert len(await claim(one)) == 1
    assert one.channel != two.channel
    assert admin.execute("SELECT count(*) FROM pulse_jobs").fetchone() == (0,)
    admin.execute('DROP SCHEMA "Pulsed_One" CASCADE; DROP SCHEMA two CASCADE')
    with pytest.raises(SchemaError):
        await one.submit([a_job()])
    await one.aclose()
    await two.aclose()


async def test_migrations_at_once_from_pools_of_one_all_succeed(postgres_url, admin):
    """Also when one has to wait for another for longer than a statement may take."""
    options = PostgresOptions(schema="crowd", pool_size=1, statement_timeout=0.2)
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [0x70756C736564])
        stores = [PostgresStore(postgres_url, options) for _ in range(4)]
        running = [asyncio.create_task(store.submit([a_job()])) for store in stores]
        thread = asyncio.create_task(
            asyncio.to_thread(lambda: run_blocking(stores[0].submit([a_job()])))
        )
        done, _ = await asyncio.wait([*running, thread], timeout=0.5)
        assert not done
        other.rollback()
        assert [answer.new for answer in await asyncio.gather(*running, thread)] == [1] * 5
    for store in stores:
        await store.aclose()
    admin.execute("DROP SCHEMA crowd CASCADE")


async def test_without_permission_to_migrate_the_missing_tables_are_named(postgres_url):
    store = PostgresStore(postgres_url, PostgresOptions(schema="absent", migrate=False))
    with pytest.raises(SchemaError, match="no pulsed tables yet"):
        await store.submit([a_job()])
    await store.aclose()


@both_drivers
async def test_the_doctor_is_told_who_left_a_transaction_open(store, postgres_url, mode):
    with psycopg.connect(postgres_url, application_name="culprit") as other:
        other.execute("SELECT 1")
        if mode == "async":
            told = await store.check()
        else:
            told = await asyncio.to_thread(lambda: run_blocking(store.check()))
        assert f"pid {other.info.backend_pid}, culprit" in told["idle_in_transaction"]
    assert told["engine"].startswith("PostgreSQL ")
    assert told["schema"] == str(newest("postgres"))
    assert told["wake_up"] == "LISTEN/NOTIFY"
    assert told["synchronous_commit"] == "on"
    assert told["isolation"] == "read committed"
    assert all(isinstance(value, str) for value in told.values())


def test_an_app_can_give_statements_more_time(postgres_url):
    with Pulse(postgres_url, statement_timeout=90) as app:
        assert isinstance(app.store, PostgresStore)
        connection = app.store._threads._take(5.0, urgent=False)
        assert connection.execute("SHOW statement_timeout").fetchone() == ("90s",)
        connection.close()
    with pytest.raises(ConfigError, match="statement_timeout must be positive"):
        Pulse(postgres_url, statement_timeout=0).jobs.counts()


# -- what is refused ------------------------------------------------------------------------------


@both_drivers
@pytest.mark.parametrize("is_pooled", [False, True])
@pytest.mark.parametrize("jobs", [1, 2])
async def test_a_refused_enqueue_keeps_its_connection(postgres_url, admin, mode, is_pooled, jobs):
    """A new one takes longer than everything else that such a call does."""
    store = PostgresStore(postgres_url, PostgresOptions(prepared_statements=not is_pooled))

    async def submit(*batch):
        if mode == "async":
            return await store.submit(batch)
        return await asyncio.to_thread(lambda: run_blocking(store.submit(batch)))

    def opened():
        lanes = [pool._lanes[Lane.WORK].opened for pool in store._loops._kept.values()]
        return set(store._threads._opened).union(*lanes)

    await submit(a_job(key="held"))
    before = opened()
    free = a_job(key="free")
    for _ in range(3):
        batch = [free, a_job(key="held", on_duplicate="raise")][-jobs:]
        with pytest.raises(DuplicateKey):
            await submit(*batch)
        assert opened() >= before
    in_transaction = (
        "SELECT pid FROM pg_stat_activity "
        "WHERE datname = current_database() AND state LIKE 'idle in%'"
    )
    assert admin.execute(in_transaction).fetchall() == []
    assert (await submit(free, a_job())).new == 2
    assert (await submit(a_job(key="other"))).new == 1  # as the first one was sent
    assert opened() >= before
    await store.aclose()


@both_drivers
async def test_a_transaction_that_cannot_be_rolled_back_costs_its_connection(
    postgres_url, admin, mode
):
    store = PostgresStore(postgres_url)

    def script():
        yield run("SELECT 1")
        for pid in sessions(admin):
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        raise InvalidOption("refused")

    await perform(store, mode, a_verb("SELECT 1"))
    with pytest.raises(InvalidOption):
        await perform(store, mode, Verb("test", VerbKind.TRANSACTION, script))
    assert await perform(store, mode, a_verb("SELECT 1"))
    await store.aclose()


async def test_a_call_that_is_cancelled_while_it_is_rolled_back_leaves_no_session(
    postgres_url, admin, monkeypatch
):
    store = PostgresStore(postgres_url, PostgresOptions(pool_size=1))
    started = asyncio.Event()
    execute = AsyncpgConnection.execute

    async def slow(connection, sql, **options):
        if sql == ROLLBACK:
            started.set()
            sql = "SELECT pg_sleep(60)"
        return await execute(connection, sql, **options)

    def script():
        yield run("SELECT 1")
        raise InvalidOption("refused")

    monkeypatch.setattr(AsyncpgConnection, "execute", slow)
    task = asyncio.create_task(store.perform(Verb("test", VerbKind.TRANSACTION, script)))
    async with asyncio.timeout(60):
        await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.perform(a_verb("SELECT 1"))  # there is a slot
    assert len(sessions(admin)) == 1
    await store.aclose()
