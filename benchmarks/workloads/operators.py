"""Interactive operations: lists, counts and acts of operators, beside a million jobs.

Beside finished jobs there is a workflow with its children, a schedule with a history, workers that
announce themselves, and some jobs that are due. What the doctor reads is measured beside a million
due jobs as well. Commands run in their own processes, as on a terminal. Their figure is processor
time, because that is what they add to the time of their queries.
"""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from benchmarks.databases import Database, Server, enqueue, opened
from benchmarks.processes import ROOT
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale
from benchmarks.workloads.workflows import PATIENCE, idle_worker
from pulsed import Pulse, Status
from pulsed.engine.doctor.examine import examine
from pulsed.engine.why import explain
from pulsed.errors import PulsedError
from pulsed.model.job import WorkerInfo
from pulsed.store.blocking import run_blocking

SOME = 1_000
"""Jobs that have not ended, on top of those that have; and jobs of one act on all that match."""

WORKERS = 50
SCHEDULES = 100
FIRES = 100_000

HOUR = timedelta(hours=1)

WAIT = "ms"
"""For an interactive operation: one page, one job, one answer."""
PER_THOUSAND = "ms per 1,000 jobs"
PROCESSOR = "ms of processor"
"""For a command, in its own process: the start of Python, loading, connecting, printing."""

VERSION = ("--version",)


def measure_operators(server: Server, results: Results, scale: Scale) -> None:
    """Time every operation of operators, one after the other."""
    with _beside(server, "finished", scale) as found:
        for _ in range(scale.repeat):
            for name, operate in _operations(found).items():
                _time(results, server.engine, f"{PULSED}, {name}", operate)
            _measure_bulk(results, server.engine, found)
            _measure_commands(results, found, _commands(found))
    with _beside(server, "foreign", scale) as found:
        for _ in range(scale.repeat):
            for name, operate in _checks(found).items():
                _time(results, server.engine, f"{PULSED}, {name}, beside due jobs", operate)
            _measure_commands(results, found, [("doctor",)], ", beside due jobs")


@dataclass(frozen=True)
class Found:
    """A database with everything that operators read."""

    database: Database
    app: Pulse
    workflow: UUID
    pending: Iterator[UUID]


@contextmanager
def _beside(server: Server, kind: str, scale: Scale) -> Iterator[Found]:
    name = f"operators_{kind}"
    database = server.database(name)
    workflow = _workflow(database, scale.children) if kind == "finished" else uuid4()
    database.fill(kind, scale.beside)
    enqueue(database, SOME)
    with opened(database.url) as tasks, Pulse(database.url) as app:
        for number in range(SCHEDULES):
            app.schedules.put(f"schedule {number}", tasks.noop.bind(1), every=HOUR)
        _announce(app)
        if kind == "finished":
            _give_history(database)
        database.settle_down()
        pending = (job.id for job in app.jobs.list(topic="noop", limit=SOME))
        yield Found(database, app, workflow, pending)
    server.drop(name)


def _workflow(database: Database, children: int) -> UUID:
    """Let a worker run a workflow with children, on a database that is still empty."""
    with idle_worker(database) as tasks:
        job = tasks.fanning.enqueue(children)
        job.result(timeout=PATIENCE)
    return job.id


def _announce(app: Pulse) -> None:
    for number in range(WORKERS):
        worker = WorkerInfo(
            id=uuid4(), host="host", pid=number, queues=("default",), topics=("noop",), slots=100
        )
        run_blocking(app.store.announce(worker))


def _give_history(database: Database) -> None:
    """Let one schedule have made many of the finished jobs."""
    ended = "status = 'SUCCEEDED' AND parent_id IS NULL"
    made = f"SELECT id FROM pulse_jobs WHERE {ended} LIMIT {FIRES}"
    schedule = "SELECT id FROM pulse_schedules WHERE name = 'schedule 0'"
    change = f"schedule_id = ({schedule}), occurrence = completed_at"
    database.rows(f"UPDATE pulse_jobs SET {change} WHERE id IN ({made}) RETURNING 1")


def _operations(found: Found) -> dict[str, Callable[[], object]]:
    app, job = found.app, partial(next, found.pending)
    jobs, schedules, now = app.jobs, app.schedules, datetime.now(UTC)
    lists: dict[str, dict[str, Any]] = {
        "no filter": {},
        **{f"status={status}": {"status": status} for status in Status},
        "a topic without jobs": {"topic": "none"},
        "a queue without jobs": {"queue": "none"},
        "a tag without jobs": {"tag": "none"},
        "an error without jobs": {"error": "none"},
        "dead letters of a topic": {"status": Status.DEAD_LETTERED, "topic": "none"},
        "since an hour": {"since": now - HOUR},
        "until an hour ago": {"until": now - HOUR},
        "children of a workflow": {"parent": found.workflow},
    }
    return {
        **{f"list, {name}": partial(jobs.list, **where) for name, where in lists.items()},
        **{f"counts, {name}": partial(jobs.counts, **where) for name, where in lists.items()},
        "get": lambda: jobs.get(job()),
        "failures": lambda: jobs.failures(job()),
        "why is it not running": lambda: _why(app, job()),
        "signal": lambda: app.signal(job(), "go"),
        "cancel": lambda: jobs.cancel(job()),
        "cancel and retry": lambda: _cancel_and_retry(app, job()),
        "delete": lambda: jobs.delete(job()),
        "workers": lambda: run_blocking(app.store.workers()),
        "schedules.list": schedules.list,
        "schedules.get": lambda: schedules.get("schedule 0"),
        "schedules.next": lambda: schedules.next("schedule 0"),
        "schedules.fires": lambda: schedules.fires("schedule 0"),
        "schedules.edit": lambda: schedules.edit("schedule 1", every=2 * HOUR),
        "schedules.pause and resume": lambda: _pause_and_resume(app),
        "schedules.run_now": lambda: schedules.run_now("schedule 1"),
        "audit.list": app.audit.list,
        **_checks(found),
    }


