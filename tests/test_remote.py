"""What is special about a store at the other end of a network; the rest all stores share."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

import msgspec
import pytest

from pulsed import Pulse
from pulsed.errors import (
    AccessDenied,
    ConfigError,
    InvalidPayload,
    InvalidURL,
    StorageFull,
    TransientStorageError,
)
from pulsed.model.job import JobFilter, Lease, PayloadField, Status
from pulsed.model.outcome import Report, Succeeded
from pulsed.rpc.address import ServerAddress
from pulsed.rpc.client import claim_stream as claims
from pulsed.rpc.client import store as remote
from pulsed.rpc.client.store import RemoteStore
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages.contract import METHODS
from pulsed.rpc.server.access import Caller, unauthenticated
from pulsed.rpc.server.authentication import Authenticator
from pulsed.rpc.server.services.work import WorkService
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from tests.support.apps import declare_add, work_off
from tests.support.backends import QUICK
from tests.support.commands import until as until_true
from tests.support.jobs import (
    EVERYTHING,
    POLICIES,
    TOPIC,
    a_job,
    claim_one,
    row,
    running,
    submitted,
)
from tests.support.servers import ServerThread
from tests.support.workers import (
    all_finished,
    in_status,
    submit_many,
    until,
    working,
)

SOME_OTHERS = 6
"""Descriptors that the rest of the process may open: the server's own, in a thread."""


@pytest.fixture
def store(far):
    return far


class TestAddresses:
    def test_a_url_names_one_server_or_several(self):
        assert ServerAddress.parse("pulse://a:1").hosts == ("a:1",)
        assert ServerAddress.parse("pulse://a,b:2,[::1]").hosts == ("a:50051", "b:2", "[::1]:50051")
        assert not ServerAddress.parse("pulse://a").tls
        assert ServerAddress.parse("pulses://a").tls

    def test_it_carries_the_token_and_the_files(self, monkeypatch):
        address = ServerAddress.parse("pulses://me:s%2Fecret@a?ca=/ca.pem&cert=/c.pem&key=/k.pem")
        assert address.token == "s/ecret"
        assert (address.ca, address.cert, address.key) == ("/ca.pem", "/c.pem", "/k.pem")
        monkeypatch.setenv("PULSED_TOKEN", "from-env")
        assert ServerAddress.parse("pulses://a").token == "from-env"

    @pytest.mark.parametrize(
        "url, problem",
        [
            ("pulse://", "names no server"),
            ("pulse://host:port", "names no server"),
            ("pulse://[::1", "is not understood"),
            ("pulse://[]:1", "is not understood"),
            ("pulse://host:70000", "names no server"),
            ("pulse://host/path", "nothing in it"),
            ("pulse://host?colour=red", "'colour'"),
            ("pulses://host?cert=x", "both cert= and key="),
            ("pulses://me@host", "no token"),
        ],
    )
    def test_others_are_refused(self, url, problem):
        with pytest.raises(InvalidURL, match=problem):
            ServerAddress.parse(url)

    def test_a_token_does_not_go_over_a_network_in_the_clear(self):
        with pytest.raises(ConfigError, match="in the clear"):
            ServerAddress.parse("pulse://me:secret@example.org")
        assert ServerAddress.parse("pulse://me:secret@example.org?plaintext=yes").token == "secret"
        assert ServerAddress.parse("pulse://me:secret@127.0.0.1").token == "secret"

    def test_a_refusal_keeps_the_token_to_itself(self):
        with pytest.raises(ConfigError) as refused:
            ServerAddress.parse("pulse://me:secret@example.org")
        assert "secret" not in str(refused.value)


