"""Networks that cut, swallow, fall silent and drag between a worker and its server.

Whatever they do, nothing is lost, a worker that was given up is fenced, and nothing hangs for
longer than a keepalive.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from pulsed.batches import Limits
from pulsed.model.job import Assignment, Status
from pulsed.rpc.client import claims
from pulsed.rpc.client import store as remote_store
from pulsed.rpc.client.claims import LONGEST_GRANT
from pulsed.rpc.client.connection import RemoteOptions
from pulsed.rpc.client.store import RemoteStore
from pulsed.rpc.messages import columnar
from pulsed.rpc.server import dispatcher, wait_list
from pulsed.rpc.server.dispatcher import Dispatcher
from pulsed.rpc.server.job_stream import JobStream
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import AT_ONCE, AT_ONCE_OPTIONS
from tests.support.cutting_proxy import CuttingProxy
from tests.support.jobs import NO_WAIT, a_job, reap, row
from tests.support.servers import ServerThread
from tests.support.silent_proxy import SilentProxy
from tests.support.slow_proxy import Pace, SlowProxy
from tests.support.workers import (
    all_finished,
    finished,
    handler,
    result,
    submit,
    submit_many,
    submit_with,
    until,
    working,
)

LEASE = 1.5
KEEPALIVE = 0.4


@pytest.fixture
def server(database):
    with ServerThread(lambda: SqliteStore(database), keepalive=KEEPALIVE) as server:
        yield server


def remote(port_or_url: int | str, **options: Any) -> RemoteStore:
    url = port_or_url if isinstance(port_or_url, str) else f"pulse://127.0.0.1:{port_or_url}"
    given: Any = AT_ONCE_OPTIONS | {"keepalive": KEEPALIVE} | options
    return RemoteStore(url, RemoteOptions(**given))


class TestCuts:
    @pytest.mark.parametrize("moment", ["before", "during", "after"])
    async def test_a_report_cut_off_is_made_again_and_counts_once(self, server, near, moment):
        job_id = await submit(near, "job", n=1)

        async def job(n: int) -> str:
            return "marker-of-the-result"

        with CuttingProxy("127.0.0.1", server.server.port) as proxy:
            proxy.arm(b"marker-of-the-result", moment)
            far = remote(proxy.port)
            async with working(far, job):
                done = await finished(near, job_id)
            await far.aclose()
            assert proxy.cuts == 1
        assert (done.status, done.attempts) == (Status.SUCCEEDED, 1)
        assert await near.failures(job_id) == []

    @pytest.mark.parametrize("moment", ["before", "during", "after"])
    async def test_an_enqueue_cut_off_is_made_again_and_stored_once(self, server, near, moment):
        with CuttingProxy("127.0.0.1", server.server.port) as proxy:
            far = remote(proxy.port)
            await far.now()
            proxy.arm(b"marker-of-the-payload", moment)
            job_id, is_new = await submit_anyhow(far, "marker-of-the-payload")
            await far.aclose()
            assert proxy.cuts == 1
        assert is_new is not False  # no other call has stored it
        assert (await near.get([job_id]))[job_id].status is Status.PENDING

    async def test_jobs_lost_on_their_way_to_the_worker_are_found_and_run(self, server, near):
        """The server has claimed and sent them; the worker never got them."""
        ran: list[int] = []

        async def job(n: int) -> int:
            ran.append(n)
            return n

        with CuttingProxy("127.0.0.1", server.server.port) as proxy:
            far = remote(proxy.port)
            async with working(far, handler(job, lease=30)):
                await all_finished(near, await submit_many(near, "job", 1))
                # The next grant is the last thing that gets through.
                proxy.arm(b"", "after")
                ids = await submit_many(near, "job", 5)
                rows = await all_finished(near, ids)
            await far.aclose()
            assert proxy.cuts == 1
        assert {(row.status, row.attempts) for row in rows} == {(Status.SUCCEEDED, 1)}
        assert sorted(ran) == [0, 0, 1, 2, 3, 4]

    async def test_jobs_that_arrived_before_the_cut_stay_with_their_worker(
        self, server, near, monkeypatch
    ):
        """The server cannot know that they did; given back, they would run twice at once."""
        go, ran, cuts = asyncio.Event(), list[int](), list[JobStream]()
        write = JobStream._write

        async def cut_behind(self: JobStream, message: Any) -> None:
            await write(self, message)
            if columnar.size_of(message.batch) and not cuts:
                await until(lambda: ran)  # a cut may overtake what was written
                cuts.append(self)
                raise ConnectionResetError

        async def job(n: int) -> int:
            ran.append(n)
            await go.wait()
            return n

        monkeypatch.setattr(JobStream, "_write", cut_behind)
        job_id = await submit(near, "job", n=1)
        far = remote(server.url)
        async with working(far, handler(job, lease=30)):
            await until(lambda: cuts and cuts[0] not in server.server._streams)
            server.do(lambda it: it.dispatcher.given_back())
            assert (await row(near, job_id)).status is Status.RUNNING
            go.set()
            done = await finished(near, job_id)
        await far.aclose()
        assert (done.status, done.attempts, ran, len(cuts)) == (Status.SUCCEEDED, 1, [1], 1)


async def submit_anyhow(far: RemoteStore, marker: str) -> tuple[UUID, bool | None]:
    job = a_job(payload=f'{{"to":"{marker}"}}')
    answer = await far.submit([job])
    return job.id, answer.is_new(0)  # None if the answer of the first attempt was lost


class TestSilence:
    async def test_a_half_open_connection_is_noticed_within_its_keepalive(self, server, near):
        async def job(n: int) -> int:
            return n

        with SilentProxy(server.url) as proxy:
            far = remote(proxy.url)
            async with working(far, job):
                await all_finished(near, await submit_many(near, "job", 3))
                proxy.silence()
                began = time.monotonic()
                rows = await all_finished(near, await submit_many(near, "job", 3))
                took = time.monotonic() - began
            await far.aclose()
        assert {row.status for row in rows} == {Status.SUCCEEDED}
        assert took < 10 * KEEPALIVE  # it has 1.5 to be noticed; the machine may be slow

    async def test_a_worker_that_is_cut_off_fences_itself_before_its_lease_ends(self, server, near):
        events: list[tuple[str, float]] = []
        lease = 4 * LEASE  # it stops in good time also where the machine hangs for a second

        async def job(n: int) -> str:
            first = not events
            events.append(("started", time.monotonic()))
            if first:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    events.append(("fenced", time.monotonic()))
                    raise
            return "of another"

        with SilentProxy(server.url) as proxy:
            far = remote(proxy.url, retry=AT_ONCE)
            async with working(far, handler(job, lease=lease), drain_timeout=1):
                job_id = await submit(near, "job", n=1)
                await until(lambda: events)
                proxy.silence(also_new=True)
                silent_since = time.monotonic()
                await until(lambda: len(events) >= 2)
                assert events[1][0] == "fenced"
                assert events[1][1] - silent_since < lease
                async with working(near, handler(job, lease=lease), tick=0.1):
                    done = await finished(near, job_id)
                assert (result(done), done.attempts) == ("of another", 2)
                proxy.silence(also_new=False)  # the network is back
            await far.aclose()
        after = (await near.get([job_id]))[job_id]
        assert (after.result, after.last_worker) == (done.result, done.last_worker)

    async def test_who_does_not_want_to_be_fenced_keeps_its_job_through_a_short_silence(
        self, server, near
    ):
        go = asyncio.Event()
        started: list[int] = []

        async def job(n: int) -> int:
            started.append(n)
            await go.wait()
            return n

        with SilentProxy(server.url) as proxy:
            far = remote(proxy.url)
            async with working(far, handler(job, lease=LEASE), fence=False):
                job_id = await submit(near, "job", n=1)
                await until(lambda: started)
                proxy.silence(also_new=True)
                await asyncio.sleep(LEASE)
                proxy.silence(also_new=False)
                go.set()
                done = await finished(near, job_id)
            await far.aclose()
        assert (done.status, done.attempts) == (Status.SUCCEEDED, 1)


class TestSlowness:
    @pytest.mark.parametrize(
        "pace",
        [Pace(latency=0.03, jitter=0.06), Pace(latency=0.01, drip=1000, every=0.005)],
        ids=["late", "dripping"],
    )
    async def test_a_bad_connection_loses_and_doubles_nothing(self, server, near, pace):
        ran: list[int] = []

        async def job(n: int) -> int:
            ran.append(n)
            return n

        ids = await submit_many(near, "job", 60)
        with SlowProxy("127.0.0.1", server.server.port, pace) as proxy:
            far = remote(proxy.url)
            async with working(far, handler(job, lease=30), concurrency=30):
                rows = await all_finished(near, ids)
            await far.aclose()
        assert {(row.status, row.attempts) for row in rows} == {(Status.SUCCEEDED, 1)}
        assert sorted(ran) == list(range(60))

    async def test_large_jobs_over_a_slow_line_all_run_once(self, database, near, monkeypatch):
        """All of them together take longer than the timeout of an answer.

        A twentieth of the real sizes: 40 jobs of 50 KB at 1.6 MB/s, a part of 100 KB, and 0.8 s to
        answer a grant. Only the first claim knows nothing of their size, and claims too many.
        """
        ran: list[int] = []
        given_back: Counter[UUID] = Counter()

        async def job(n: int, text: str) -> int:
            ran.append(n)
            return n

        give_back = Dispatcher.give_back

        def counted(self: Dispatcher, claimed: list[Assignment]) -> None:
            given_back.update(each.job_id for each in claimed)
            give_back(self, claimed)

        monkeypatch.setattr(Dispatcher, "give_back", counted)
        for module in (dispatcher, wait_list):
            monkeypatch.setattr(module, "PART", Limits(5_000, 100_000))
        monkeypatch.setattr(claims, "LONGEST_GRANT", 0.8)
        monkeypatch.setattr(remote_store, "LONGEST_REPORT", 0.8)
        text = "x" * 50_000
        ids = [await submit_with(near, "job", {}, n=n, text=text) for n in range(40)]
        pace = Pace(drip=16_000, every=0.01)
        with (
            ServerThread(lambda: SqliteStore(database)) as server,
            SlowProxy("127.0.0.1", server.server.port, pace) as proxy,
        ):
            far = remote(proxy.url, keepalive=30)
            async with working(far, handler(job, lease=30), concurrency=40):
                rows = await all_finished(near, ids)
            await far.aclose()
        assert {(row.status, row.attempts) for row in rows} == {(Status.SUCCEEDED, 1)}
        assert sorted(ran) == list(range(40))
        assert max(given_back.values(), default=0) <= 1
        assert sum(given_back.values()) < 40

    async def test_a_stream_that_only_drips_is_left_within_its_keepalive(self, server, near):
        """A byte now and then is no sign of life: the answer to a ping is."""

        async def job(n: int) -> int:
            return n

        with SlowProxy("127.0.0.1", server.server.port) as proxy:
            far = remote(proxy.url)
            async with working(far, job):
                await all_finished(near, await submit_many(near, "job", 3))
                before = proxy.accepted
                proxy.slow_down_what_is_open(Pace(drip=1, every=2.0))
                ids = await submit_many(near, "job", 3)
                # Sooner than the timeout of a grant without an answer.
                rows = await all_finished(near, ids, within=LONGEST_GRANT - 1)
                assert proxy.accepted > before
            await far.aclose()
        assert {(row.status, row.attempts) for row in rows} == {(Status.SUCCEEDED, 1)}

    async def test_a_report_under_way_for_longer_than_its_lease_is_refused(self, database, clock):
        """It arrives when another worker has done the job."""
        started: list[int] = []
        go = asyncio.Event()

        async def job(n: int) -> str:
            started.append(n)
            if len(started) == 1:
                await go.wait()
                return "of the zombie"
            return "of another"

        async def reaped() -> bool:
            """Let the lease expire. The server's watchdog may scan as well, and give it grace."""
            clock.advance(31)
            await reap(near)
            return (await row(near, job_id)).status is not Status.RUNNING

        near = SqliteStore(database, clock=clock)
        with (
            ServerThread(lambda: SqliteStore(database, clock=clock)) as server,
            SlowProxy("127.0.0.1", server.server.port) as proxy,
        ):
            far = remote(proxy.url, keepalive=60)
            job_id = await submit_with(near, "job", {"backoff": NO_WAIT}, n=1)
            async with working(far, job, fence=False, concurrency=1) as it:
                await until(lambda: started)
                proxy.hold()
                go.set()
                await until(lambda: it.worker._settler.backlog)
                await until(reaped)
                async with working(near, job):
                    done = await finished(near, job_id)
                assert (result(done), done.attempts) == ("of another", 2)
                proxy.let_go()
                await until(lambda: not it.worker._settler.backlog)
            await far.aclose()
        assert await row(near, job_id) == done
        await near.aclose()
