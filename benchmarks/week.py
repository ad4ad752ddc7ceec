"""A week in the life of a database: jobs in every status, statistics, schedules, workers.

The rows are made here, with a fixed seed, and loaded in bulk, since enqueueing and running a
million jobs would take longer than what is to be measured.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from benchmarks.databases import Database
from pulsed import Pulse
from pulsed.model.buckets import BUCKETS
from pulsed.model.rollup import COUNTS

DAYS = 7
QUEUES = ("default", "mail", "billing", "encode", "webhooks", "imports", "reports", "search")
TOPICS = {queue: tuple(f"{queue}_{verb}" for verb in ("send", "sync", "check", "build", "clean"))
          for queue in QUEUES}  # fmt: skip
"""The topics of each queue."""
TAGS = ("nightly", "customer", "backfill")
ERRORS = (
    "TimeoutError: no answer within 30 s",
    "HTTPError: 503 from api.example",
    "ValueError: amount must not be negative",
    "ConnectionResetError: the peer closed the connection",
)
TRACEBACK = "Traceback (most recent call last):\n" + '  File "jobs.py", line 7, in run\n' * 25
STATUSES = {
    "SUCCEEDED": 905,
    "DEAD_LETTERED": 20,
    "CANCELLED": 10,
    "PENDING": 45,
    "RETRYING": 8,
    "WAITING": 12,
}
"""Of 1,000 jobs; some more are running."""
UNFINISHED = ("PENDING", "RETRYING", "WAITING", "RUNNING")

RUNNING = 200
WORKERS = 20
SCHEDULES = 100
CHILDREN = 1_000
RECORDERS = 4
ACTS = 10_000

ROLLED_UP = {60: timedelta(days=1), 600: timedelta(days=DAYS), 3_600: timedelta(days=DAYS)}
"""How long rows of each span are kept."""

Row = dict[str, Any]


class Week(NamedTuple):
    """Where to find what in the database."""

    dead: UUID
    """A dead letter with several failed attempts."""
    workflow: UUID
    """A workflow that waits for its children."""
    worker: UUID
    schedule: UUID


@dataclass(frozen=True)
class _Maker:
    """Makes the rows of a week that ends now."""

    jobs: int
    now: datetime
    chance: random.Random

    def at(self, number: int) -> datetime:
        """Return when a job was submitted; they are spread over the week."""
        return self.now - timedelta(days=DAYS) * (1 - number / self.jobs)

    def id(self, at: datetime) -> UUID:
        """Return an id that begins with a time, as those of real jobs do."""
        millis = round(at.timestamp() * 1000)
        return UUID(int=millis << 80 | 7 << 76 | 2 << 62 | self.chance.getrandbits(62))


def fill(database: Database, jobs: int) -> Week:
    """Fill an empty database with a week of so many jobs."""
    make = _Maker(jobs, datetime.now(UTC), random.Random(1))
    workers = [UUID(int=make.chance.getrandbits(128)) for _ in range(WORKERS)]
    schedules = _schedules(database)
    _load(database, "pulse_workers", (_worker(make, each) for each in workers))
    made: dict[str, UUID] = {}
    dead: list[Row] = []
    _load(database, "pulse_jobs", _jobs(make, workers, schedules, made, dead))
    _load(database, "pulse_failures", (row for job in dead for row in _failures(job, workers[0])))
    _load(database, "pulse_rollups", _rollups(make))
    _load(database, "pulse_error_rollups", _error_rollups(make))
    _load(database, "pulse_audit", (_act(make, number) for number in range(ACTS)))
    workflow = make.id(make.now)
    _load(database, "pulse_jobs", _family(make, workflow, workers))
    _load(database, "pulse_checkpoints", _steps(make, workflow))
    database.settle_down()
    return Week(made["DEAD_LETTERED"], workflow, workers[0], schedules[0])


def _load(database: Database, table: str, rows: Iterator[Row]) -> None:
    first = next(rows)

    def values() -> Iterator[tuple[Any, ...]]:
        yield tuple(first.values())
        for row in rows:
            yield tuple(row.values())

    database.load(table, tuple(first), values())


# -- jobs -----------------------------------------------------------------------------------------


def _jobs(
    make: _Maker, workers: list[UUID], schedules: list[UUID], made: dict[str, UUID], dead: list[Row]
) -> Iterator[Row]:
    names, weights = list(STATUSES), list(STATUSES.values())
    for number in range(make.jobs):
        running = number >= make.jobs - RUNNING
        [status] = ["RUNNING"] if running else make.chance.choices(names, weights)
        job = _job(make, status, make.at(number), workers[number % WORKERS])
        if number % 20 == 0:
            job |= {"schedule_id": schedules[number // 20 % SCHEDULES]}
            job |= {"occurrence": job["submitted_at"]}
        made[status] = job["id"]
        if status == "DEAD_LETTERED" and len(dead) < make.jobs // 100:
            dead.append(job)
        yield job


def _job(make: _Maker, status: str, at: datetime, worker: UUID) -> Row:
    chance = make.chance
    queue = QUEUES[min(7, int(chance.expovariate(0.5)))]
    has_ended, has_failed = status not in UNFINISHED, status in ("DEAD_LETTERED", "RETRYING")
    has_run = status in ("RUNNING", "SUCCEEDED") or has_failed
    later = status == "RETRYING" or (status == "PENDING" and chance.random() < 0.3)
    payload = {"user": chance.randrange(5_000), "to": "ada@example.com", "lines": ["text"] * 10}
    tags = json.dumps([chance.choice(TAGS)]) if chance.random() < 0.1 else None
    is_waiting = status == "WAITING"
    due = make.now + timedelta(seconds=chance.randrange(86_400)) if later else at
    return {
        "id": make.id(at),
        "queue": queue,
        "topic": chance.choice(TOPICS[queue]),
        "status": status,
        "payload": json.dumps(payload),
        "result": '{"receipt": 12345}' if status == "SUCCEEDED" else None,
        "tags": tags,
        "attempts": 3 if has_failed else int(has_run),
        "max_attempts": 4,
        "lease_ms": 30_000,
        "next_run_at": datetime(9999, 12, 31, tzinfo=UTC) if is_waiting else due,
        "lease_token": 3 if has_failed else int(has_run),
        "locked_by": worker if status == "RUNNING" else None,
        "lease_until": make.now + timedelta(hours=1) if status == "RUNNING" else None,
        "last_worker": worker if has_run else None,
        "last_outcome": "FAILED" if has_failed else status if has_ended else None,
        "last_error": chance.choice(ERRORS) if has_failed else None,
        "submitted_at": at,
        "started_at": at if has_run else None,
        "completed_at": at + timedelta(seconds=1) if has_ended else None,
        "wait_kind": "SIGNAL" if is_waiting else None,
        "wait_key": "approved" if is_waiting else None,
        "parent_id": None,
        "parent_step": None,
        "schedule_id": None,
        "occurrence": None,
    }


def _failures(job: Row, worker: UUID) -> Iterator[Row]:
    for token in range(1, job["lease_token"] + 1):
        yield {
            "job_id": job["id"],
            "lease_token": token,
            "attempt": token,
            "worker_id": worker,
            "started_at": job["submitted_at"],
            "ended_at": job["completed_at"],
            "error": job["last_error"],
            "traceback": TRACEBACK,
        }


def _family(make: _Maker, parent: UUID, workers: list[UUID]) -> Iterator[Row]:
    """Make a workflow that waits for its children."""
    waits = {"wait_kind": "FAN_OUT", "wait_key": "all", "queue": "default", "topic": "fanning"}
    yield _job(make, "WAITING", make.now, workers[0]) | waits | {"id": parent}
    names, weights = list(STATUSES), list(STATUSES.values())
    for number in range(CHILDREN):
        [status] = make.chance.choices(names, weights)
        at = make.now - timedelta(seconds=number)
        child = _job(make, status, at, workers[0])
        yield child | {"parent_id": parent, "parent_step": "all"}


def _steps(make: _Maker, job_id: UUID) -> Iterator[Row]:
    for number in range(500):
        is_last = number == 499
        yield {
            "job_id": job_id,
            "name": "all" if is_last else f"charge {number}",
            "nth": 0,
            "seq": number,
            "kind": "FAN_OUT" if is_last else "STEP",
            "state": "OPEN" if is_last else "DONE",
            "input_hash": "0" * 32,
            "value": None if is_last else '{"receipt": 12345}',
            "tries": 1,
            "started_at": make.now,
            "ended_at": None if is_last else make.now,
            "lease_token": 1,
        }


# -- statistics -----------------------------------------------------------------------------------


def _rollups(make: _Maker) -> Iterator[Row]:
    """Make rows of each span, and those of the last minutes that are not folded yet."""
    minute = make.now.replace(second=0, microsecond=0)
    for number in range(15):
        at = minute - timedelta(minutes=number)
        for recorder in range(1, RECORDERS + 1):
            yield from _rollup_rows(make, 0, at, UUID(int=recorder))
    hour = minute.replace(minute=0)
    for span, kept in ROLLED_UP.items():
        at = minute - timedelta(minutes=15) if span == 60 else hour
        while at > make.now - kept:
            yield from _rollup_rows(make, span, at, UUID(int=0))
            at -= timedelta(seconds=span)


def _rollup_rows(make: _Maker, span: int, at: datetime, recorder: UUID) -> Iterator[Row]:
    for queue in QUEUES:
        for topic in TOPICS[queue]:
            ran = make.chance.randrange(1, 10)
            counts = dict.fromkeys(COUNTS, ran) | {"dead_lettered": 0, "cancelled": 0, "failed": 0}
            row = {"span": span, "at": at, "queue": queue, "topic": topic, "recorder": recorder}
            row |= counts
            for name in ("wait", "run"):
                row[f"{name}_seconds"] = 0.1 * ran
                row |= {f"{name}_{bucket}": 0 for bucket in range(BUCKETS)}
                row[f"{name}_{make.chance.randrange(BUCKETS)}"] = ran
            yield row


def _error_rollups(make: _Maker) -> Iterator[Row]:
    minute = make.now.replace(second=0, microsecond=0)
    for number in range(24 * 60):
        at = minute - timedelta(minutes=number)
        for queue in QUEUES:
            error = make.chance.choice(ERRORS)
            yield {
                "span": 60,
                "at": at,
                "queue": queue,
                "topic": TOPICS[queue][0],
                "error": error.partition(":")[0],
                "recorder": UUID(int=0),
                "count": 3,
                "dead_lettered": 1,
                "last_at": at,
                "message": error,
            }


# -- the rest -------------------------------------------------------------------------------------


def _worker(make: _Maker, worker: UUID) -> Row:
    # Its heartbeat lies ahead, so that it stays alive for as long as the measurement takes.
    return {
        "id": worker,
        "host": "host",
        "pid": worker.int % 30_000,
        "queues": json.dumps(QUEUES),
        "topics": json.dumps([topic for queue in QUEUES for topic in TOPICS[queue]]),
        "slots": 100,
        "running": RUNNING // WORKERS,
        "stuck": 0,
        "state": "running",
        "version": "1",
        "started_at": make.now,
        "last_beat": make.now + timedelta(hours=1),
    }


def _schedules(database: Database) -> list[UUID]:
    hour = timedelta(hours=1)
    with Pulse(database.url) as app:
        put = app.schedules.put
        names = (f"schedule {number}" for number in range(SCHEDULES))
        return [put(name, "mail_send", queue="mail", every=hour).id for name in names]


def _act(make: _Maker, number: int) -> Row:
    at = make.at(number * make.jobs // ACTS)
    return {
        "id": make.id(at),
        "at": at,
        "actor": make.chance.choice(("ada", "grace")),
        "role": "operator",
        "claimed": "",
        "act": "retry",
        "affected": 1,
        "detail": "{}",
    }
