"""SAQ on Redis: one worker, with hiredis and uvloop."""

import asyncio
import importlib.metadata
import json
import logging
import sys
import time

import uvloop
from saq import Queue, Worker

CONCURRENCY = 100
CALLERS = 50

url, jobs = sys.argv[1], int(sys.argv[2])
times: list[float] = []


async def noop(_context: object, *, number: int) -> int:
    times.append(time.time())
    return number


async def main() -> None:
    logging.disable(logging.CRITICAL)
    queue = Queue.from_url(f"{url}?max_connections={2 * (CALLERS + CONCURRENCY)}")
    await queue.connect()
    began = time.time()
    for at in range(0, jobs, CALLERS):
        numbers = range(at, min(at + CALLERS, jobs))
        await asyncio.gather(*(queue.enqueue("noop", number=number) for number in numbers))
    enqueued = time.time() - began
    worker = Worker(queue, [noop], concurrency=CONCURRENCY)
    working = asyncio.create_task(worker.start())
    while len(times) < jobs or await queue.count("incomplete"):
        await asyncio.sleep(0.005)
    ended = time.time()
    await worker.stop()
    working.cancel()
    print(
        json.dumps(
            {
                "jobs": len(times),
                "began": min(times),
                "ended": ended,
                "enqueue_seconds": enqueued,
                "version": importlib.metadata.version("saq"),
                "settings": f"Redis as shipped, hiredis, uvloop, concurrency {CONCURRENCY}",
            }
        )
    )


with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
