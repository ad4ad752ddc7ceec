"""Huey on SQLite: WAL with fsync, one consumer of threads, results stored."""

import json
import logging
import sys
import threading
import time

import huey as package
from huey import SqliteHuey

# More threads make it slower: they take turns at one write lock.
WORKERS = 4

path, jobs = sys.argv[1], int(sys.argv[2])
huey = SqliteHuey(filename=path, fsync=True)
times: list[float] = []
done = threading.Event()


@huey.task()
def noop(number: int) -> int:
    times.append(time.perf_counter())
    if len(times) >= jobs:
        done.set()
    return number


began = time.perf_counter()
with huey.storage.db(commit=True) as cursor:  # one transaction: it has no bulk call
    for number in range(jobs):
        task = noop.s(number)
        cursor.execute(
            "insert into task(queue, data, priority) values (?, ?, ?)",
            (huey.name, memoryview(huey.serialize_task(task)), 0),
        )
enqueued = time.perf_counter() - began

logging.disable(logging.CRITICAL)
consumer = huey.create_consumer(workers=WORKERS, worker_type="thread", periodic=False)
consumer.start()
done.wait(300)
consumer.stop(graceful=True)
print(
    json.dumps(
        {
            "jobs": len(times),
            "seconds": max(times) - min(times),
            "enqueue_seconds": enqueued,
            "version": getattr(package, "__version__", "?"),
            "settings": f"SqliteHuey(fsync=True), {WORKERS} threads, results stored",
        }
    )
)
