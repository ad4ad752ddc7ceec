"""The jobs of a run, of every kind, and what they tell the run about themselves."""

from __future__ import annotations

import asyncio
from typing import Any

from pulsed import Backoff, Context, Limit, Pulse, Snooze, WaitTimeout
from pulsed.errors import SignalTimeout
from pulsed.handler.registry import Registry
from tests.simulation.event_loop import CURRENT

LEASE = 6.0


class _StoreOfProcess:
    """The store of whichever process calls: the app below is that of all of them."""

    def __getattr__(self, name: str) -> Any:
        process: Any = CURRENT.get()
        return getattr(process.store, name)


here: Any = _StoreOfProcess()
app = Pulse.over(here, "sqlite://")
sturdy: Any = {"lease": LEASE, "max_attempts": 40, "backoff": Backoff.fixed(0.5)}


def began(ctx: Context) -> None:
    """Tell the run that a handler was called."""
    process: Any = CURRENT.get()
    process.run.began(ctx)


def stepped(ctx: Context, step: str) -> None:
    """Tell the run that a step's function was called."""
    process: Any = CURRENT.get()
    process.run.stepped(ctx, step)


@app.job(**sturdy)
async def plain(ctx: Context, n: int) -> int:
    began(ctx)
    return n


@app.job(**sturdy)
async def pausing(ctx: Context, n: int) -> int:
    began(ctx)
    await asyncio.sleep(0.5 * (n % 7))
    return n


@app.job(**sturdy)
async def long(ctx: Context, n: int) -> int:
    """Takes longer than its lease: heartbeats keep it."""
    began(ctx)
    await asyncio.sleep(1.4 * LEASE)
    return n


@app.job(**{**sturdy, "max_attempts": 60})
async def flaky(ctx: Context, n: int) -> int:
    began(ctx)
    if ctx.attempt < 3:
        raise ConnectionError("not yet")
    return n


@app.job(**{**sturdy, "max_attempts": 3})
async def hopeless(ctx: Context, n: int) -> int:
    began(ctx)
    raise ValueError(f"{n} never works")


@app.job(**sturdy)
async def snoozing(ctx: Context, n: int) -> int:
    began(ctx)
    if ctx.lease_token < 3:
        raise Snooze(1.0)
    return n


@app.job(**sturdy, key="one-{n}")
async def unique(ctx: Context, n: int) -> int:
    began(ctx)
    await asyncio.sleep(0.5)
    return n


@app.job(**sturdy, limit=Limit("shared", running=2))
async def limited(ctx: Context, n: int) -> int:
    began(ctx)
    await asyncio.sleep(1.5)
    return n


@app.job(**sturdy, sequential=True)
async def ordered(ctx: Context, n: int) -> int:
    began(ctx)
    await asyncio.sleep(1.0)
    return n


@app.job(**sturdy)
async def scheduled(ctx: Context) -> None:
    began(ctx)


async def first(ctx: Context, n: int) -> int:
    stepped(ctx, "first")
    await asyncio.sleep(0.1)
    return n


async def second(ctx: Context, n: int) -> int:
    stepped(ctx, "second")
    return n + 1


@app.job(**sturdy)
async def steps(ctx: Context, n: int) -> int:
    began(ctx)
    one = await ctx.step(lambda: first(ctx, n), name="first")
    await ctx.sleep(1.5)
    return int(one) + int(await ctx.step(lambda: second(ctx, n), name="second"))


@app.job(**sturdy)
def blocking(ctx: Context, n: int) -> int:
    """Runs in a thread."""
    began(ctx)
    return n


def in_thread(ctx: Context, n: int) -> int:
    stepped(ctx, "in_thread")
    return n


@app.job(**sturdy)
async def plain_step(ctx: Context, n: int) -> int:
    began(ctx)
    return await ctx.step(lambda: in_thread(ctx, n), name="in_thread")


async def write(connection: Any, ctx: Context, n: int) -> int:
    stepped(ctx, "write")
    effect = ctx.job_id.bytes, ctx.lease_token
    connection.execute("INSERT INTO effects VALUES (?, ?)", effect)
    await asyncio.sleep(0.1 * (n % 4))
    return n


def write_plainly(connection: Any, ctx: Context, n: int) -> int:
    stepped(ctx, "write_plainly")
    effect = ctx.job_id.bytes, ctx.lease_token
    connection.execute("INSERT INTO effects VALUES (?, ?)", effect)
    return n


@app.job(**sturdy)
async def transactional(ctx: Context, n: int) -> int:
    """Has an effect in each of its two steps, by the transaction that stores the step."""
    began(ctx)
    await ctx.step(write, ctx, n, name="write", tx=True)
    return await ctx.step(write_plainly, ctx, n, name="write_plainly", tx=True)


def emitted(n: int) -> int:
    """Return how many items a run of the job below emits."""
    return n % 5 + 1


@app.job(**sturdy)
async def emitting(ctx: Context, n: int) -> int:
    began(ctx)
    for item in range(emitted(n)):
        await ctx.aemit(item)
        await asyncio.sleep(0.2 * (n % 2))
    return n


@app.job(**sturdy)
async def approval(ctx: Context, n: int) -> str:
    began(ctx)
    try:
        return str(await ctx.wait_signal("go", str, timeout=12.0))
    except SignalTimeout:
        return "too late"


@app.job(**{**sturdy, "max_attempts": 2})
async def child(ctx: Context, n: int) -> int:
    began(ctx)
    await asyncio.sleep(0.1 * (n % 3))
    if n % 5 == 4:
        raise ValueError("a child that fails")
    return n


@app.job(**sturdy)
async def parent(ctx: Context, n: int) -> int:
    began(ctx)
    done = await ctx.fan_out([child.bind(each) for each in range(n % 4 + 2)])
    return len(done.values)


@app.job(**sturdy)
async def awaiting(ctx: Context, n: int) -> str:
    """Waits for a job of another family."""
    began(ctx)
    try:
        await ctx.fan_out([pausing.bind(n), plain.bind(n)], timeout=10.0)
    except WaitTimeout:
        return "too late"
    return "done"


KINDS: dict[Any, int] = {
    plain: 6,
    pausing: 4,
    long: 4,
    flaky: 3,
    hopeless: 1,
    snoozing: 2,
    unique: 4,
    limited: 5,
    ordered: 4,
    blocking: 3,
    steps: 3,
    plain_step: 2,
    transactional: 4,
    emitting: 3,
    approval: 2,
    parent: 5,
    awaiting: 1,
}
EMITTING = emitting.topic
far_registry = Registry()
"""The handlers of a worker that reaches the jobs through a server."""
for _handler in app.registry:
    if _handler.topic != transactional.topic:
        far_registry.add(_handler)
MAY_FAIL = {hopeless.topic, child.topic, parent.topic}
"""The topics whose jobs may end as dead letters; all others succeed, or are cancelled."""
LIMITS = {limited.topic: 2, ordered.topic: 1}
"""How many of a topic's jobs may run at once."""
