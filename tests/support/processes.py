"""What other processes do in tests: functions that a spawned process can import and run."""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Callable
from typing import Any

from pulsed.model.job import Status
from pulsed.model.outcome import Report, Succeeded
from pulsed.store.blocking import run_blocking
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.sqlite.store import SqliteStore
from tests.support.jobs import EVERYTHING, POLICIES, a_job

SPAWN = multiprocessing.get_context("spawn")


def together(number: int, task: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run ``task(*arguments)`` in so many processes, released at the same moment.

    Returns what each returned, or the text of its exception.
    """
    barrier, answers = SPAWN.Barrier(number), SPAWN.SimpleQueue()
    processes = [
        SPAWN.Process(target=_run, args=(barrier, answers, task, arguments)) for _ in range(number)
    ]
    for process in processes:
        process.start()
    collected = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    return collected


def _run(barrier: Any, answers: Any, task: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        barrier.wait(60)
        answers.put(task(*arguments))
    except BaseException as error:  # noqa: BLE001 - the test shows it
        answers.put(repr(error))


def open_store(where: str) -> SqlStore:
    """Open what a path or a URL names, on the real clock and with the usual retries."""
    if where.startswith("postgresql:"):
        from pulsed.store.postgres.store import PostgresStore  # noqa: PLC0415 - 0.2 s a process

        return PostgresStore(where)
    return SqliteStore(where)


def submit_and_drain(where: str, own: int, total: int) -> tuple[list[str], list[str]]:
    """Open (and create) the database, submit jobs, then claim and settle until all are done."""
    store = open_store(where)
    jobs = [a_job() for _ in range(own)]
    for job in jobs:
        assert run_blocking(store.submit([job])).new == 1
    worker, ran = uuid.uuid4(), []
    while run_blocking(store.counts(EVERYTHING))[Status.SUCCEEDED] < total:
        runs = run_blocking(store.claim(worker, "default", POLICIES, 3))
        reports = [Report.of(run, Succeeded()) for run in runs]
        assert run_blocking(store.settle(reports)) == {run.lease for run in runs}
        ran += [run.job_id.hex for run in runs]
    run_blocking(store.aclose())
    return [job.id.hex for job in jobs], ran


def migrate(where: str) -> tuple[list[int], list[int]]:
    """Create the tables; returns what this process applied, and what there is then."""
    store = open_store(where)
    applied = [migration.version for migration in run_blocking(store.migrate())]
    there = [migration.version for migration in run_blocking(store.applied_migrations())]
    run_blocking(store.aclose())
    return applied, there


def first_use(where: str) -> int:
    """Submit one job to a database that may not have tables yet."""
    store = open_store(where)
    inserted = run_blocking(store.submit([a_job()])).new
    run_blocking(store.aclose())
    return inserted
