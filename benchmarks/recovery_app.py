"""The job whose worker is killed: the app of `pulsed worker benchmarks.recovery_app:app`."""

from __future__ import annotations

import asyncio
import time

from pulsed import Backoff, Context, JobType, Pulse

LEASE = 2.0
"""Seconds of its lease."""


def declare(app: Pulse) -> JobType[[], int]:
    """Declare it on an app."""

    @app.job(lease=LEASE, backoff=Backoff.fixed(0), max_attempts=100)
    async def holding(ctx: Context) -> int:
        """Run until killed at first; then return when it started."""
        started = time.time_ns()
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return started

    return holding


app = Pulse()
declare(app)
