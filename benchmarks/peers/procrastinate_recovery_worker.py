"""Procrastinate: a job that the first run holds for ever, and a task that retries stalled jobs.

Run as ``URL FILE enqueue`` and ``URL FILE work [tuned]``. Its documentation says to declare such a
task; the default ones of its settings are kept, or all are as short as they may be.
"""

import asyncio
import logging
import sys

import procrastinate
from held_job import is_first_run

url, file, act = sys.argv[1:4]
tuned = "tuned" in sys.argv
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))


@app.task
async def hold() -> None:
    if is_first_run(file):
        await asyncio.sleep(3600)


@app.periodic(cron="* * * * * *" if tuned else "* * * * *")
@app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
async def retry_stalled_jobs(_: procrastinate.JobContext, timestamp: int) -> None:  # noqa: ARG001
    after = {"seconds_since_heartbeat": 3} if tuned else {}
    for job in await app.job_manager.get_stalled_jobs(**after):
        await app.job_manager.retry_job(job)


async def main() -> None:
    logging.disable(logging.CRITICAL)
    async with app.open_async():
        if act == "enqueue":
            await app.schema_manager.apply_schema_async()
            await hold.defer_async()
            return
        beat = {"update_heartbeat_interval": 1, "stalled_worker_timeout": 3} if tuned else {}
        await app.run_worker_async(concurrency=4, **beat)


asyncio.run(main())
