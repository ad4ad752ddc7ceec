"""Handlers with limits that write when they begin and end, to a file that pulsed knows nothing of.

Run as ``python -m tests.support.limited_app URL FILE``: a worker that is to be killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from typing import Any

from pulsed import Backoff, Context, Limit, Pulse, Rate

LEASE = 2.0
SHARED, PER_KEY = 3, 2
RATE = Rate(50, per=1, burst=5)
KEYS = 5
KINDS = ("shared_a", "shared_b", "keyed", "ordered", "rated")


def make_app(url: str, record: str) -> Pulse:
    """Return an app whose handlers write ``begin``/``end`` lines to a file."""
    app = Pulse(url)
    file = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(what: str, ctx: Context, kind: str, key: str, number: int) -> None:
        run = f"{ctx.job_id}/{ctx.lease_token}"
        line = f"{what} {kind} {key} {number} {run} {os.getpid()} {time.monotonic():.6f}\n"
        os.write(file, line.encode())

    async def run(ctx: Context, kind: str, key: str, number: int) -> None:
        write("begin", ctx, kind, key, number)
        await asyncio.sleep(random.uniform(0.0, 0.02))
        write("end", ctx, kind, key, number)
        if ctx.attempt == 1 and number % 20 == 0:
            raise RuntimeError("the first attempt of some jobs fails")

    again: Any = {"max_attempts": 50, "lease": LEASE, "backoff": Backoff.fixed(0.05)}

    @app.job(limit=Limit("shared", running=SHARED), **again)
    async def shared_a(ctx: Context, key: str, number: int) -> None:
        await run(ctx, "shared", "-", number)

    @app.job(limit=Limit("shared", running=SHARED), queue="other", **again)
    async def shared_b(ctx: Context, key: str, number: int) -> None:
        await run(ctx, "shared", "-", number)

    @app.job(limit=Limit(running=PER_KEY, per="key"), **again)
    async def keyed(ctx: Context, key: str, number: int) -> None:
        await run(ctx, "keyed", key, number)

    @app.job(sequential="key", **again)
    async def ordered(ctx: Context, key: str, number: int) -> None:
        await run(ctx, "ordered", key, number)

    @app.job(limit=Limit(rate=RATE), **again)
    async def rated(ctx: Context, key: str, number: int) -> None:
        await run(ctx, "rated", "-", number)

    return app


if __name__ == "__main__":
    make_app(sys.argv[1], sys.argv[2]).run(concurrency=8, tick=0.5, stats=False)
