"""Procrastinate: one async worker with the concurrency given, jobs kept (its default)."""

import asyncio
import json
import logging
import sys
import time

import procrastinate

CONCURRENCY = 100

url, jobs = sys.argv[1], int(sys.argv[2])
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=20))
times: list[float] = []


@app.task
async def noop(number: int) -> int:
    times.append(time.time())
    return number


async def main() -> None:
    logging.disable(logging.CRITICAL)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        began = time.time()
        for at in range(0, jobs, 1000):
            await noop.batch_defer_async(*({"number": n} for n in range(at, min(at + 1000, jobs))))
        enqueued = time.time() - began
        await app.run_worker_async(
            concurrency=CONCURRENCY, wait=False, install_signal_handlers=False
        )
    print(
        json.dumps(
            {
                "jobs": len(times),
                "began": min(times),
                "ended": max(times),
                "enqueue_seconds": enqueued,
                "version": procrastinate.__version__,
                "settings": f"PsycopgConnector, pool of 20, concurrency {CONCURRENCY}, jobs kept",
            }
        )
    )


asyncio.run(main())
