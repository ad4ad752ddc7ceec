"""Handlers with limits that write when they begin and end, to a file that pulsed knows nothing of.

Run as ``python -m tests.support.limited_app URL FILE``: a worker that is to be killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pulsed import Backoff, Context, Limit, Pulse, Rate

LEASE = 2.0
SHARED, PER_KEY = 3, 2
RATE = Rate(50, per=1, burst=5)
KEYS = 5
KINDS = ("shared_a", "shared_b", "keyed", "ordered", "rated")
FULL = {"shared": SHARED, "keyed": PER_KEY}
"""How many of a key can run at once, by kind; of the other kinds, one or any number."""
COMPANY = 0.5
"""Seconds that a run waits until its limit is full: well below half of a lease."""


class Record:
    """The file, and what this process has seen in it."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._seen_full: set[str] = set()

    def write(self, what: str, ctx: Context, kind: str, key: str, number: int) -> None:
        """Add a line."""
        run = f"{ctx.job_id}/{ctx.lease_token}"
        line = f"{what} {kind} {key} {number} {run} {os.getpid()} {time.monotonic():.6f}\n"
        os.write(self._file, line.encode())

    async def until_full(self, kind: str, key: str) -> None:
        """Wait for company until the limit is full, unless this process saw it full before.

        So every limit is reached, however slow the machine is.
        """
        give_up_at = time.monotonic() + COMPANY
        while kind not in self._seen_full and time.monotonic() < give_up_at:
            if self._running(kind, key) >= FULL.get(kind, 0):
                self._seen_full.add(kind)
            await asyncio.sleep(0.01)

    def _running(self, kind: str, key: str) -> int:
        """Count the runs of a key that have begun and not ended, in processes that live."""
        running: dict[str, int] = {}
        for line in self._path.read_text().splitlines():
            what, its_kind, its_key, _, run, pid, _ = line.split()
            if (its_kind, its_key) == (kind, key):
                running[run] = int(pid)
                if what == "end":
                    del running[run]
        return sum(map(lives, running.values()))


def lives(pid: int) -> bool:
    """Whether there is such a process."""
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def make_app(url: str, path: str) -> Pulse:
    """Return an app whose handlers write ``begin``/``end`` lines to a file."""
    app = Pulse(url)
    record = Record(path)

    async def run(ctx: Context, kind: str, key: str, number: int) -> None:
        record.write("begin", ctx, kind, key, number)
        await record.until_full(kind, key)
        await asyncio.sleep(random.uniform(0.0, 0.02))
        record.write("end", ctx, kind, key, number)
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
