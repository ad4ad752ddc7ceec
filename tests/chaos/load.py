"""The mixed load: jobs of every temper. Each returns its number and the token of its run.

Run as ``python -m tests.chaos.load work URL``: a worker that is to be killed; or as ``serve …``,
with the arguments of ``pulsed server``.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pulsed import (
    Backoff,
    Context,
    Limit,
    NoRetry,
    Pulse,
    Router,
    Snooze,
    collect_all,
)
from pulsed.store.listener import Listener
from tests.chaos.ledger import Ledger

LEASE = 0.9
LONG_LEASE = 3.0
"""Of jobs with a limit: longer than most faults, which therefore must not cost them their slots."""
TICK = 0.3
POLL = 0.2
PR_SET_PDEATHSIG = 1
"""From the kernel's headers."""
SHARED = 3
"""Runs at once of the limit that two topics share."""
KEYS = 5
ORDERS = "orders"
"""The queue of workflows whose steps need a transaction."""
CHILDREN = 3

LEDGER, TX, PARENT = "PULSED_CHAOS_LEDGER", "PULSED_CHAOS_TX", "PULSED_CHAOS_PARENT"
DEAF, POOLED, QUEUES = "PULSED_CHAOS_DEAF", "PULSED_CHAOS_POOLED", "PULSED_CHAOS_QUEUES"

router = Router()
ledger = Ledger(os.environ.get(LEDGER, os.devnull))
sturdy: Any = {"lease": LEASE, "max_attempts": 200, "backoff": Backoff.fixed(0.05)}
fragile: Any = {**sturdy, "max_attempts": 3}
limited: Any = {**sturdy, "lease": LONG_LEASE}


def proof(ctx: Context, n: int) -> dict[str, int]:
    """Return what is stored as the result: which run made it."""
    return {"n": n, "token": ctx.lease_token}


# -- plain jobs -----------------------------------------------------------------------------------


