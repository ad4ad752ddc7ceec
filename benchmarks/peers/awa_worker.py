"""awa: its Rust core with async handlers in Python, jobs written by COPY."""

import asyncio
import importlib.metadata
import json
import sys
import time
from dataclasses import dataclass

from awa import AsyncClient

WORKERS = 256  # where its authors' own benchmark has its peak

url, jobs = sys.argv[1], int(sys.argv[2])
times: list[float] = []


@dataclass
class Noop:
    number: int


async def main() -> None:
    client = AsyncClient(url)
    await client.migrate()
    await client.install_queue_storage()
    done = asyncio.Event()

    @client.task(Noop, queue="bench")
    async def noop(job) -> None:  # noqa: ARG001, ANN001 - its signature
        times.append(time.time())
        if len(times) >= jobs:
            done.set()

    began = time.time()
    for at in range(0, jobs, 5000):
        calls = [Noop(number) for number in range(at, min(at + 5000, jobs))]
        await client.enqueue_many_copy(calls, queue="bench")
    enqueued = time.time() - began
    await client.start([("bench", WORKERS)])
    await asyncio.wait_for(done.wait(), 100)
    await client.shutdown()
    print(
        json.dumps(
            {
                "jobs": len(times),
                "began": min(times),
                "ended": max(times),
                "enqueue_seconds": enqueued,
                "version": importlib.metadata.version("awa-pg"),
                "settings": f"AsyncClient, {WORKERS} workers, enqueue_many_copy",
            }
        )
    )


asyncio.run(main())
