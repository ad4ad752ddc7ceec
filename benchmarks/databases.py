"""The databases under test: created, filled, emptied and read without any code of pulsed.

Durations of drains come from the rows, by the database's clock, for pulsed, in whatever
way it works. So they include no process start and do not depend on when the rows are read.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import psycopg
from psycopg import sql

from benchmarks.app import Tasks, declare
from pulsed import Pulse
from pulsed.model.timetable import to_micros
from tests.support.scratch_postgres import ScratchPostgres

TOPIC_ELSEWHERE = "elsewhere"
"""A topic that no worker here has a handler for."""

CHUNK = 10_000

EMPTIED = ("pulse_jobs", "pulse_failures", "pulse_checkpoints", "pulse_workers")


@dataclass(frozen=True)
class Batch:
    """Jobs that were enqueued together: all between two ids."""

    first: UUID
    last: UUID
    size: int
    tenths: tuple[UUID, ...] = ()
    """The last job of each tenth, in the order in which they are claimed."""


@dataclass(frozen=True)
class Drained:
    """How a batch was drained."""

    jobs: int
    began: float
    """When the last of the workers had begun, in seconds of the machine's clock."""
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds if self.seconds > 0 else 0.0


class Database(Protocol):
    """One database with pulsed's tables."""

    engine: str
    url: str

    def empty(self) -> None:
        """Remove all jobs, and what they left behind."""

    def settle_down(self) -> None:
        """Flush what was written so far, so that it does not slow the next measurement."""

    def first_unfinished(self, batch: Batch, after: UUID) -> UUID | None:
        """Return the first job from ``after`` on that has not ended."""

    def is_finished(self, job: UUID) -> bool:
        """Whether a job has ended: a single row read by its key."""

    def drained(self, batch: Batch) -> Drained:
        """Return how many ended in what time, from when the last of the workers had begun."""

    def fill(self, kind: str, count: int) -> None:
        """Insert so many ``future``, ``finished`` or ``foreign`` rows."""

    def load(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Insert many rows as fast as the driver can, with ids and times of Python's types."""

    def rows(self, query: str) -> list[Any]:
        """Run any query."""


# From the moment when every worker had started its first job to the end of the last one. What
# ended before does not count: that one process starts later than another is not throughput.
_DRAINED = """
WITH ours AS (
    SELECT started_at, completed_at, last_worker FROM pulse_jobs
    WHERE id BETWEEN {first} AND {last} AND completed_at IS NOT NULL),
began AS (
    SELECT max(first) AS at
    FROM (SELECT min(started_at) AS first FROM ours GROUP BY last_worker) AS workers)
SELECT count(*), {began}, {ended} FROM ours, began WHERE ours.completed_at >= began.at
"""

_UNFINISHED = """
SELECT id FROM pulse_jobs WHERE id BETWEEN {first} AND {last} AND completed_at IS NULL
ORDER BY id LIMIT 1
"""

# Not as a condition: the planner would scan all finished jobs, which it takes for few.
_FINISHED = "SELECT completed_at IS NOT NULL FROM pulse_jobs WHERE id = {job}"


class PostgresDatabase:
    """A database on the scratch server, read through one idle connection."""

    engine = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        # A drain is watched by reading a few rows by their keys. The planner, which knows nothing
        # of a table that was just filled, would sort all that is left of it, again and again.
        options = "-c enable_bitmapscan=off -c enable_sort=off"
        self.connection = psycopg.connect(url, autocommit=True, options=options)

    def empty(self) -> None:
        self.connection.execute(f"TRUNCATE {', '.join(EMPTIED)}")
        # So that pages written from here on cost the same in every run, and none is due soon.
        self.connection.execute("CHECKPOINT")

    def settle_down(self) -> None:
        self.connection.execute("VACUUM (ANALYZE) pulse_jobs")
        self.connection.execute("CHECKPOINT")

    def first_unfinished(self, batch: Batch, after: UUID) -> UUID | None:
        query = _UNFINISHED.format(first="%s", last="%s")
        found = self.connection.execute(query, (after, batch.last)).fetchone()
        return found[0] if found else None

    def is_finished(self, job: UUID) -> bool:
        [(finished,)] = self.connection.execute(_FINISHED.format(job="%s"), (job,)).fetchall()
        return bool(finished)

    def drained(self, batch: Batch) -> Drained:
        query = _DRAINED.format(
            first="%s",
            last="%s",
            began="extract(epoch FROM min(at))::float8",
            ended="extract(epoch FROM max(completed_at))::float8",
        )
        jobs, began, ended = self.connection.execute(query, (batch.first, batch.last)).fetchall()[0]
        return Drained(jobs, began or 0.0, ended or 0.0)

    def fill(self, kind: str, count: int) -> None:
        self.connection.execute(
            _FILL[kind].format(
                id="(lpad(to_hex(n), 12, '0') || '7' || substr(md5(n::text), 1, 19))::uuid",
                worker="gen_random_uuid()",
                numbers=f"generate_series(1, {count}) AS numbers(n)",
                ago="now() - make_interval(secs => 3600 - n / 1000.0)",
                ahead="now() + make_interval(secs => 3600 + n)",
            )
        )

    def load(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        with (
            self.connection.cursor() as cursor,
            cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy,
        ):
            for row in rows:
                copy.write_row(row)

    def rows(self, query: str) -> list[Any]:
        return self.connection.execute(query).fetchall()

    def close(self) -> None:
        self.connection.close()


class SqliteDatabase:
    """A file, read through its own connection."""

    engine = "sqlite"

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None, timeout=30)

    def empty(self) -> None:
        for table in EMPTIED:
            self.connection.execute(f"DELETE FROM {table}")
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def settle_down(self) -> None:
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def first_unfinished(self, batch: Batch, after: UUID) -> UUID | None:
        query = _UNFINISHED.format(first="?", last="?")
        found = self.connection.execute(query, (after.bytes, batch.last.bytes)).fetchone()
        return UUID(bytes=found[0]) if found else None

    def is_finished(self, job: UUID) -> bool:
        [(finished,)] = self.connection.execute(_FINISHED.format(job="?"), (job.bytes,)).fetchall()
        return bool(finished)

    def drained(self, batch: Batch) -> Drained:
        query = _DRAINED.format(
            first="?", last="?", began="min(at) / 1e6", ended="max(completed_at) / 1e6"
        )
        bounds = (batch.first.bytes, batch.last.bytes)
        jobs, began, ended = self.connection.execute(query, bounds).fetchone()
        return Drained(jobs, began or 0.0, ended or 0.0)

    def fill(self, kind: str, count: int) -> None:
        now = "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000)"
        numbers = f"""(WITH RECURSIVE counting(n) AS (
            SELECT 1 UNION ALL SELECT n + 1 FROM counting WHERE n < {count:d})
            SELECT n FROM counting) AS numbers"""
        self.connection.execute(
            _FILL[kind].format(
                id="CAST(char(1) || printf('%015d', n) AS BLOB)",
                worker="randomblob(16)",
                numbers=numbers,
                ago=f"{now} - 3600000000 + n * 1000",
                ahead=f"{now} + 3600000000 + n * 1000000",
            )
        )

    def load(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        places = ", ".join("?" * len(columns))
        insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})"
        self.connection.execute("BEGIN")
        self.connection.executemany(insert, (tuple(map(_stored, row)) for row in rows))
        self.connection.execute("COMMIT")

    def rows(self, query: str) -> list[Any]:
        return self.connection.execute(query).fetchall()

    def close(self) -> None:
        self.connection.close()


