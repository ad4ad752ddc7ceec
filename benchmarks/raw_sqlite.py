"""The ceiling on SQLite: claim and complete on pulsed's own table, with nothing around it.

One connection, ``synchronous=FULL``. A transaction completes one batch and claims the next, so that
a batch costs one wait for the disk: completions are durable, and a claim is committed before it is
acted upon. There is no handler, no decoding, no retry and no heartbeat.
"""

from __future__ import annotations

import sqlite3
import time
import uuid

CLAIM = """
UPDATE pulse_jobs SET status = 'RUNNING', attempts = attempts + 1,
    lease_token = max(lease_token + 1, :now), locked_by = :worker,
    lease_until = :now + 30000000, started_at = :now
WHERE id IN (
    SELECT id FROM pulse_jobs
    WHERE queue = 'default' AND priority = 0 AND next_run_at <= :now
      AND status IN ('PENDING', 'RETRYING', 'WAITING')
    ORDER BY next_run_at, id LIMIT :most)
RETURNING id, payload, lease_token"""

COMPLETE = """
UPDATE pulse_jobs SET status = 'SUCCEEDED', completed_at = ?, result = ?, last_worker = locked_by,
    last_outcome = 'SUCCEEDED', locked_by = NULL, lease_until = NULL
WHERE id = ? AND status = 'RUNNING' AND lease_token = ? AND locked_by = ?"""


def connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 2000")  # 8 MB, as pulsed does
    return connection


def drain(path: str, batch: int) -> int:
    """Claim and complete until nothing is left; returns how many."""
    connection = connect(path)
    worker = uuid.uuid4().bytes
    done = 0
    rows: list[tuple[bytes, str, int]] = []
    while True:
        connection.execute("BEGIN IMMEDIATE")
        now = time.time_ns() // 1000
        if rows:
            ended = [(now, "1", job, token, worker) for job, _, token in rows]
            connection.executemany(COMPLETE, ended)
        rows = connection.execute(CLAIM, {"now": now, "worker": worker, "most": batch}).fetchall()
        connection.execute("COMMIT")
        done += len(rows)
        if not rows:
            break
    connection.close()
    return done
