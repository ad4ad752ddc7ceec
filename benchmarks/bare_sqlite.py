"""The ceiling on SQLite: what the driver alone does on a table of three columns.

One connection, ``synchronous=FULL``, a commit for each batch of claims and one for its completions.
There is no handler, no decoding of payloads, no result, no lease, no fence, no retry and no
heartbeat: the least that can be called a queue.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator

from benchmarks.bare_postgres import row

CREATE = """
CREATE TABLE bare_jobs (
    id BLOB PRIMARY KEY,
    state INTEGER NOT NULL DEFAULT 0,
    payload TEXT NOT NULL)"""

INDEX = "CREATE INDEX bare_jobs_due ON bare_jobs (id) WHERE state = 0"

FILL = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
INSERT INTO bare_jobs (id, payload)
SELECT CAST(printf('%016d', n) AS BLOB), '{"number":' || n || '}' FROM numbers"""

CLAIM = """
UPDATE bare_jobs SET state = 1
WHERE id IN (SELECT id FROM bare_jobs WHERE state = 0 ORDER BY id LIMIT ?)
RETURNING id, payload"""

COMPLETE = "UPDATE bare_jobs SET state = 2 WHERE id = ?"

INSERT = "INSERT INTO bare_jobs (id, payload) VALUES (?, ?)"


def connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 2000")  # 8 MB, twice as much as pulsed
    return connection


@contextlib.contextmanager
def table(path: str, jobs: int = 0) -> Iterator[sqlite3.Connection]:
    """Provide a connection to the table, with so many jobs in it."""
    with contextlib.closing(connect(path)) as connection:
        connection.execute("DROP TABLE IF EXISTS bare_jobs")
        connection.execute(CREATE)
        connection.execute(INDEX)
        if jobs:
            connection.execute(FILL, (jobs,))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        try:
            yield connection
        finally:
            connection.execute("DROP TABLE bare_jobs")


def drain(path: str, jobs: int, batch: int) -> tuple[int, float, float]:
    """Claim and complete so many jobs; returns how many there were, and from when until when."""
    with table(path, jobs) as connection:
        began = time.time()
        done = claim_and_complete(connection, batch)
        return done, began, time.time()


def claim_and_complete(connection: sqlite3.Connection, batch: int) -> int:
    """Go on until nothing is left; returns how many there were."""
    done = 0
    while rows := connection.execute(CLAIM, (batch,)).fetchall():
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(COMPLETE, [(job,) for job, _ in rows])
        connection.execute("COMMIT")
        done += len(rows)
    return done


def insert_singly(path: str, jobs: int) -> float:
    """Insert one job for each commit; returns the seconds."""
    with table(path) as connection:
        connection.execute(INSERT, _row(0))
        began = time.perf_counter()
        for number in range(jobs):
            connection.execute(INSERT, _row(number))
        return time.perf_counter() - began


def insert_many(path: str, jobs: int) -> float:
    """Insert all jobs in one transaction; returns the seconds, without making the rows."""
    rows = [_row(number) for number in range(jobs)]
    with table(path) as connection:
        began = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(INSERT, rows)
        connection.execute("COMMIT")
        return time.perf_counter() - began


def _row(number: int) -> tuple[bytes, str]:
    job, payload = row(number)
    return job.bytes, payload