@router.job(**sturdy)
async def quick(ctx: Context, n: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        return proof(ctx, n)


@router.job(**sturdy)
def plain(ctx: Context, n: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        return proof(ctx, n)


@router.job(**sturdy)
async def sleeping(ctx: Context, n: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        await asyncio.sleep(random.uniform(0.01, 0.2))
        return proof(ctx, n)


@router.job(**sturdy)
async def long(ctx: Context, n: int) -> dict[str, int]:
    """Takes longer than its lease."""
    with ledger.run(ctx, n):
        await asyncio.sleep(2 * LEASE)
        return proof(ctx, n)


@router.job(**sturdy)
async def delayed(ctx: Context, n: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        return proof(ctx, n)


@router.job(**sturdy)
def flaky(ctx: Context, n: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        if ctx.attempt == 1:
            raise ConnectionError("not at the first try")
        return proof(ctx, n)


@router.job(**sturdy)
async def snoozing(ctx: Context, n: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        if random.random() < 0.5:
            raise Snooze(0.1)
        return proof(ctx, n)


@router.job(**fragile)
async def hopeless(ctx: Context, n: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        raise ValueError(f"{n} never works")


@router.job(**fragile)
def poison(ctx: Context, n: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        os._exit(9)


# -- keys and limits ------------------------------------------------------------------------------


@router.job(key="key-{key}", **sturdy)
async def keyed(ctx: Context, n: int, key: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        ledger.note("slot", ctx, n, f"keyed-{key}")
        await asyncio.sleep(0.02)
        return proof(ctx, n)


@router.job(limit=Limit("shared", running=SHARED), **limited)
async def shared(ctx: Context, n: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        ledger.note("slot", ctx, n, "shared")
        await asyncio.sleep(random.uniform(0, 0.02))
        return proof(ctx, n)


@router.job(limit=Limit("shared", running=SHARED), **limited)
def shared_too(ctx: Context, n: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        ledger.note("slot", ctx, n, "shared")
        time.sleep(random.uniform(0, 0.02))
        return proof(ctx, n)


@router.job(sequential="key", **limited)
async def ordered(ctx: Context, n: int, key: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        ledger.note("slot", ctx, n, f"ordered-{key}")
        await asyncio.sleep(random.uniform(0, 0.02))
        if ctx.attempt == 1 and n % 4 == 0:
            raise ConnectionError("the next one of its key has to wait for the retry")
        return proof(ctx, n)


# -- workflows ------------------------------------------------------------------------------------


@router.job(**sturdy)
async def pack(ctx: Context, n: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        await asyncio.sleep(random.uniform(0, 0.05))
        return proof(ctx, n)


@router.job(queue=ORDERS, **sturdy)
async def order(ctx: Context, n: int) -> dict[str, int]:
    """Steps, effects in a transaction, a sleep, a signal, children; some fail once at the end."""
    with ledger.run(ctx, n):
        await _step(ctx, n, "charge")
        await _effect(ctx, n, "book")
        await ctx.sleep(0.05)
        approved = await ctx.wait_signal("approved", int)
        ledger.note("past", ctx, n, f"approved={approved}")
        packed = await ctx.fan_out([pack.bind(n) for _ in range(CHILDREN)])
        ledger.note("past", ctx, n, f"packed={len(packed.values)}+{len(packed.failures)}")
        await _effect(ctx, n, "close")
        if ctx.attempt == 1 and n % 5 == 0:
            raise ConnectionError("all steps are stored, and yet the first attempt fails")
        return proof(ctx, n)


async def _step(ctx: Context, n: int, name: str) -> None:
    async def act() -> int:
        ledger.note("step", ctx, n, name)
        return n

    await ctx.step(act, name=name)
    ledger.note("past", ctx, n, name)


async def _effect(ctx: Context, n: int, name: str) -> None:
    """A step that writes a row, in the transaction of its checkpoint where there is one."""
    if os.environ.get(TX) != "1":
        await _step(ctx, n, name)
        return

    async def write(connection: Any) -> int:
        ledger.note("step", ctx, n, name)
        written = connection.execute(f"INSERT INTO chaos_effects VALUES ({n}, '{name}')")
        if asyncio.iscoroutine(written):  # asyncpg's; sqlite3 returns a cursor
            await written
        return n

    await ctx.step(write, name=name, tx=True)
    ledger.note("past", ctx, n, name)


@router.job(**sturdy)
async def part(ctx: Context, n: int, number: int) -> dict[str, int]:
    with ledger.run(ctx, n):
        if number == 0:
            raise NoRetry("the first part of every album fails")
        return proof(ctx, n)


@router.job(**sturdy)
async def album(ctx: Context, n: int) -> dict[str, int]:
    """Gathers children of which one fails."""
    with ledger.run(ctx, n):
        parts = await ctx.fan_out(
            [part.bind(n, number) for number in range(CHILDREN)], strategy=collect_all
        )
        ledger.note("past", ctx, n, f"parts={len(parts.values)}+{len(parts.failures)}")
        return proof(ctx, n)


# -- what is enqueued -----------------------------------------------------------------------------

WEIGHTS: dict[Any, int] = {
    quick: 30,
    plain: 12,
    sleeping: 8,
    long: 1,
    delayed: 6,
    flaky: 8,
    snoozing: 6,
    hopeless: 3,
    keyed: 6,
    shared: 3,
    shared_too: 2,
    ordered: 3,
    order: 4,
    album: 2,
}
TOPICS: set[str] = {kind.topic for kind in (*WEIGHTS, pack, part)}
PARKED = {hopeless.topic, poison.topic}
"""Topics whose jobs must end as dead letters, with all attempts used."""


# -- the processes --------------------------------------------------------------------------------


def make_app(url: str) -> Pulse:
    """Return an app for producers and workers, on the database or behind a server."""
    app = Pulse(url, prepared_statements=os.environ.get(POOLED) != "1")
    app.include(router)
    return app


class Deaf(Listener):
    """A subscription whose notifications are all lost."""

    healthy = True


@asynccontextmanager
async def hear_nothing(*_: Any) -> AsyncIterator[Listener]:
    yield Deaf()


def ends_with_its_parent() -> None:
    """Leave no process behind when a storm is killed; Linux only."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.environ.get(PARENT, str(os.getppid())) != str(os.getppid()):
            sys.exit("the storm was over before this process had started")


def work(url: str) -> int:
    """Be a worker until a signal."""
    app = make_app(url)
    if os.environ.get(DEAF) == "1":
        setattr(app.store, "listen", hear_nothing)  # noqa: B010 - an instance's own method
    queues = os.environ.get(QUEUES, f"default,{ORDERS}").split(",")
    return app.run(queues=queues, concurrency=20, poll=POLL, tick=TICK, stats=False).value


def serve(*arguments: str) -> None:
    """Be a server until a signal, with the arguments of ``pulsed server``."""
    from pulsed.cli.root import main  # noqa: PLC0415 - workers need none
    from pulsed.store.postgres.store import PostgresStore  # noqa: PLC0415

    if os.environ.get(DEAF) == "1":
        setattr(PostgresStore, "listen", lambda *_: hear_nothing())  # noqa: B010
    sys.argv = ["pulsed", "server", *arguments]
    main()


if __name__ == "__main__":
    # Handlers belong to the imported module, not to __main__.
    from tests.chaos import load  # noqa: PLW0406

    ends_with_its_parent()
    if sys.argv[1] == "serve":
        load.serve(*sys.argv[2:])
    else:
        sys.exit(load.work(sys.argv[2]))
