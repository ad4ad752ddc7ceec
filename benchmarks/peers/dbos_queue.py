"""DBOS: workflows of one queue, dequeued and run by one process."""

import importlib.metadata
import json
import logging
import sys
import time

from dbos import DBOS

CONCURRENCY = 500
POLL = 0.05

url, jobs = sys.argv[1], int(sys.argv[2])
DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})
times: list[float] = []


@DBOS.workflow()
def noop(number: int) -> int:
    times.append(time.time())
    return number


logging.disable(logging.CRITICAL)
DBOS.launch()
began = time.time()
handles = [DBOS.enqueue_workflow("bench", noop, number) for number in range(jobs)]
enqueued = time.time() - began
DBOS.register_queue("bench", worker_concurrency=CONCURRENCY, polling_interval_sec=POLL)
for handle in handles:
    handle.get_result()
print(
    json.dumps(
        {
            "jobs": len(times),
            "began": min(times),
            "ended": max(times),
            "enqueue_seconds": enqueued,
            "version": importlib.metadata.version("dbos"),
            "settings": f"worker_concurrency {CONCURRENCY}, polling every {POLL} s",
        }
    )
)
DBOS.destroy()