class TestErrors:
    async def test_a_server_that_is_not_there_is_a_database_that_is_away(self):
        store = RemoteStore("pulse://127.0.0.1:1", QUICK)
        with pytest.raises(TransientStorageError, match=r"127\.0\.0\.1:1"):
            await store.now()
        with pytest.raises(TransientStorageError):
            await asyncio.to_thread(run_blocking, store.now())
        with pytest.raises(TransientStorageError):
            await store.claim(uuid4(), "default", POLICIES, 1)
        assert store.doubtful_claims > 0
        await store.aclose()

    async def test_the_servers_error_is_raised_here(self, server, store, monkeypatch):
        async def full(jobs):
            raise StorageFull("no room left")

        monkeypatch.setattr(server.store, "submit", full)
        with pytest.raises(StorageFull, match="no room left"):
            await store.submit([a_job()])

    async def test_what_only_the_server_knows_is_checked_there(self, store):
        with pytest.raises(InvalidPayload, match="JSON object"):
            await store.submit([a_job(payload="[1]")])
        with pytest.raises(InvalidPayload, match="not JSON"):
            await store.submit([a_job(payload="{nonsense")])
        assert sum((await store.counts(EVERYTHING)).values()) == 0

    async def test_a_batch_too_large_for_one_message_says_so(self, store, monkeypatch):
        monkeypatch.setattr(remote, "LARGEST_MESSAGE", 1000)
        with pytest.raises(InvalidPayload, match="several batches"):
            await store.submit([a_job() for _ in range(100)])

    def test_a_callers_transaction_is_refused_with_the_reason(self, server):
        with Pulse(server.url) as app:
            add = declare_add(app)
            with pytest.raises(ConfigError, match="your transaction is in this process"):
                add.using(conn=object()).enqueue(1)

    async def test_a_refused_caller_is_told(self, database):
        class FailingAuthenticator(Authenticator):
            async def authenticate(self, context):
                raise unauthenticated("who are you?")

        with ServerThread(
            lambda: SqliteStore(database), authenticator=FailingAuthenticator()
        ) as server:
            store = RemoteStore(server.url, QUICK)
            with pytest.raises(AccessDenied, match="who are you"):
                await store.now()
            with pytest.raises(AccessDenied):
                await store.claim(uuid4(), "default", POLICIES, 1)
            await store.aclose()


class TestRepetition:
    """A call whose answer got lost is retried, and gets the same answer."""

    @pytest.fixture
    def deaf(self, store, monkeypatch):
        """Lose the first answer."""

        def start():
            channels = store.connection.here().channels
            call = channels.call
            lost: list[str] = []

            def lossy(host, method):
                async def ask(*args, **options):
                    answer = await call(host, method)(*args, **options)
                    if not lost:
                        lost.append(method.name)
                        raise TransientStorageError("the answer was lost")
                    return answer

                return ask

            monkeypatch.setattr(channels, "call", lossy)

        return start

    async def test_a_replay(self, store, deaf):
        job_id = await submitted(store)
        await store.cancel([job_id])
        deaf()
        assert await store.replay([job_id]) == {job_id: (True, Status.PENDING)}

    async def test_a_delete(self, store, deaf):
        job_id = await submitted(store)
        deaf()
        assert await store.delete([job_id]) == {job_id: (True, Status.PENDING)}

    async def test_a_settle(self, store, deaf):
        run = await running(store)
        deaf()
        assert await store.settle([Report.of(run, Succeeded("1"))]) == {run.lease}


class TestServers:
    async def test_another_server_is_asked_when_one_is_gone(self, database):
        first = ServerThread(lambda: SqliteStore(database))
        second = ServerThread(lambda: SqliteStore(database))
        store = RemoteStore(f"pulse://{first.host},{second.host}", QUICK)
        run = await running(store)
        first.stop()
        assert await store.settle([Report.of(run, Succeeded())]) == {run.lease}
        assert (await row(store, run.job_id)).status is Status.SUCCEEDED
        second.stop()
        await store.aclose()

    async def test_a_worker_keeps_its_jobs_through_a_restart_of_the_server(self, database):
        server = ServerThread(lambda: SqliteStore(database))
        port = server.server.port
        store = RemoteStore(server.url, QUICK)
        go = asyncio.Event()
        started: list[int] = []

        async def job(n: int) -> int:
            started.append(n)
            await go.wait()
            return n

        ids = await submit_many(store, "job", 3)
        async with working(store, job):
            await until(lambda: len(started) == 3)
            server.stop()
            server = ServerThread(lambda: SqliteStore(database), listen=f"127.0.0.1:{port}")
            go.set()
            rows = await all_finished(RemoteStore(server.url), ids)
            more = await submit_many(store, "job", 3)
            rows += await all_finished(store, more)
        assert [(each.status, each.attempts) for each in rows] == [(Status.SUCCEEDED, 1)] * 6
        await store.aclose()
        server.stop()

    async def test_a_drained_server_sends_its_workers_to_another(self, database):
        first = ServerThread(lambda: SqliteStore(database))
        second = ServerThread(lambda: SqliteStore(database))
        store = RemoteStore(f"pulse://{first.host},{second.host}", QUICK)
        store.connection.endpoints._hosts[:] = [first.host, second.host]

        async def job(n: int) -> int:
            return n

        async with working(store, job):
            await all_finished(store, await submit_many(store, "job", 5))
            await until(lambda: first.server._streams)
            await asyncio.to_thread(first.drain)
            await until(lambda: second.server._streams)
            rows = await all_finished(store, await submit_many(store, "job", 5))
        assert {each.attempts for each in rows} == {1}
        second.stop()
        await store.aclose()


