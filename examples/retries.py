"""Retries, watched: a job that always fails, its row meanwhile, and two backoffs side by side.

Run it with ``.venv/bin/python examples/retries.py``; it takes a few seconds.
"""

import asyncio
import tempfile
from datetime import datetime
from pathlib import Path

from pulsed import Backoff, Job, Pulse, Status

SCRATCH = tempfile.TemporaryDirectory(prefix="pulsed-retries-", ignore_cleanup_errors=True)
app = Pulse(f"sqlite:///{Path(SCRATCH.name) / 'jobs.db'}")


@app.job(max_attempts=3, backoff=Backoff.linear(0.4))
async def send_email(to: str) -> None:
    """Never succeed."""
    raise ConnectionError(f"503 from the mail service for {to}")


async def main() -> None:
    """Enqueue a job that always fails, and look at its row until it is parked."""
    linear = await watched("linear, 0.4 s more each time", await send_email.aenqueue("ada"))
    patient = send_email.using(backoff=Backoff.exponential(0.2, factor=4, jitter=0))
    exponential = await watched("exponential, 4 times as long", await patient.aenqueue("bob"))
    print(f"\nwaits   linear: {linear}   exponential: {exponential}")
    await app.aclose()


async def watched(title: str, job: Job[None]) -> str:
    """Print the row at every change of its attempts; return the waits between them."""
    print(f"\n{title}\n  attempts  status         next run         last error")
    worker = app.worker(poll=0.05)
    working = asyncio.create_task(worker.run())
    waits, attempts, due = [], 0, job.submitted_at
    while job.status is not Status.DEAD_LETTERED:
        await asyncio.sleep(0.02)
        await job.arefresh()
        if job.attempts > attempts and job.status in (Status.RETRYING, Status.DEAD_LETTERED):
            attempts = job.attempts
            if job.status is Status.RETRYING:
                waits.append(f"{(next_run(job) - job.updated_at).total_seconds():.1f} s")
                assert next_run(job) > due, "scheduled_at must move forward"
                due = next_run(job)
            print(f"  {attempts} of 3    {job.status:<13}  {due:%H:%M:%S.%f}  {job.last_error}")
    worker.stop()
    await working
    return ", ".join(waits)


def next_run(job: Job[None]) -> datetime:
    """Return when it is due; one that waits for its retry always is at some time."""
    assert job.next_run_at is not None
    return job.next_run_at


if __name__ == "__main__":
    asyncio.run(main())
    SCRATCH.cleanup()
