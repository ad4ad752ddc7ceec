"""The one database of a run: SQLite in memory, behind the real writer, with a journal of its rows.

Triggers write down every change of a job, in the same transaction, so that the checker sees each
transition and not only what is left of it; no code of pulsed is involved in that.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from pulsed.store.blocking import run_blocking
from pulsed.store.fork import Gate
from pulsed.store.sqlite.checkpoint import Checkpointer
from pulsed.store.sqlite.connections import Connections, SqliteOptions
from pulsed.store.sqlite.errors import translate
from pulsed.store.sqlite.store import SqliteStore, execute_on
from pulsed.store.sqlite.writer import Writer
from pulsed.store.verbs.script import Verb

T = TypeVar("T")

JOB = (
    "id", "topic", "status", "attempts", "max_attempts", "lease_token", "locked_by",
    "lease_until", "wait_kind", "limit_key", "key", "schedule_id", "occurrence", "parent_id",
)  # fmt: skip


class JobState(NamedTuple):
    """A job's row as the journal has it."""

    id: bytes
    topic: str
    status: str
    attempts: int
    max_attempts: int | None
    lease_token: int
    locked_by: bytes | None
    lease_until: int | None
    wait_kind: str | None
    limit_key: str | None
    key: str | None
    schedule_id: bytes | None
    occurrence: int | None
    parent_id: bytes | None


class Change(NamedTuple):
    """One change of a job; without ``old`` it was stored, without ``new`` removed."""

    old: JobState | None
    new: JobState | None


class StepDone(NamedTuple):
    """A step's checkpoint was stored."""

    job: bytes
    name: str


class Database:
    """Runs verbs one at a time, each in a transaction, and tells what they changed."""

    def __init__(self, micros: Callable[[], int]) -> None:
        options = SqliteOptions(synchronous="NORMAL")
        self._connections = Connections(None, options, Checkpointer(None))
        self.connection = self._connections.open_writer()
        self.connection.deserialize(_empty_database())
        self.connection.executescript(_journal())
        self._writer = Writer(
            lambda: self.connection,
            micros,
            execute_on,
            lambda error, action: translate(error, action, "the simulated database"),
            lambda _: None,
            Gate(),
            options.busy_timeout,
        )
        self._read = 0
        self.holder: object | None = None
        """The process whose step holds the write lock."""
        self.unlocked = asyncio.Event()

    def lock(self, process: object) -> None:
        """Give the connection to the step of a process."""
        self.holder = process
        self.unlocked.clear()

    def unlock(self) -> None:
        """Take it back; what was not committed is rolled back."""
        self.connection.set_authorizer(None)
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        self.holder = None
        self.unlocked.set()

    def perform(self, verb: Verb[T]) -> T:
        """Run a verb to its commit."""
        return self._writer.run(verb)

    def changes(self) -> list[Change | StepDone]:
        """Return what was committed since the last call."""
        rows = self.connection.execute("SELECT * FROM journal WHERE n > ?", (self._read,))
        found: list[Change | StepDone] = []
        for n, kind, *values in rows.fetchall():
            self._read = n
            if kind == "step":
                found.append(StepDone(values[0], values[1]))
                continue
            old, new = values[: len(JOB)], values[len(JOB) :]
            found.append(
                Change(
                    None if kind == "insert" else JobState(*old),
                    None if kind == "delete" else JobState(*new),
                )
            )
        return found

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read, past all code of pulsed."""
        return self.connection.execute(query, values).fetchall()

    def close(self) -> None:
        self.connection.close()


@functools.cache
def _empty_database() -> bytes:
    """Return a database with its tables; creating them takes longer than a whole run."""
    store = SqliteStore(None)
    run_blocking(store.migrate())
    connection = store._writer._connection
    assert isinstance(connection, sqlite3.Connection)
    connection.execute("CREATE TABLE effects (job BLOB, run INTEGER)")
    content = connection.serialize()
    run_blocking(store.aclose())
    return content


@functools.cache
def _journal() -> str:
    columns = [f"{when}_{name}" for when in ("old", "new") for name in JOB]
    nulls = ", ".join("NULL" for _ in JOB)
    old, new = (", ".join(f"{when}.{name}" for name in JOB) for when in ("old", "new"))
    changed = ", ".join(name for name in JOB if name not in ("id", "topic"))
    write = f"INSERT INTO journal (kind, {', '.join(columns)}) VALUES"
    return f"""
        CREATE TEMP TABLE journal (n INTEGER PRIMARY KEY, kind, {", ".join(columns)});
        CREATE TEMP TRIGGER inserted AFTER INSERT ON main.pulse_jobs
            BEGIN {write} ('insert', {nulls}, {new}); END;
        CREATE TEMP TRIGGER updated AFTER UPDATE OF {changed} ON main.pulse_jobs
            BEGIN {write} ('update', {old}, {new}); END;
        CREATE TEMP TRIGGER deleted AFTER DELETE ON main.pulse_jobs
            BEGIN {write} ('delete', {old}, {nulls}); END;
        CREATE TEMP TRIGGER stepped AFTER INSERT ON main.pulse_checkpoints
            WHEN new.kind = 'STEP' AND new.state = 'DONE'
            BEGIN INSERT INTO journal (kind, old_id, old_topic)
                VALUES ('step', new.job_id, new.name); END;
    """
