"""A network that went silent: connections stay open, and no answer ever arrives on them."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from pulsed.errors import TransientStorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.model.job import Status
from pulsed.model.outcome import Beat
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres import session as postgres_session
from pulsed.store.postgres.session import Sessions
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.verbs.script import Verb, VerbKind
from tests.support.backends import PostgresBackend
from tests.support.clock import Clock
from tests.support.jobs import a_job, running
from tests.support.raw_verbs import a_verb
from tests.support.silent_proxy import SilentProxy
from tests.support.workers import finished, handler, in_status, row, submit, until, working

QUICK = RetryPolicy(initial=0.02, max=0.1)


@pytest.fixture
def proxy(postgres_url) -> Iterator[SilentProxy]:
    backend = PostgresBackend(postgres_url, Clock())
    if backend.execute("SELECT 1 WHERE to_regclass('pulse_meta') IS NOT NULL"):
        backend.empty()
    with SilentProxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy, monkeypatch):
    """A store that abandons a statement after half a second."""
    monkeypatch.setattr(Sessions, "client_timeout", lambda *_: 0.5)
    store = PostgresStore(proxy.url, PostgresOptions(retry=QUICK, dequeue_retry=QUICK))
    yield store
    await asyncio.to_thread(run_blocking, store.aclose())


async def blocking(coroutine):
    """Run as a blocking caller would; a thread that hangs must not hang the test."""
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(run_blocking(coroutine)), daemon=True)
    thread.start()
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive(), "still waiting"
    return answers[0]


async def test_a_heartbeat_is_sent_again_on_another_connection(store, proxy):
    run = await blocking(running(store))
    before = proxy.accepted
    proxy.silence()
    assert await blocking(store.beat([run.lease])) == {run.lease: Beat.OK}
    assert proxy.accepted == before + 1


async def test_a_blocking_submit_recovers_and_stores_its_job_once(store, proxy):
    await blocking(store.submit([a_job()]))
    proxy.silence()
    job = a_job()
    assert (await blocking(store.submit([job]))).new == 1
    assert set(await blocking(store.get([job.id]))) == {job.id}


@pytest.mark.parametrize("kind", [VerbKind.SINGLE, VerbKind.TRANSACTION])
async def test_silence_is_a_transient_error(store, proxy, kind):
    await blocking(store.perform(a_verb("SELECT 1")))
    proxy.silence()

    async def refused():
        with pytest.raises(TransientStorageError, match=r"no answer within 0.5 s"):
            await store.perform(a_verb("SELECT 1", kind))
        return await store.perform(a_verb("SELECT 1"))

    assert await blocking(refused()) == [(1,)]


async def test_a_statement_that_is_only_slow_is_waited_for(store, monkeypatch):
    monkeypatch.setattr(Sessions, "client_timeout", lambda *_: 10.0)
    assert await blocking(store.perform(a_verb("SELECT 1 FROM pg_sleep(0.3)"))) == [(1,)]


async def test_connecting_takes_no_longer_either(store, proxy):
    proxy.silence(also_new=True)

    async def refused():
        began = time.monotonic()
        with pytest.raises(TransientStorageError, match="timeout"):
            await store.perform(a_verb("SELECT 1"))
        return time.monotonic() - began

    assert await blocking(refused()) < 30  # 2 s are the least that libpq knows


@pytest.mark.parametrize("also_new", [False, True], ids=["opening", "connecting"])
async def test_a_heartbeat_in_an_event_loop_gives_up_in_its_time(proxy, also_new):
    """Whatever it is that gets no answer: what opens a transaction, or a new connection."""
    options = PostgresOptions(retry=RetryPolicy.disabled(), prepared_statements=False)
    store = PostgresStore(proxy.url, options)
    run = await running(store)
    if not also_new:
        await store.beat([run.lease])  # on a connection that is then open
    proxy.silence(also_new=also_new)
    began = time.monotonic()
    with pytest.raises(TransientStorageError):
        await store.beat([run.lease], within=1.5)
    # Half a second is the shortest try; without its own limit it would be 35, or 10 to connect.
    assert time.monotonic() - began < 8
    proxy.hang_up()  # a connection that is being opened is waited for
    await store.aclose()


async def test_a_worker_keeps_its_jobs(proxy, postgres_url, monkeypatch):
    """Every connection it has dies at once, as in a failover; it goes on with others."""
    real = Sessions.client_timeout
    soon = lambda sessions, verb: real(sessions, verb) if verb.urgent else 1.0  # noqa: E731
    monkeypatch.setattr(Sessions, "client_timeout", soon)
    release = asyncio.Event()
    runs = []

    async def long() -> None:
        runs.append(1)
        await release.wait()

    options = PostgresOptions(retry=QUICK, dequeue_retry=QUICK, statement_timeout=1)
    store, elsewhere = PostgresStore(proxy.url, options), PostgresStore(postgres_url)
    job_id = await submit(store, "long")
    async with working(store, handler(long, lease=3)):
        first = (await in_status(elsewhere, job_id, Status.RUNNING)).lease_until

        async def extended():
            return (await row(elsewhere, job_id)).lease_until != first

        await until(extended)  # so its heartbeats have a connection
        proxy.silence()
        first = (await row(elsewhere, job_id)).lease_until
        await until(extended)  # a heartbeat may have been answered just before
        first = (await row(elsewhere, job_id)).lease_until
        await until(extended)
        release.set()
        assert (await finished(elsewhere, job_id)).status is Status.SUCCEEDED
    assert len(runs) == 1
    await store.aclose()
    await elsewhere.aclose()


# -- how long -------------------------------------------------------------------------------------


def urgent(within=None):
    return Verb("beat", VerbKind.SINGLE, lambda: iter(()), urgent=True, within=within)  # type: ignore[arg-type,return-value]


def test_a_dead_connection_costs_a_heartbeat_only_a_part_of_its_lease():
    sessions = Sessions(PostgresOptions())
    assert sessions.client_timeout(a_verb("SELECT 1")) == 35
    assert sessions.client_timeout(urgent()) == postgres_session.URGENT_WITHIN == 5
    assert sessions.client_timeout(urgent(within=30)) == 5
    assert sessions.client_timeout(urgent(within=6)) == 2
    assert sessions.client_timeout(urgent(within=0.1)) == 0.5


async def test_a_heartbeat_knows_how_much_time_it_has(store, monkeypatch):
    run = await running(store)
    seen = []

    def note(_sessions, verb):
        seen.append((verb.name, verb.within))
        return 5.0

    monkeypatch.setattr(Sessions, "client_timeout", note)
    await blocking(store.beat([run.lease], within=12))
    assert seen == [("beat", 12)]
    await store.aclose()