def _stored(value: Any) -> Any:
    """Return a value as pulsed stores it in SQLite."""
    match value:
        case UUID():
            return value.bytes
        case datetime():
            return to_micros(value)
    return value


# Written by SQL alone, since a million calls would take longer than what is to be measured. The ids
# rise with time, as those of real jobs do.
_FILL = {
    "future": """
        INSERT INTO pulse_jobs (id, queue, topic, status, payload, next_run_at, submitted_at)
        SELECT {id}, 'default', 'noop', 'PENDING', '{{"number": 1}}', {ahead}, {ago}
        FROM {numbers}""",
    "finished": """
        INSERT INTO pulse_jobs (id, queue, topic, status, payload, result, attempts, max_attempts,
            lease_token, last_worker, last_outcome, next_run_at, submitted_at, started_at,
            completed_at)
        SELECT {id}, 'default', 'noop', 'SUCCEEDED', '{{"number": 1}}', '1', 1, 4, 1, {worker},
            'SUCCEEDED', {ago}, {ago}, {ago}, {ago}
        FROM {numbers}""",
    "foreign": f"""
        INSERT INTO pulse_jobs (id, queue, topic, status, payload, next_run_at, submitted_at)
        SELECT {{id}}, 'default', '{TOPIC_ELSEWHERE}', 'PENDING', '{{{{"number": 1}}}}', {{ago}},
            {{ago}}
        FROM {{numbers}}""",
}


