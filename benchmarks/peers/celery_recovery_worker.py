"""Celery on Redis: a job that the first run holds for ever, acknowledged late.

Run as ``URL FILE enqueue`` and ``URL FILE work [tuned]``. Redis gives an unacknowledged message to
another worker after the visibility timeout: an hour by default, five seconds when tuned.
"""

import sys
import time

from celery import Celery
from held_job import is_first_run

url, file, act = sys.argv[1:4]
tuned = "tuned" in sys.argv
app = Celery("recovery", broker=url)
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.worker_prefetch_multiplier = 1
if tuned:
    app.conf.broker_transport_options = {"visibility_timeout": 5}


@app.task(name="hold")
def hold() -> None:
    if is_first_run(file):
        time.sleep(3600)


if act == "enqueue":
    hold.delay()
else:
    app.worker_main(["worker", "--concurrency", "1", "--loglevel", "CRITICAL", "--without-gossip"])
