"""Jobs of a limited queue that write when they begin and end, to a file that pulsed does not know.

Run as ``python -m tests.support.governed_app URL FILE``: a worker that is to be killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time

from pulsed import Backoff, Context, Pulse

MOST = 3


def make_app(url: str, record: str) -> Pulse:
    """Return an app whose jobs write ``begin`` and ``end`` lines to a file."""
    app = Pulse(url)
    app.queue("default", running=MOST)
    file = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @app.job(max_attempts=50, lease=2.0, backoff=Backoff.fixed(0.01))
    async def work(ctx: Context, number: int) -> None:
        for what in ("begin", "end"):
            run = f"{ctx.job_id}/{ctx.lease_token}"
            os.write(file, f"{what} {run} {os.getpid()} {time.monotonic():.6f}\n".encode())
            await asyncio.sleep(random.uniform(0.0, 0.02))

    return app


if __name__ == "__main__":
    make_app(sys.argv[1], sys.argv[2]).run(concurrency=8, tick=0.3, stats=False)
