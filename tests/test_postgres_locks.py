"""Rows and tables that another session has locked: everything else goes on, and they follow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from pulsed.job import Beat
from pulsed.rpc.access import Caller, Role
from pulsed.rpc.gate import Gate, OpenGate
from pulsed.rpc.remote import RemoteStore
from pulsed.schedule import ScheduleFilter
from pulsed.store import tokens
from pulsed.store.postgres import PostgresOptions, PostgresStore
from tests.support.jobs import TOPIC, a_job, claim
from tests.support.own_sessions import AT_ONCE
from tests.support.servers import ServerThread
from tests.support.workers import until

POOL = 3


@contextmanager
def holding(url: str, statement: str) -> Iterator[None]:
    """Hold the locks of a statement in a session of its own."""
    with psycopg.connect(url) as other:
        other.execute(statement)
        yield
        other.rollback()


def blocked(admin: psycopg.Connection[Any]) -> int:
    """Return how many of our sessions wait for a lock."""
    found = admin.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE 'pulsed/%' AND wait_event_type = 'Lock'"
    ).fetchone()
    return int(found[0]) if found else 0


# -- heartbeats through a server ------------------------------------------------------------------


class LimitedGate(Gate):
    """Lets everybody in, for one topic only."""

    async def admit(self, context: Any) -> Caller:
        return Caller("one topic", frozenset(Role), frozenset([TOPIC]), None)


def a_small_store(url: str) -> PostgresStore:
    options = PostgresOptions(pool_size=POOL, retry=AT_ONCE, dequeue_retry=AT_ONCE)
    return PostgresStore(url, options)


@pytest.mark.parametrize("gate", [OpenGate(), LimitedGate()])
async def test_a_heartbeat_through_a_server_waits_for_no_other_work(
    postgres_url: str, admin: psycopg.Connection[Any], gate: Gate
):
    with ServerThread(lambda: a_small_store(postgres_url), gate) as server:
        far = RemoteStore(server.url)
        await far.submit([a_job()])
        (run,) = await claim(far)
        with holding(postgres_url, "LOCK TABLE pulse_schedules"):
            reads = [
                asyncio.create_task(far.list_schedules(ScheduleFilter("default")))
                for _ in range(POOL + 2)
            ]
            await until(lambda: blocked(admin) == POOL)
            assert await far.beat([run.lease], within=6.0) == {run.lease: Beat.OK}
            assert not any(read.done() for read in reads)
        await asyncio.gather(*reads)
        await far.aclose()


async def test_who_calls_a_server_is_known_without_waiting_for_other_work(
    postgres_url: str, admin: psycopg.Connection[Any]
):
    store = a_small_store(postgres_url)
    with holding(postgres_url, "LOCK TABLE pulse_schedules"):
        reads = [asyncio.create_task(store.list_schedules()) for _ in range(POOL + 2)]
        await until(lambda: blocked(admin) == POOL)
        async with asyncio.timeout(6.0):
            assert await tokens.read(store) == []
        assert not any(read.done() for read in reads)
    await asyncio.gather(*reads)
    await store.aclose()
