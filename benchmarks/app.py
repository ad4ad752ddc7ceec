"""The jobs that are measured, and the app that `pulsed worker benchmarks.app:app` runs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from pulsed import Backoff, Context, JobType, Pulse

LEASE = 2.0
"""Seconds of lease of the job whose worker is killed."""


@dataclass(frozen=True)
class Tasks:
    """The job types of an app."""

    noop: JobType[[int], int]
    plain: JobType[[int], int]
    stamp: JobType[[int], int]
    holding: JobType[[], int]
    stepping: JobType[[int], int]
    fanning: JobType[[int], int]


def declare(app: Pulse) -> Tasks:
    """Declare them on an app."""

    @app.job
    async def noop(number: int) -> int:
        return number

    @app.job
    def plain(number: int) -> int:
        return number

    @app.job
    async def stamp(sent: int) -> int:  # noqa: ARG001 - read from the payload afterwards
        """Return when it started, in nanoseconds of the machine's clock."""
        return time.time_ns()

    @app.job(lease=LEASE, backoff=Backoff.fixed(0), max_attempts=100)
    async def holding(ctx: Context) -> int:
        """Run until killed at first; then return when it started."""
        started = time.time_ns()
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return started

    @app.job
    async def stepping(ctx: Context, steps: int) -> int:
        """Take steps one after the other; return the nanoseconds that they took."""
        began = time.perf_counter_ns()
        for number in range(steps):
            await ctx.step(echo, number)
        return time.perf_counter_ns() - began

    @app.job
    async def fanning(ctx: Context, children: int) -> int:
        """Return how many children there were."""
        ended = await ctx.fan_out([noop.bind(number) for number in range(children)])
        return len(ended.values)

    tasks: dict[str, Any] = {
        "noop": noop,
        "plain": plain,
        "stamp": stamp,
        "holding": holding,
        "stepping": stepping,
        "fanning": fanning,
    }
    return Tasks(**tasks)


async def echo(number: int) -> int:
    """Do what a step does that does nothing."""
    return number


app = Pulse()
declare(app)
