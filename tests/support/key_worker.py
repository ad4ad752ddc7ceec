"""Processes that submit, claim and end jobs with keys, and are killed: see test_keys_kills.

``python -m tests.support.key_worker URL`` goes on until its input ends, and then prints how many it
has killed. They are forked from one process that has imported everything and opened nothing,
because a start is expensive.
"""

import os
import random
import select
import signal
import sys
import time
from contextlib import suppress
from uuid import uuid4

import pulsed.store.postgres.store
import pulsed.store.sqlite.store  # noqa: F401
from pulsed import Backoff, DuplicateKey, Pulse
from pulsed.model.ids import new_job_id
from pulsed.model.job import NewJob
from pulsed.model.outcome import Failed, Outcome, Released, Report, Snoozed, Succeeded
from pulsed.store.blocking import run_blocking
from tests.support.jobs import a_policy

PERIOD = 0.4
"""Seconds for which a job holds its key, of those that hold it for a period."""
MODES = {
    f"{on_duplicate}-{name}": (on_duplicate, key_for)
    for on_duplicate in ("return", "raise", "replace")
    for name, key_for in {"start": "start", "end": "end", "period": str(PERIOD)}.items()
}
"""A topic for each way to hold a key and to treat a duplicate."""
KEYS = "ab"
LEASE = 0.3
POLICIES = [a_policy(topic, lease=LEASE, backoff=Backoff.fixed(0)) for topic in MODES]
ENDS: list[Outcome] = [Succeeded("1"), Failed("boom"), Released(), Snoozed(0.0)]


PROCESSES = 8
LIFE = 0.2
"""Seconds until the next of them is killed."""
LEAST_KILLS = 2
"""Processes that are killed at least, however slow the machine is."""


def work(url: str, seed: int) -> None:
    """Do what producers, workers and watchdogs do, in a random order, for ever."""
    store, chance, worker = Pulse(url, stats=False).store, random.Random(seed), uuid4()
    while True:
        match chance.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                topic = chance.choice(list(MODES))
                on_duplicate, key_for = MODES[topic]
                job = NewJob(
                    id=new_job_id(), topic=topic, payload="{}", key=chance.choice(KEYS),
                    key_for=key_for, on_duplicate=on_duplicate, lease=LEASE,
                )  # fmt: skip
                with suppress(DuplicateKey):
                    run_blocking(store.submit([job]))
            case 5 | 6 | 7 | 8:
                claimed = run_blocking(store.claim(worker, "default", POLICIES, 3))
                chance.shuffle(claimed)
                reports = [Report.of(each, chance.choice(ENDS)) for each in claimed[:2]]
                run_blocking(store.settle(reports))  # the others are lost with their leases
            case _:
                run_blocking(store.watchdog())


def forked(url: str, seed: int) -> int:
    """Start a process; returns its id."""
    if child := os.fork():
        return child
    try:
        work(url, seed)
    finally:
        os._exit(1)


def main(url: str) -> None:
    """Keep the processes running until the input ends, and kill one after the other."""
    chance, killed = random.Random(7), 0
    children = [forked(url, seed) for seed in range(PROCESSES)]
    while not _may_end(killed):
        place = chance.randrange(PROCESSES)
        end(children[place])
        killed += 1
        children[place] = forked(url, PROCESSES + killed)
    for child in children:
        end(child)
    sys.stdout.write(f"{killed}\n")


def _may_end(killed: int) -> bool:
    """Wait for as long as a process lives; whether the input has ended, after enough kills."""
    has_ended = bool(select.select([sys.stdin], [], [], LIFE)[0])
    if has_ended and killed < LEAST_KILLS:
        time.sleep(LIFE)
        return False
    return has_ended


def end(child: int) -> None:
    """Kill a process of ours, which cannot be another one before it is waited for."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1])
