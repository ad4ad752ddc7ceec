"""Huey on SQLite: WAL with fsync, one consumer with some threads, with or without results."""

import json
import logging
import sys
import threading
import time

import huey as package
from huey import SqliteHuey

path, jobs, threads, results = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
huey = SqliteHuey(filename=path, fsync=True, results=results == "results")
times: list[float] = []
done = threading.Event()


@huey.task()
def noop(number: int) -> int:
    times.append(time.time())
    if len(times) >= jobs:
        done.set()
    return number


began = time.time()
with huey.storage.db(commit=True) as cursor:  # one transaction: it has no bulk call
    for number in range(jobs):
        task = noop.s(number)
        cursor.execute(
            "insert into task(queue, data, priority) values (?, ?, ?)",
            (huey.name, memoryview(huey.serialize_task(task)), 0),
        )
enqueued = time.time() - began

logging.disable(logging.CRITICAL)
consumer = huey.create_consumer(workers=threads, worker_type="thread", periodic=False)
consumer.start()
done.wait(300)
consumer.stop(graceful=True)
print(
    json.dumps(
        {
            "jobs": len(times),
            "began": min(times),
            "ended": max(times),
            "enqueue_seconds": enqueued,
            "version": getattr(package, "__version__", "?"),
            "settings": f"SqliteHuey(fsync=True, results={huey.results}), {threads} threads",
        }
    )
)
