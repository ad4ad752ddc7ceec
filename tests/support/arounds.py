"""A worker for the jobs of an app, until one of them has ended."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from pulsed import Pulse, Status
from pulsed.client.job import Job
from tests.support.workers import until


@contextlib.asynccontextmanager
async def working(app: Pulse, **options: Any) -> AsyncIterator[None]:
    worker = app.worker(poll=0.02, tick=3600, schedules=False, **options)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await task


async def ended(app: Pulse, job: Job[Any]) -> Job[Any]:
    """Wait until a job is in the status that a test waits for: over, or waiting again."""
    async with working(app):
        await until(lambda: is_over(job))
    return job


async def is_over(job: Job[Any]) -> bool:
    await job.arefresh()
    return job.status in (Status.SUCCEEDED, Status.DEAD_LETTERED, Status.CANCELLED)
