"""The jobs that are measured, and the app that `pulsed worker benchmarks.app:app` runs.

All have the default options. The job of a recovery has others, and an app of its own: topics with
different policies are claimed by a longer statement.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from pulsed import Context, JobType, Pulse


@dataclass(frozen=True)
class Tasks:
    """The job types of an app."""

    noop: JobType[[int], int]
    plain: JobType[[int], int]
    stamp: JobType[[int], int]
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
        "stepping": stepping,
        "fanning": fanning,
    }
    return Tasks(**tasks)


async def echo(number: int) -> int:
    """Do what a step does that does nothing."""
    return number


app = Pulse()
declare(app)
