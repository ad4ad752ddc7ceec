"""``around_enqueue``: context managers around enqueues."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from pulsed import Context, Pulse
from pulsed.engine.enqueuing import OutgoingJob
from pulsed.errors import ConfigError, InvalidOption, PulsedError
from pulsed.handler.options import MOST_HEADERS
from tests.support.arounds import ended

seen: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def tenant(jobs: Sequence[OutgoingJob]) -> Iterator[None]:
    for job in jobs:
        job.headers["tenant"] = f"{job.topic} of {job.queue}"
    yield
    seen.append(f"stored {len(jobs)}")


async def test_around_enqueue_may_add_headers_however_a_job_is_enqueued(app: Pulse):
    @app.job(queue="q")
    async def work(n: int) -> str:
        return ""

    app.around_enqueue(tenant)
    jobs = [
        await work.aenqueue(1),
        *await work.aenqueue_many([(2,), (3,)]),
        await app.aenqueue("work", {"n": 4}),
        await asyncio.to_thread(work.enqueue, 5),
        await work.using(headers={"own": "yes"}).aenqueue(6),
    ]
    assert seen == ["stored 1", "stored 2", "stored 1", "stored 1", "stored 1"]
    for job in jobs:
        assert job.headers["tenant"] == "work of q", "without reading it back"
        await job.arefresh()
        assert job.headers["tenant"] == "work of q"
    assert jobs[-1].headers["own"] == "yes"


async def test_around_enqueue_surrounds_a_fan_out(app: Pulse):
    @app.job
    async def child(ctx: Context, n: int) -> str:
        return ctx.headers["tenant"]

    @app.job
    async def parent(ctx: Context) -> list[str]:
        return (await ctx.fan_out([child.bind(1), child.bind(2)])).values

    app.around_enqueue(tenant)
    job = await ended(app, await parent.aenqueue())
    assert await job.aresult() == ["child of default"] * 2


async def test_around_enqueue_surrounds_a_schedules_run_by_hand(app: Pulse):
    @app.job
    async def work() -> None: ...

    app.around_enqueue(tenant)
    await app.schedules.aput("nightly", work.bind(), cron="0 3 * * *")
    assert (await app.schedules.arun_now("nightly")).headers == {"tenant": "work of default"}


async def test_an_enqueue_that_fails_passes_through_around_enqueue(app: Pulse):
    @app.job
    async def work() -> None: ...

    @app.around_enqueue
    def note(jobs: Sequence[OutgoingJob]) -> Iterator[None]:
        try:
            yield
        except PulsedError:
            seen.append("failed")
            raise

    @app.around_enqueue
    def too_many(jobs: Sequence[OutgoingJob]) -> Iterator[None]:
        jobs[0].headers.update({str(n): "" for n in range(MOST_HEADERS + 1)})
        yield

    with pytest.raises(InvalidOption, match="headers"):
        await work.aenqueue()
    assert seen == ["failed"]
    assert await app.jobs.alist() == []


async def test_around_enqueue_cannot_hide_that_nothing_was_stored(app: Pulse):
    @app.job
    async def work() -> None: ...

    @app.around_enqueue
    def forgive(jobs: Sequence[OutgoingJob]) -> Iterator[None]:
        with contextlib.suppress(Exception):
            yield

    with pytest.raises(ConfigError, match="caught the error"):
        await work.using(conn=object()).aenqueue()


def test_around_enqueue_is_plain():
    async def wait(jobs: Sequence[OutgoingJob]) -> AsyncIterator[None]:
        yield

    with pytest.raises(ConfigError, match="takes a plain function"):
        Pulse("sqlite://").around_enqueue(wait)
