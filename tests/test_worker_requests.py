"""Workers that an operator drains or stops from afar."""

import asyncio
import threading
from uuid import UUID, uuid4

import pytest

from pulsed import Pulse
from pulsed.engine.worker.request_watch import RequestWatch
from pulsed.engine.worker.worker import Exit
from pulsed.errors import InvalidOption, WorkerNotFound
from pulsed.model.audit import Operator
from pulsed.model.job import Status, WorkerInfo, WorkerRequest
from pulsed.store.base import Store
from tests.support.backends import Backend
from tests.support.workers import finished, in_status, row, submit, until, working

ADA = Operator("ada")


def info(worker_id: UUID, host: str = "web-1", pid: int = 1) -> WorkerInfo:
    return WorkerInfo(id=worker_id, host=host, pid=pid, queues=("default",), topics=(), slots=1)


async def test_a_request_is_kept_until_the_worker_learns_it(store: Store):
    one, other = uuid4(), uuid4()
    assert await store.announce(info(one)) is None
    assert await store.announce(info(other)) is None
    (asked,) = await store.ask_workers([one, uuid4()], WorkerRequest.DRAIN, by=ADA)
    assert (asked.id, asked.request) == (one, "drain")
    assert await store.announce(info(one)) is WorkerRequest.DRAIN
    assert await store.announce(info(one)) is WorkerRequest.DRAIN
    assert await store.announce(info(other)) is None
    assert {each.id: each.request for each in await store.workers()} == {one: "drain", other: None}


async def test_a_worker_that_is_to_stop_is_not_asked_to_drain_instead(store: Store):
    one = uuid4()
    await store.announce(info(one))
    await store.ask_workers([one], WorkerRequest.STOP)
    await store.ask_workers([one], WorkerRequest.DRAIN)
    assert await store.announce(info(one)) is WorkerRequest.STOP


async def test_a_request_is_in_the_audit_log(store: Store):
    one = uuid4()
    await store.announce(info(one, pid=7))
    await store.ask_workers([one], WorkerRequest.DRAIN, by=ADA)
    await store.ask_workers([uuid4()], WorkerRequest.STOP, by=ADA)  # there is none
    (entry,) = await store.audit_log()
    assert (entry.act, entry.affected, entry.detail) == ("drain worker", 1, "web-1:7")


async def test_a_drained_worker_finishes_what_runs_and_claims_nothing_more(store: Store):
    begun, release = threading.Event(), threading.Event()

    def long() -> str:
        begun.set()
        release.wait(60)
        return "done"

    first = await submit(store, "long")
    async with working(store, long, tick=0.05, concurrency=1) as it:
        await until(begun.is_set)
        await until(store.workers)
        await store.ask_workers([it.worker.id], WorkerRequest.DRAIN)
        await until(lambda: it.worker.state == "draining")
        second = await submit(store, "long")
        release.set()
        assert await it.ended() is Exit.DRAINED
    assert it.worker.request is WorkerRequest.DRAIN
    assert (await finished(store, first)).status is Status.SUCCEEDED
    assert (await row(store, second)).status is Status.PENDING
    assert await store.workers() == []


async def test_a_stopped_worker_hands_back_what_runs(store: Store):
    async def endless() -> None:
        await asyncio.Event().wait()

    job_id = await submit(store, "endless")
    async with working(store, endless, tick=0.05) as it:
        await in_status(store, job_id, Status.RUNNING)
        await until(store.workers)
        await store.ask_workers([it.worker.id], WorkerRequest.STOP)
        assert await it.ended() is Exit.ABORTED
    job = await row(store, job_id)
    assert (job.status, job.attempts) == (Status.PENDING, 0)


@pytest.mark.embedded("a server gives no hints about workers")
async def test_a_hint_tells_before_the_next_presence_tick(store: Store):
    async def quick() -> None: ...

    async with working(store, quick) as it:  # whose next tick is in an hour
        await until(store.workers)
        await store.ask_workers([it.worker.id], WorkerRequest.DRAIN)
        assert await it.ended() is Exit.DRAINED


async def test_a_watch_of_a_worker_without_a_row_or_a_request_does_nothing(store: Store):
    heard: list[WorkerRequest] = []
    worker_id = uuid4()
    watch = RequestWatch(store, worker_id, heard.append)
    await watch.tick()
    await store.announce(info(worker_id))
    await watch.tick()
    assert heard == []


class TestChoosing:
    async def test_by_id_prefix_or_place(self, app: Pulse):
        one, other = UUID(int=1 << 100), UUID(int=2 << 100)
        await app.store.announce(info(one, "web-1", 11))
        await app.store.announce(info(other, "web-2", 12))
        (asked,) = await app.workers.adrain(str(one)[:8])
        assert asked.id == one
        (asked,) = await app.workers.astop("web-2:12")
        assert asked.id == other
        assert [each.request for each in await app.workers.alist()] == ["drain", "stop"]
        assert [each.id for each in await app.workers.adrain(other, other)] == [other]

    async def test_by_host_or_all(self, app: Pulse):
        for number, host in enumerate(["web-1", "web-1", "web-2"]):
            await app.store.announce(info(uuid4(), host, number))
        assert len(await app.workers.adrain(host="web-1")) == 2
        assert await app.workers.adrain(host="web-9") == []
        assert len(await app.workers.adrain(everywhere=True)) == 3

    @pytest.mark.embedded("about the age of rows")
    async def test_silent_workers_are_only_asked_by_name(self, app: Pulse, backend: Backend):
        silent = uuid4()
        await app.store.announce(info(silent))
        earlier = {"sqlite": "60000000", "postgres": "interval '1 minute'"}[backend.engine]
        backend.execute(f"UPDATE pulse_workers SET last_beat = last_beat - {earlier}")
        assert await app.workers.adrain(everywhere=True) == []
        assert len(await app.workers.adrain(silent)) == 1

    async def test_none_several_and_nothing_are_refused(self, app: Pulse):
        for number in range(2):
            await app.store.announce(info(UUID(int=number + 1)))
        with pytest.raises(WorkerNotFound, match="There is no worker 'abc'"):
            await app.workers.adrain("abc")
        with pytest.raises(WorkerNotFound, match="2 workers are meant by '0000'"):
            await app.workers.adrain("0000")
        for nothing in ((), ("",)):
            with pytest.raises((InvalidOption, WorkerNotFound)):
                await app.workers.adrain(*nothing)
        with pytest.raises(InvalidOption, match="Say which workers"):
            await app.workers.adrain("0000", everywhere=True)
        assert {each.request for each in await app.workers.alist()} == {None}

    def test_blocking(self, app: Pulse):
        assert app.workers.list() == []
        assert app.workers.drain(everywhere=True) == []
        assert app.workers.stop(everywhere=True) == []
