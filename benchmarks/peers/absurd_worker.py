"""Absurd: one async worker of its Python SDK, with its schema as `absurdctl` installs it."""

import asyncio
import importlib.metadata
import json
import sys
import time

import absurdctl
import psycopg
from absurd_sdk import AsyncAbsurd

CONCURRENCY = 100
BATCH = 100

url, jobs = sys.argv[1], int(sys.argv[2])
times: list[float] = []


async def main() -> None:
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(absurdctl.BUNDLED_SCHEMA_SQL)
    app = AsyncAbsurd(url, queue_name="bench")
    await app.create_queue()

    @app.register_task("noop")
    async def noop(params: dict, _context: object) -> int:
        times.append(time.time())
        if len(times) >= jobs:
            app.stop_worker()
        return params["number"]

    began = time.time()
    for number in range(jobs):  # it has no bulk call
        await app.spawn("noop", {"number": number})
    enqueued = time.time() - began
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("VACUUM ANALYZE")  # as autovacuum would have, sooner or later
    await app.start_worker(concurrency=CONCURRENCY, batch_size=BATCH)
    ended = time.time()
    print(
        json.dumps(
            {
                "jobs": len(times),
                "began": min(times),
                "ended": ended,
                "enqueue_seconds": enqueued,
                "version": importlib.metadata.version("absurd-sdk"),
                "settings": f"AsyncAbsurd, concurrency {CONCURRENCY}, batch_size {BATCH}",
            }
        )
    )


asyncio.run(main())
