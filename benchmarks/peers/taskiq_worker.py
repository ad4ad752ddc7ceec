"""taskiq on Redis: one receiver of a stream with acknowledgements, without results, on uvloop."""

import asyncio
import importlib.metadata
import json
import logging
import sys
import time

import uvloop
from redis.asyncio import Redis
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

CONCURRENCY = 100
PREFETCH = 100

url, jobs = sys.argv[1], int(sys.argv[2])
times: list[float] = []
broker = RedisStreamBroker(url, xread_count=PREFETCH)


@broker.task
async def noop(number: int) -> int:
    times.append(time.time())
    return number


async def unacknowledged(redis: Redis) -> int:
    return (await redis.xpending("taskiq", "taskiq"))["pending"]


async def main() -> None:
    logging.disable(logging.CRITICAL)
    broker.is_worker_process = True
    await broker.startup()
    began = time.time()
    for at in range(0, jobs, 1000):
        await asyncio.gather(*(noop.kiq(number) for number in range(at, min(at + 1000, jobs))))
    enqueued = time.time() - began
    receiving = asyncio.create_task(
        run_receiver_task(broker, max_async_tasks=CONCURRENCY, max_prefetch=PREFETCH)
    )
    redis = Redis.from_url(url)
    while len(times) < jobs or await unacknowledged(redis):
        await asyncio.sleep(0.005)
    ended = time.time()
    receiving.cancel()
    print(
        json.dumps(
            {
                "jobs": len(times),
                "began": min(times),
                "ended": ended,
                "enqueue_seconds": enqueued,
                "version": importlib.metadata.version("taskiq"),
                "settings": "Redis as shipped, RedisStreamBroker, uvloop, no results, "
                f"{CONCURRENCY} tasks at once, {PREFETCH} prefetched",
            }
        ),
        flush=True,
    )


with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
