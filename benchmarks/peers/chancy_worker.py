"""Chancy: one worker with its async executor."""

import asyncio
import importlib.metadata
import json
import logging
import sys
import time

from chancy import Chancy, Queue, Worker, job

CONCURRENCY = 500

url, jobs = sys.argv[1], int(sys.argv[2])
times: list[float] = []
done = asyncio.Event()


@job(queue="bench")
async def noop(*, number: int) -> int:
    times.append(time.time())
    if len(times) >= jobs:
        done.set()
    return number


async def unreported(chancy: Chancy) -> int:
    async with chancy.pool.connection() as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM chancy_jobs WHERE state <> 'succeeded'"
        )
        return (await cursor.fetchone())[0]


async def main() -> None:
    logging.disable(logging.CRITICAL)
    async with Chancy(url) as chancy:
        await chancy.migrate()
        await chancy.declare(
            Queue(
                name="bench",
                concurrency=CONCURRENCY,
                executor=Chancy.Executor.Async,
                polling_interval=1,
                eager_polling=True,
            )
        )
        began = time.time()
        calls = [noop.job.with_kwargs(number=number) for number in range(jobs)]
        async for _ in chancy.push_many(calls, batch_size=5000):
            pass
        enqueued = time.time() - began
        async with Worker(chancy, register_signal_handlers=False):
            await asyncio.wait_for(done.wait(), 300)
            while await unreported(chancy):  # reports lag seconds behind the runs
                await asyncio.sleep(0.05)
            ended = time.time()
    print(
        json.dumps(
            {
                "jobs": len(times),
                "began": min(times),
                "ended": ended,
                "enqueue_seconds": enqueued,
                "version": importlib.metadata.version("chancy"),
                "settings": f"AsyncExecutor, concurrency {CONCURRENCY}, eager_polling",
            }
        )
    )


if __name__ == "__main__":  # the executor of its default queue imports this file again
    asyncio.run(main())