class Server:
    """Makes databases of one engine, all on the same server or disk."""

    def __init__(self, engine: str, place: ScratchPostgres | Path) -> None:
        self.engine = engine
        self._place = place
        self._open: dict[str, PostgresDatabase | SqliteDatabase] = {}

    def database(self, name: str = "bench") -> Database:
        """Return a database with pulsed's tables; the same one when asked again."""
        if name not in self._open:
            self._open[name] = self._create(name)
        return self._open[name]

    def drop(self, name: str) -> None:
        """Drop a database and free its space."""
        if (database := self._open.pop(name, None)) is None:
            return
        database.close()
        if isinstance(self._place, Path):
            for path in self._place.glob(f"{name}.db*"):
                path.unlink()
        else:
            self._administer(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def close(self) -> None:
        for database in self._open.values():
            database.close()

    def create_empty(self, name: str) -> str:
        """Return the URL of a PostgreSQL database without tables, for a peer."""
        assert isinstance(self._place, ScratchPostgres)
        self._administer(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self._place.database_url(name)

    def remove_empty(self, name: str) -> None:
        self._administer(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def log_statements(self, name: str) -> None:
        """Let the server log the statements of new sessions of one database."""
        if isinstance(self._place, ScratchPostgres):
            alter = sql.SQL("ALTER DATABASE {} SET log_statement = 'all'")
            self._administer(alter.format(sql.Identifier(name)))

    def statements(self) -> int:
        """Count the logged statements, without BEGIN and COMMIT."""
        if not isinstance(self._place, ScratchPostgres):
            return 0
        return len(
            re.findall(
                r"LOG:  (?:statement|execute [^:]+): (?!BEGIN|.*\bCOMMIT$)",
                self._place.log,
                re.MULTILINE,
            )
        )

    @property
    def pid(self) -> int | None:
        """The process above all those of the database's server; SQLite has none."""
        return None if isinstance(self._place, Path) else self._place.supervisor_pid

    @property
    def url(self) -> str:
        """The URL of the maintenance database of a server."""
        assert isinstance(self._place, ScratchPostgres)
        return self._place.url

    @property
    def folder(self) -> Path:
        """Where an SQLite database of this engine would be."""
        assert isinstance(self._place, Path)
        return self._place

    def _create(self, name: str) -> PostgresDatabase | SqliteDatabase:
        if isinstance(self._place, Path):
            url = f"sqlite:///{self._place / f'{name}.db'}"
        else:
            url = self.create_empty(name)
        with Pulse(url) as app:
            app.jobs.counts()  # makes the tables
        if isinstance(self._place, Path):
            return SqliteDatabase(self._place / f"{name}.db")
        return PostgresDatabase(url)

    def _administer(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(statement)


@contextlib.contextmanager
def serving(engine: str) -> Iterator[Server]:
    """Provide an engine for the length of a run, durable as in production."""
    if engine == "postgres":
        with ScratchPostgres(fsync=True) as scratch, closing(Server(engine, scratch)) as server:
            yield server
    else:
        with (
            tempfile.TemporaryDirectory(prefix="pulsed-bench-") as folder,
            closing(Server(engine, Path(folder))) as server,
        ):
            yield server


closing = contextlib.closing


@contextlib.contextmanager
def opened(url: str) -> Iterator[Tasks]:
    """Open an app of this process on a database, or on its server."""
    with Pulse(url) as app:
        yield declare(app)


def enqueue(database: Database, count: int, topic: str = "noop") -> Batch:
    """Fill a database with jobs to drain, as a caller of ``enqueue_iter`` does."""
    with opened(database.url) as tasks:
        job = getattr(tasks, topic)
        calls = ((number,) for number in range(count))
        ids = sorted(job.enqueue_iter(calls, batch=CHUNK))
    tenths = tuple(ids[count * share // 10 - 1] for share in range(1, 11))
    return Batch(ids[0], ids[-1], count, tenths)
