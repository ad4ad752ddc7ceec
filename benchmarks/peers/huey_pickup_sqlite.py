"""Huey on SQLite: an idle consumer of one thread picks up single jobs from another process."""

import json
import logging
import random
import subprocess
import sys
import threading
import time

import huey as package
from huey import SqliteHuey

path, count = sys.argv[1], int(sys.argv[2])
least, most, delay = map(float, sys.argv[3:6])
producing = sys.argv[6:] == ["produce"]
huey = SqliteHuey(filename=path, fsync=True)
latencies: list[float] = []
done = threading.Event()


@huey.task()
def stamp(sent: int) -> None:
    latencies.append((time.time_ns() - sent) / 1e6)
    if len(latencies) >= count:
        done.set()


def produce() -> None:
    chance = random.Random(1)
    for _ in range(count):
        time.sleep(chance.uniform(least, most))
        stamp(time.time_ns())


def consume() -> None:
    logging.disable(logging.CRITICAL)
    consumer = huey.create_consumer(
        workers=1, worker_type="thread", periodic=False, initial_delay=delay, max_delay=delay
    )
    consumer.start()
    with subprocess.Popen([sys.executable, *sys.argv, "produce"]):
        done.wait(300)
    consumer.stop(graceful=True)
    version = getattr(package, "__version__", "?")
    print(json.dumps({"latencies": latencies, "version": version}))


produce() if producing else consume()
