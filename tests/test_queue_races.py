"""Pauses and limits of queues under concurrency: processes that race and are killed, by observers
that know nothing of leases. ``test_postgres_queues.py`` has the locks of PostgreSQL."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pulsed import Status
from pulsed.model.control import ControlScope
from pulsed.model.outcome import Succeeded
from tests.support.governed_app import MOST, make_app
from tests.support.guards import check
from tests.support.jobs import a_job, a_worker_id, claim, claim_one, settle
from tests.support.workers import until

JOBS = 60
QUEUE = (ControlScope.QUEUE, "default")
FREE = r"NOT EXISTS \(SELECT 1 FROM pulse_controls\s+WHERE scope = 'queue' AND name = \S+\)"


# -- processes ------------------------------------------------------------------------------------


@pytest.mark.embedded("a server claims with the same store")
def test_no_more_than_the_limit_ever_run_whoever_is_killed(url, tmp_path):
    record = tmp_path / "record"
    with make_app(url, str(record)) as app:
        for number in range(JOBS):
            app.enqueue("work", {"number": number})
        command = [sys.executable, "-m", "tests.support.governed_app", url, str(record)]
        processes = [subprocess.Popen(command) for _ in range(4)]
        died = {}
        try:
            wait_for(lambda: app.jobs.counts()[Status.SUCCEEDED] > JOBS // 4)
            victim = processes.pop()
            victim.kill()
            victim.wait()
            died[victim.pid] = time.monotonic()
            wait_for(lambda: app.jobs.counts()[Status.SUCCEEDED] == JOBS)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    assert 0 < most_at_once(record, died) <= MOST


def wait_for(condition, within=60.0):
    give_up_at = time.monotonic() + within
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def most_at_once(record: Path, died: dict[int, float]) -> int:
    """Return how many ran at once; a run of a process that was killed ended with it."""
    open_runs: dict[str, int] = {}
    changes: list[tuple[float, int]] = []
    for line in record.read_text().splitlines():
        what, run, pid, at = line.split()
        changes.append((float(at), 1 if what == "begin" else -1))
        if what == "begin":
            open_runs[run] = int(pid)
        else:
            del open_runs[run]
    changes += [(died[pid], -1) for pid in open_runs.values()]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


# -- pauses ---------------------------------------------------------------------------------------


async def test_after_a_pause_no_claim_is_committed(backend):
    """Of eight workers that claim as fast as they can, in processes of their own as it were."""
    stores = [backend.open(own_clock=False) for _ in range(8)]
    await stores[0].submit([a_job() for _ in range(500)])
    claims, stop = 0, False

    async def work(store):
        nonlocal claims
        worker = a_worker_id()
        while not stop:
            for run in await claim(store, worker, limit=1):
                await settle(store, run, Succeeded())
            claims += 1
            await asyncio.sleep(0)

    workers = [asyncio.create_task(work(store)) for store in stores]
    await until(lambda: claims > 40)
    await stores[0].controls.pause(*QUEUE)
    before = started(backend)
    reached = claims + 80
    await until(lambda: claims > reached)
    assert started(backend) == before
    stop = True
    await asyncio.gather(*workers)
    for store in stores:
        await store.aclose()


def started(backend):
    [(number,)] = backend.execute("SELECT count(*) FROM pulse_jobs WHERE started_at IS NOT NULL")
    assert 0 < number < 500
    return number


# -- the guard, by its absence --------------------------------------------------------------------


async def a_claim_that_has_not_seen_the_pause(store, backend):
    await store.submit([a_job(), a_job()])
    await claim_one(store, limit=1)
    other = backend.open()
    await other.controls.pause(*QUEUE)
    await other.aclose()
    assert await claim(store) == [], "in the statement itself: it knows of no control"


async def test_on_sqlite_the_scan_of_priorities_says_so(backend):
    if backend.engine != "sqlite" or not hasattr(backend, "path"):
        pytest.skip("of SQLite")
    store = backend.open()
    [guard] = re.findall(FREE, store.engine.claiming.levels.text)
    await store.aclose()
    await check(backend, a_claim_that_has_not_seen_the_pause, "levels", guard, instead="1")
