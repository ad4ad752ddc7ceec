"""Small apps and short-lived workers, for tests of the API."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from pulsed import Job, JobCancelled, JobFailed, Pulse, Router


@asynccontextmanager
async def working(app: Pulse) -> AsyncIterator[None]:
    """A worker for the time of a block."""
    worker = app.worker(concurrency=4, poll=0.02)
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await task


def work_off(app: Pulse, *jobs: Job[Any]) -> None:
    """Run a worker until these jobs have ended, however they end."""

    async def main() -> None:
        async with working(app):
            for job in jobs:
                with suppress(JobFailed, JobCancelled):
                    await job.aresult(60)
        await app.aclose()

    asyncio.run(main())


def declare_add(app: Pulse | Router) -> Any:
    @app.job
    def add(a: int, b: int = 1) -> int:
        return a + b

    return add


def declare_fail(app: Pulse) -> Any:
    @app.job(max_attempts=1)
    def fail(why: str) -> None:
        raise RuntimeError(why)

    return fail
