"""Calls that must pass both type checkers, with the types they must give."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from pulsed import (
    Backoff,
    Call,
    Context,
    FanOut,
    Job,
    JobType,
    Pulse,
    RetryPolicy,
    Router,
    Status,
    collect_all,
    testing,
    threshold,
)
from pulsed.client.jobtype import SyncJobType
from pulsed.model.page import Counts, Page

app = Pulse("sqlite:///jobs.db", retry_attempts=10)
router = Router()


@app.job
async def send(to: str, subject: str = "hi", *, copies: int = 1) -> str:
    return f"{to}{subject}{copies}"


@app.job(max_attempts=5, backoff=Backoff.exponential(), timeout=30, lease=30, queue="mail")
def add(a: int, b: int) -> int:
    return a + b


@router.job
async def order(ctx: Context, order_id: int) -> bool:
    return ctx.attempt > order_id


@router.job(timeout=timedelta(minutes=1))
def plain_order(ctx: Context, order_id: int) -> float:
    return ctx.attempt / order_id


@app.job
def nothing() -> None: ...


@app.job
async def tick(ctx: Context) -> int:
    return ctx.attempt


@app.job
def untyped(first, second=2):  # type: ignore[no-untyped-def]
    return first


@app.job
async def anything(first: Any, second: int) -> str:
    return f"{first}{second}"


def enqueues() -> None:
    assert_type(send.enqueue("ada"), Job[str])
    assert_type(send.enqueue("ada", subject="x", copies=3), Job[str])
    assert_type(send.enqueue(to="ada").result(timeout=5), str)
    assert_type(add.enqueue(1, b=2).result(), int)
    assert_type(nothing.enqueue().result(), None)
    assert_type(order.enqueue(7).result(), bool)
    assert_type(order.enqueue(order_id=7), Job[bool])
    assert_type(plain_order.enqueue(7), Job[float])
    assert_type(tick.enqueue(), Job[int])
    anything.enqueue("whatever", second=1)  # mypy has no type for it, pyright has
    untyped.enqueue(1, second="x")


def options() -> None:
    urgent = add.using(delay=60, priority=10, conn=object(), tags=["a"], headers={"k": "v"})
    assert_type(urgent.enqueue(1, 2), Job[int])
    add.using(at=datetime.now(UTC), queue="q", max_attempts=3, backoff=Backoff.linear(30))
    add.using(delay=timedelta(minutes=1), timeout=1.5, lease=10).bind(1, 2)


def bulk() -> None:
    assert_type(add.bind(1, 2), Call[int])
    assert_type(add.enqueue_many([add.bind(1, 2), (3, 4)]), list[Job[int]])
    for job_id in add.enqueue_iter(((n, n) for n in range(10)), batch=5):
        assert_type(job_id, UUID)


async def many(rows: list[tuple[int, int]], untyped_rows: list[tuple[Any, ...]]) -> None:
    assert_type(add.enqueue_many(rows), list[Job[int]])
    assert_type(add.enqueue_many((n, n) for n in range(3)), list[Job[int]])
    assert_type(add.enqueue_many([add.bind(1, b=2)]), list[Job[int]])
    assert_type(send.enqueue_many([("a",), ("b",)]), list[Job[str]])
    assert_type(send.enqueue_many([("a", "b")]), list[Job[str]])
    assert_type(nothing.enqueue_many([()] * 3), list[Job[None]])
    assert_type(order.enqueue_many([(7,)]), list[Job[bool]])
    assert_type(await order.aenqueue_many([(7,)]), list[Job[bool]])
    assert_type(wide.enqueue_many([(1, 2, 3, 4, 5, "six")]), list[Job[int]])
    add.enqueue_many(untyped_rows)
    untyped.enqueue_many([(1, 2)])
    anything.enqueue_many([("whatever", 1)])


def schedules() -> None:
    app.schedule("nothing", nothing, every=60)
    app.schedule("ticks", tick, cron="@daily")
    app.schedule("optional", report, cron="@daily")
    app.schedule("sums", add.bind(1, 2), every=60)
    app.schedule("mails", "send", payload={"to": "ada"}, every=60)


@app.schedule("reports", every=60)
@app.job
def report(day: str = "today") -> str:
    return day


@app.job
def wide(a: int, b: int, c: int, d: int, e: int, f: str) -> int:
    return a + b + c + d + e + len(f)


async def enqueues_async(source: AsyncIterator[tuple[int, int]]) -> None:
    assert_type(await send.aenqueue("ada", copies=2), Job[str])
    assert_type(await (await order.aenqueue(1)).aresult(), bool)
    assert_type(await add.aenqueue_many([(1, 2)]), list[Job[int]])
    async for job_id in add.aenqueue_iter(source):
        assert_type(job_id, UUID)


async def calls(ctx: Context) -> None:
    assert_type(add(1, b=2), int)
    assert_type(await send("ada"), str)
    assert_type(await order(ctx, 1), bool)
    assert_type(plain_order(ctx, 1), float)


async def charge(order_id: int, cents: int = 100) -> str:
    return f"{order_id}{cents}"


def weigh(order_id: int) -> float:
    return order_id / 2


async def write(connection: Any, order_id: int) -> bool:
    return connection is not None and order_id > 0


@app.step
async def helper(a: int, *, b: str = "") -> str:
    return f"{a}{b}"


@router.step(name="other", retry=3, timeout=5)
async def other_helper(a: int) -> int:
    return a


@app.step(tx=True)
async def writes(connection: Any, a: int) -> float:
    return connection is not None and a / 2


@app.job(determinism="warn", keep_steps=False)
async def workflow(ctx: Context, job: Job[int], job_id: UUID) -> None:
    assert_type(await ctx.step(charge, 1), str)
    assert_type(await ctx.step(charge, 1, 2, name="again", retry=3, timeout=5), str)
    assert_type(await ctx.step(weigh, 1, retry=RetryPolicy(max_attempts=2)), float)
    assert_type(await ctx.step(write, 1, tx=True), bool)
    await ctx.sleep(timedelta(hours=1))
    await ctx.sleep_until(datetime.now(UTC), name="morning")
    assert_type(await ctx.wait_signal("approved", bool, timeout=60), bool)
    assert_type(await ctx.wait_signal("anything"), Any)
    async for number in ctx.signals("number", int):
        assert_type(number, int)
    assert_type(await ctx.wait_for(job), int)
    assert_type(await ctx.wait_for(job_id, timeout=5), Any)
    sums = await ctx.fan_out([add.bind(1, 2)], strategy=threshold(0.5), timeout=60)
    assert_type(sums, FanOut[int])
    assert_type(sums.values, list[int])
    await ctx.fan_out([send.bind("a")], strategy=collect_all, cancel_on_parent_failure=False)
    assert_type(await ctx.version("change", 1, 2), int)
    assert_type(await helper(1, b="x"), str)
    assert_type(await other_helper(1), int)
    assert_type(await writes(1), float)


def operates(job_id: UUID) -> None:
    app.signal(job_id, "approved", True)
    send.enqueue("x").signal("approved")
    assert_type(app.jobs.retry(job_id, fresh=True), Status)
    assert_type(app.enqueue("send", {"to": "ada"}, delay=5, unknown=True), Job[Any])
    assert_type(app.jobs.get(job_id).attempts, int)
    assert_type(app.jobs.list(status="DEAD_LETTERED", limit=5), Page[Job[Any]])
    assert_type(app.jobs.list(status=[Status.PENDING, "RUNNING"]), Page[Job[Any]])
    assert_type(app.jobs.counts(queue="mail"), Counts)
    assert_type(app.jobs.retry_matching(topic="send"), int)
    assert_type(app.jobs.cancel(str(job_id)), Status)
    assert_type(send.enqueue("x").refresh().status, Status)


def passes_job_types_on(job: JobType[[int, int], int], other: SyncJobType[..., Any]) -> None:
    job.enqueue(1, 2)
    other.enqueue("anything")


passes_job_types_on(add, plain_order)


@app.lifespan
async def around(app: Pulse) -> AsyncIterator[None]:
    yield


def runs() -> None:
    app.run(concurrency=10, queues=["a", "b"], poll=0.5)
    app.run(queues="mail", drain_timeout=None)
    app.run(queues={"mail": 2.0, "default": 1.0})
    app.include(router, prefix="shop.")
    with app:
        pass


async def tests() -> None:
    with testing.override(app, "sqlite://", clock=testing.Clock()) as sandbox:
        assert_type(sandbox.assert_enqueued(add, a=1), Job[int])
        assert_type(sandbox.assert_enqueued("add"), Job[Any])
        assert_type(sandbox.enqueued(add), list[Job[int]])
        assert_type(sandbox.drain(until=timedelta(days=1), lose_lease_of=add), list[testing.Ran])
        assert_type(await sandbox.adrain(crash="after_every_checkpoint"), list[testing.Ran])
    async with testing.override(app) as other:
        other.clock.advance("7 days")
