"""PgQueuer: one queue manager on asyncpg and uvloop, in drain mode."""

import asyncio
import importlib.metadata
import json
import logging
import sys
import time

import asyncpg
import uvloop
from pgqueuer import QueueManager
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

BATCH = 500

url, jobs = sys.argv[1], int(sys.argv[2])
times: list[float] = []


async def main() -> None:
    logging.disable(logging.CRITICAL)
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    began = time.time()
    for at in range(0, jobs, 5000):
        size = min(5000, jobs - at)
        payloads = [b'{"number":%d}' % n for n in range(at, at + size)]
        await queries.enqueue(["noop"] * size, payloads, [0] * size)
    enqueued = time.time() - began
    await connection.execute("VACUUM ANALYZE")  # as autovacuum would have, sooner or later

    manager = QueueManager(queries)

    @manager.entrypoint("noop")
    async def noop(job: Job) -> None:  # noqa: ARG001 - its signature
        times.append(time.time())

    await manager.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
    print(
        json.dumps(
            {
                "jobs": len(times),
                "began": min(times),
                "ended": max(times),
                "enqueue_seconds": enqueued,
                "version": importlib.metadata.version("pgqueuer"),
                "settings": f"asyncpg, uvloop, batch_size={BATCH}, jobs moved to its log",
            }
        )
    )


with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