def test_a_forked_child_has_connections_of_its_own(server):
    with Pulse(server.url) as app:
        add = declare_add(app)
        add.enqueue(1)
        fork = multiprocessing.get_context("fork")
        children = [fork.Process(target=add.enqueue, args=(n,)) for n in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join(20)
        assert [child.exitcode for child in children] == [0, 0, 0]
        add.enqueue(2)
        assert app.jobs.counts()[Status.PENDING] == 5


def test_an_app_is_pointed_at_a_server_by_its_url_alone(server):
    with Pulse(server.url) as app:
        add = declare_add(app)
        job = add.enqueue(2, 3)
        work_off(app, job)
        assert job.result(5) == 5


def test_closed_apps_leave_no_file_descriptors(server):
    """However they were used: nothing is left to the garbage collector."""

    def blocking() -> None:
        with Pulse(server.url) as app:
            app.jobs.counts()

    def in_a_loop() -> None:
        async def use() -> None:
            async with Pulse(server.url) as app:
                await app.jobs.acounts()

        asyncio.run(use())

    def closed_after_its_loop() -> None:
        with Pulse(server.url) as app:
            asyncio.run(app.jobs.acounts())

    def has_at_most(number: int) -> bool:
        return descriptors() <= number

    def descriptors() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    for use in (blocking, in_a_loop, closed_after_its_loop):
        use()
        gc.collect()
        most = descriptors() + SOME_OTHERS
        gc.disable()
        try:
            for _ in range(20):
                use()
            until_true(partial(has_at_most, most))
        finally:
            gc.enable()


async def test_a_lease_of_nobody_is_lost(store):
    run = await claim_or_submit(store)
    stale = Lease(run.job_id, run.lease_token - 1, run.lease.worker_id)
    assert await store.settle([Report(stale, Succeeded())]) == set()


async def claim_or_submit(store):
    await submitted(store)
    return await claim_one(store)


class TestClaims:
    """The stream that a worker claims through."""

    @pytest.fixture
    async def listening(self, store):
        async with store.listen(["default"], lambda _: None):
            yield store

    async def test_those_at_once_share_one_and_none_asks_before_it_is_greeted(
        self, server, listening
    ):
        worker_id, queues = uuid4(), [f"queue-{n}" for n in range(5)]
        claims = (listening.claim(worker_id, queue, POLICIES, 1) for queue in queues)
        await asyncio.gather(*claims)
        assert len(server.server.dispatcher.streams) == 1

    async def test_a_claim_that_was_given_up_ends_the_stream(self, server, listening, monkeypatch):
        """Its answer may be in flight, and no call waits for it."""
        claim, asked = server.store.claim, asyncio.Event()
        here = asyncio.get_running_loop()

        async def slow(*args):
            here.call_soon_threadsafe(asked.set)
            await asyncio.sleep(0.2)
            return await claim(*args)

        monkeypatch.setattr(server.store, "claim", slow)
        job_id = await submitted(listening)
        claiming = asyncio.create_task(listening.claim(uuid4(), "default", POLICIES, 1))
        await asked.wait()
        claiming.cancel()
        await asyncio.wait([claiming])
        assert listening.doubtful_claims == 1
        await until(lambda: not server.server._streams)
        server.do(lambda it: it.dispatcher.given_back())
        assert (await in_status(listening, job_id, Status.PENDING)).attempts == 0

    async def test_an_offer_right_behind_a_batch_is_heard(self, listening):
        """The offer reaches the worker before it has processed the batch."""
        worker_id = uuid4()
        await listening.claim(worker_id, "default", POLICIES, 1)
        stream = listening.connection.here().streams_of(worker_id)[0]
        answer = asyncio.get_running_loop().create_future()
        stream._asked[7] = claims.Asked(stream._call, ["default"], 2, answer)
        stream._receive("", stream._call, pb.StreamJobsResponse(batch=pb.Batch(grant_id=7)))
        stream._receive("", stream._call, pb.StreamJobsResponse(offer=pb.Offer(queue="default")))
        await answer
        await asyncio.sleep(0)
        assert stream._quiet == {}  # so the next claim asks


class TestWhatErrorsSay:
    """They name the operation, as those of a database do, and no method of the contract."""

    ACTS: ClassVar[dict[str, Callable[[RemoteStore], Awaitable[object]]]] = {
        "enqueueing": lambda store: store.submit([a_job()]),
        "checking the database": lambda store: store.check(),
        "listing jobs": lambda store: store.list_jobs(EVERYTHING),
        "cancelling jobs": lambda store: store.cancel([uuid4()]),
        "retry": lambda store: store.replay([uuid4()]),
        "pausing a schedule": lambda store: store.schedules.pause("default", "report"),
        "claiming jobs": lambda store: store.claim(uuid4(), "default", POLICIES, 1),
        "listing workers": lambda store: store.workers(),
    }

    @pytest.mark.parametrize("what", ACTS)
    async def test_when_no_server_answers(self, what):
        store = RemoteStore("pulse://127.0.0.1:1", QUICK)
        with pytest.raises(TransientStorageError) as refused:
            await self.ACTS[what](store)
        assert str(refused.value).startswith(f"{what} failed: the pulsed server at 127.0.0.1:1")
        await store.aclose()

    @pytest.mark.parametrize("what", sorted(ACTS.keys() - {"claiming jobs"}))
    async def test_when_the_server_refuses(self, database, what):
        class Closed(Authenticator):
            async def authenticate(self, context: object) -> Caller:
                return Caller("nobody", frozenset())

        with ServerThread(lambda: SqliteStore(database), authenticator=Closed()) as server:
            store = RemoteStore(server.url, QUICK)
            with pytest.raises(AccessDenied) as refused:
                await self.ACTS[what](store)
            await store.aclose()
        text = str(refused.value)
        assert text.startswith(f"{what} was refused by the pulsed server at {server.host}")
        assert f": {what.capitalize()} needs the role " in text
        assert not [name for name in METHODS if f"{name} " in text]


@pytest.mark.parametrize("verb", ["list_jobs", "counts"])
async def test_an_older_server_that_ignores_a_condition_is_not_believed(
    database, monkeypatch, verb
):
    """Or a bulk act would change the jobs that it returned."""

    def without_news(message: Any) -> JobFilter:
        known = to_jobs_filter(message)
        return msgspec.structs.replace(known, payload=())

    to_jobs_filter = to.filter_of
    with ServerThread(lambda: SqliteStore(database)) as server:
        store = RemoteStore(server.url)
        await submitted(store, payload='{"user": 7}')
        newer = JobFilter(topic=TOPIC, payload=(PayloadField(("user",), 7),))
        assert await getattr(store, verb)(newer)
        monkeypatch.setattr(to, "filter_of", without_news)
        with pytest.raises(ConfigError, match="cannot search by payload: upgrade it"):
            await getattr(store, verb)(newer)
        assert await getattr(store, verb)(JobFilter(topic=TOPIC))
        await store.aclose()


async def test_an_older_server_that_lists_all_leases_makes_nobody_stop(database, monkeypatch):
    """It does not know that only the leases of cancelled jobs were asked for."""

    async def list_all(self: WorkService, request: Any, _: Caller) -> Any:
        leases = await self._store.held(UUID(request.worker_id))
        return pb.ListLeasesResponse(leases=map(to.lease_message, leases))

    monkeypatch.setattr(WorkService, "list_leases", list_all)
    with ServerThread(lambda: SqliteStore(database)) as server:
        store = RemoteStore(server.url)
        run = await running(store)
        assert await store.held(run.lease.worker_id, asked_to_stop=True) == []
        assert await store.held(run.lease.worker_id) == [run.lease]
        await store.aclose()
