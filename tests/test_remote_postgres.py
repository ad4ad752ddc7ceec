"""A server whose PostgreSQL misbehaves, and the workers behind it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pulsed.model.job import Lease, Status
from pulsed.model.outcome import Beat, Report, Succeeded
from pulsed.rpc.client.store import RemoteStore
from pulsed.store.open import open_store
from tests.support import crashing_app
from tests.support.backends import postgres_backend
from tests.support.clock import Clock
from tests.support.crashing_app import Journal, late_report, slow_at_first
from tests.support.programs import ROOT
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.servers import ServerThread
from tests.support.workers import (
    all_finished,
    beat,
    finished,
    handler,
    result,
    row,
    submit,
    submit_many,
    until,
    working,
)

LEASE = 2.0
TICK = 0.2


def restart(postgres: ScratchPostgres) -> None:
    """Go down in good order, and come back at once."""
    postgres.restart()


def crash_for_longer_than_a_lease(postgres: ScratchPostgres) -> None:
    postgres.kill()
    time.sleep(LEASE + 0.2)  # the leases run out in the database, whose clock the test cannot set
    postgres.start()


@pytest.mark.parametrize("break_down", [restart, crash_for_longer_than_a_lease])
async def test_jobs_of_remote_workers_live_through_an_outage_of_the_database(
    postgres_server: ScratchPostgres, break_down: Callable[[ScratchPostgres], None]
):
    """The server reports that its database is down; workers do not take that for silence."""
    release = asyncio.Event()

    async def long(n: int) -> int:
        await release.wait()
        return n

    async def quick() -> None:
        pass

    url = postgres_server.url
    with ServerThread(lambda: open_store(url), upkeep=True, tick=TICK) as server:
        far = RemoteStore(server.url)
        held = await submit_many(far, "long", 10)
        async with working(far, handler(long, lease=LEASE), quick, concurrency=12) as it:
            await until(lambda: it.worker.describe().running == 10)
            # Claims need not wait for the disk; this commit does, and takes them along.
            await finished(far, await submit(far, "quick"))

            await asyncio.to_thread(break_down, postgres_server)

            await finished(far, await submit(far, "quick"))
            assert set((await beat(it)).values()) == {Beat.OK}
            assert it.worker.describe().running == 10
            now = await far.now()
            rows = (await far.get(held)).values()
            assert all(row.lease_until is not None and row.lease_until > now for row in rows)
            release.set()
            jobs = await all_finished(far, held)
        await far.aclose()
    assert {(job.status, job.attempts) for job in jobs} == {(Status.SUCCEEDED, 1)}
    assert [job.result for job in jobs] == [str(n) for n in range(10)]


# -- two servers before one database --------------------------------------------------------------


@contextmanager
def worker_process(url: str, journal: Journal) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", crashing_app.__name__, url, str(journal.path), ""],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()


def suspend(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


async def test_a_zombie_is_fenced_by_whatever_server_it_asks(
    request: pytest.FixtureRequest, tmp_path: Path
):
    """Its worker is suspended for longer than its lease; then the server it knew is gone."""
    journal = Journal(tmp_path / "journal")
    with postgres_backend(request, Clock()) as backend:
        url = backend.app_url
        upkeep: dict[str, Any] = {"upkeep": True, "tick": crashing_app.TICK}
        with (
            ServerThread(lambda: open_store(url), **upkeep) as one,
            ServerThread(lambda: open_store(url), **upkeep) as other,
            worker_process(f"{one.url},{other.host}", journal) as process,
        ):
            store = open_store(url)
            ids = [await submit(store, topic) for topic in ("slow_at_first", "late_report")]
            await until(lambda: journal.lines() == ["started 1"] * 2)
            suspend(process)
            zombies = [await row(store, job_id) for job_id in ids]
            assert {each.status for each in zombies} == {Status.RUNNING}
            # As if they had died in company before: their attempts count from now on.
            backend.execute("UPDATE pulse_jobs SET crashes = 2")

            known, unknown = (one, other) if one.server.dispatcher.streams else (other, one)
            near = RemoteStore(unknown.url)
            async with working(near, slow_at_first.handler, late_report.handler):
                done = await all_finished(store, ids)
            assert [(result(job), job.attempts) for job in done] == [(2, 2)] * 2

            known.stop()
            journal.let_go()
            process.send_signal(signal.SIGCONT)
            await until(lambda: "cancelled" in journal.lines())
            late = [
                Report(Lease(each.id, each.lease_token, each.locked_by), Succeeded('"zombie"'))
                for each in zombies
                if each.locked_by is not None
            ]
            assert await near.settle(late) == set()
            process.terminate()  # it drains: its own report has been answered by then
            await until(lambda: process.poll() == 0)
            assert [await row(store, job_id) for job_id in ids] == done
            await near.aclose()
            await store.aclose()