def _checks(found: Found) -> dict[str, Callable[[], object]]:
    """Return what the doctor does, and its two largest reads alone."""
    store = found.app.store
    return {
        "doctor": lambda: run_blocking(examine(store)),
        "due jobs by queue and topic": lambda: run_blocking(store.backlog()),
        "what must never be": lambda: run_blocking(store.audit(slack=20.0)),
    }


def _why(app: Pulse, job_id: UUID) -> None:
    async def ask() -> None:
        job = (await app.store.get([job_id]))[job_id]
        explain(job, await app.store.workers(), await app.store.now())

    run_blocking(ask())


def _cancel_and_retry(app: Pulse, job_id: UUID) -> None:
    app.jobs.cancel(job_id)
    app.jobs.retry(job_id)


def _pause_and_resume(app: Pulse) -> None:
    app.schedules.pause("schedule 2")
    app.schedules.resume("schedule 2")


def _measure_bulk(results: Results, engine: str, found: Found) -> None:
    """Act on all jobs of a topic, which takes a scan of the whole table; and prune some."""
    jobs = found.app.jobs
    enqueue(found.database, SOME, topic="plain")
    for name, act in {
        "cancel_matching": jobs.cancel_matching,
        "retry_matching": jobs.retry_matching,
        "delete_matching": jobs.delete_matching,
    }.items():
        began = time.perf_counter()
        done = act(topic="plain")
        _add_bulk(results, engine, name, time.perf_counter() - began, done)
    (oldest,) = found.database.rows(
        "SELECT min(completed_at) FROM pulse_jobs WHERE topic = 'noop'"
    )[0]
    ended = oldest if isinstance(oldest, datetime) else datetime.fromtimestamp(oldest / 1e6, UTC)
    age = datetime.now(UTC) - ended - timedelta(seconds=1)  # 1,000 of them end in a second
    began = time.perf_counter()
    done = sum(jobs.prune(older_than=age).values())
    _add_bulk(results, engine, "prune", time.perf_counter() - began, done)


def _add_bulk(results: Results, engine: str, name: str, seconds: float, done: int) -> None:
    if not done:
        raise PulsedError(f"{name} found no job")
    took = seconds * 1000 * 1000 / done
    results.add("operators", engine, f"{PULSED}, {name}", PER_THOUSAND, took)


def _commands(found: Found) -> list[tuple[str, ...]]:
    job = partial(lambda: str(next(found.pending)))
    return [
        VERSION,
        ("jobs", "list", "--format", "table"),
        ("jobs", "list", "--status", "running"),
        ("jobs", "list", "--topic", "none"),
        ("jobs", "counts"),
        ("jobs", "show", job()),
        ("jobs", "show", str(found.workflow), "--format", "table"),
        ("jobs", "signal", job(), "go"),
        ("jobs", "cancel", job()),
        ("jobs", "delete", job()),
        ("jobs", "prune", "--older-than", "1h", "--dry-run"),
        ("schedules", "list", "--format", "table"),
        ("schedules", "show", "schedule 0"),
        ("schedules", "fires", "schedule 0"),
        ("workers", "--format", "table"),
        ("audit", "--format", "table"),
        ("doctor",),
    ]


def _measure_commands(
    results: Results, found: Found, commands: list[tuple[str, ...]], beside: str = ""
) -> None:
    for words in commands:
        took = _run(found.database.url, words)
        name = f"`pulsed {' '.join(_general(word, found) for word in words)}`{beside}"
        results.add("operators", found.database.engine, name, PROCESSOR, took)


def _general(word: str, found: Found) -> str:
    """Write a job's id in a way that is the same in every run."""
    if word == str(found.workflow):
        return "WORKFLOW"
    if len(word) == len(str(found.workflow)):
        return "ID"
    return shlex.quote(word)


def _run(url: str, words: tuple[str, ...]) -> float:
    """Return the milliseconds of processor time that a command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, "-m", "pulsed", *words],
        cwd=ROOT,
        env=os.environ | {"PULSED_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    if ended.returncode and words[0] != "doctor":  # which has found something
        raise PulsedError(f"{' '.join(words)}: {ended.stderr}")
    return took * 1000


def _time(results: Results, engine: str, name: str, operate: Callable[[], object]) -> None:
    began = time.perf_counter()
    operate()
    results.add("operators", engine, name, WAIT, (time.perf_counter() - began) * 1000)
