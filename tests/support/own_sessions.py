"""The sessions that a store has on a PostgreSQL server, seen from one of our own."""

from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from pulsed.model.backoff import RetryPolicy
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from tests.support.backends import PostgresBackend
from tests.support.clock import Clock

AT_ONCE = RetryPolicy(initial=0, max=0)


@contextmanager
def administering(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that sees and can end the others, on a database without jobs or controls."""
    store = PostgresStore(url)
    run_blocking(store.migrate())
    run_blocking(store.aclose())
    PostgresBackend(url, Clock()).empty()
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        yield connection


@pytest.fixture
async def impatient(
    postgres_url: str, admin: psycopg.Connection[Any]
) -> AsyncIterator[PostgresStore]:
    """A store that tries again without a pause. Say ``store = impatient``."""
    store = PostgresStore(postgres_url, PostgresOptions(retry=AT_ONCE, dequeue_retry=AT_ONCE))
    yield store
    await store.aclose()


def sessions(admin: psycopg.Connection[Any], role: str = "%") -> set[int]:
    """The backends of our sessions in this database, by what they are for."""
    rows = admin.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE %s",
        [f"pulsed/{role}"],
    )
    return {pid for (pid,) in rows}
