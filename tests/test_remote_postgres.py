"""A server whose PostgreSQL misbehaves, and the workers behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from pulsed.job import Beat, Status
from pulsed.rpc.remote import RemoteStore
from pulsed.store.open import open_store
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.servers import ServerThread
from tests.support.workers import (
    all_finished,
    beat,
    finished,
    handler,
    submit,
    submit_many,
    until,
    working,
)

LEASE = 2.0
TICK = 0.2
GRACE = 10.0
"""Nobody waits for it: what is shown is that the leases are alive again long before it is over."""


def restart(postgres: ScratchPostgres) -> None:
    """Go down in good order, and come back at once."""
    postgres.restart()


def crash_for_longer_than_a_lease(postgres: ScratchPostgres) -> None:
    postgres.kill()
    time.sleep(LEASE + 0.2)  # the leases run out in the database, whose clock is not ours to set
    postgres.start()


@pytest.mark.parametrize("break_down", [restart, crash_for_longer_than_a_lease])
async def test_jobs_of_remote_workers_live_through_an_outage_of_the_database(
    postgres_server: ScratchPostgres, break_down: Callable[[ScratchPostgres], None]
):
    """The server says that its database is away: no worker takes that for a broken network."""
    release = asyncio.Event()

    async def long(n: int) -> int:
        await release.wait()
        return n

    async def quick() -> None:
        pass

    url = postgres_server.url
    with ServerThread(lambda: open_store(url), upkeep=True, tick=TICK, grace=GRACE) as server:
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
