"""Workflows: what a durable step costs beside a commit, and a child of a fan-out beside a job.

A step is stored before the next one begins, so consecutive steps can be no faster than single
commits of the same database. Both are measured alternately.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.app import Tasks
from benchmarks.databases import Batch, Database, Server, opened
from benchmarks.peers import empty_place, run
from benchmarks.peers.peer import STEPS
from benchmarks.processes import WorkerProcess, in_processes, wait_until_done
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale
from benchmarks.workloads.enqueue import bare_singly
from benchmarks.workloads.latency import wait_until_ready
from pulsed import Job

COMMITS = "bare driver, a row for each commit"
ONE = f"{PULSED}, one workflow"
MANY = f"{PULSED}, 100 workflows at once"
AT_ONCE = 100
CHILDREN = f"{PULSED}, children of a fan-out"
PLAIN = f"{PULSED}, plain jobs"
PATIENCE = 120.0


def measure_steps(server: Server, results: Results, scale: Scale) -> None:
    """Take steps in one workflow and in many, in turns with single commits."""
    database = server.database()
    for _ in range(scale.repeat):
        database.empty()
        act, arguments = bare_singly(database, scale.steps)
        (seconds,) = in_processes(act, arguments)
        results.add("steps", server.engine, COMMITS, "steps/s", scale.steps / seconds)
        one = one_workflow(database, scale.steps)
        results.add("steps", server.engine, ONE, "steps/s", one)
        many = many_workflows(database, scale.steps)
        results.add("steps", server.engine, MANY, "steps/s", many)


def one_workflow(database: Database, steps: int) -> float:
    """Return the steps per second of one workflow on an idle worker, by its own clock."""
    with idle_worker(database) as tasks:
        return steps / (tasks.stepping.enqueue(steps).result(timeout=PATIENCE) / 1e9)


def many_workflows(database: Database, steps: int) -> float:
    """Return the steps per second of many workflows on one worker, from first start to last end."""
    each = max(1, steps // 10)
    with idle_worker(database) as tasks:
        _await_all(database, tasks.stepping.enqueue_many([(each,)] * AT_ONCE))
    return AT_ONCE * each / _seconds(database, "stepping", since="started_at")


def measure_steps_beside_peers(server: Server, results: Results, scale: Scale) -> None:
    """Take the steps of one workflow, in turns with DBOS."""
    database = server.database()
    for _ in range(scale.repeat):
        ours = one_workflow(database, scale.steps)
        results.add("peers-steps", server.engine, ONE, "steps/s", ours)
        with empty_place(STEPS, server) as url:
            said = run(STEPS, url, str(scale.steps))
        subject = f"{STEPS.title} {said['version']}, one workflow"
        rate = said["jobs"] / said["seconds"]
        results.add("peers-steps", server.engine, subject, "steps/s", rate)


def measure_fan_out(server: Server, results: Results, scale: Scale) -> None:
    """Let an idle worker do a fan-out, and in turns as many jobs without a parent."""
    database = server.database()
    acts = {PLAIN: plain_jobs, CHILDREN: children}
    for _ in range(scale.repeat):
        for subject, act in acts.items():
            rate = scale.children / act(database, scale.children)
            results.add("fan-out", server.engine, subject, "jobs/s", rate)


def plain_jobs(database: Database, count: int) -> float:
    """Return the seconds from the submit of the first to the end of the last."""
    with idle_worker(database) as tasks:
        _await_all(database, tasks.noop.enqueue_many([(number,) for number in range(count)]))
    return _seconds(database, "noop", since="submitted_at")


def children(database: Database, count: int) -> float:
    """Return the seconds from the submit of the parent to its end."""
    with idle_worker(database) as tasks:
        tasks.fanning.enqueue(count).result(timeout=PATIENCE)
    return _seconds(database, "fanning", since="submitted_at")


@contextlib.contextmanager
def idle_worker(database: Database) -> Iterator[Tasks]:
    """Run a worker on an empty database, ready before anything is measured."""
    database.empty()
    with WorkerProcess(database.url), opened(database.url) as tasks:
        wait_until_ready(database.url)
        yield tasks


def _await_all(database: Database, jobs: Sequence[Job[Any]]) -> None:
    ids = [job.id for job in jobs]
    if not wait_until_done(database, Batch(min(ids), max(ids), len(ids)), PATIENCE):
        raise RuntimeError(f"{len(ids):,} jobs did not end within {PATIENCE:g} s")


def _seconds(database: Database, topic: str, *, since: str) -> float:
    """Return the time that the jobs of a topic took, by the database's clock."""
    span = f"max(completed_at) - min({since})"
    seconds = (
        f"extract(epoch FROM {span})::float8"
        if database.engine == "postgres"
        else f"({span}) / 1e6"
    )
    # The job that showed that the worker is ready does not count.
    query = (
        f"SELECT {seconds} FROM pulse_jobs WHERE topic = '{topic}' AND CAST(result AS text) <> '-1'"
    )
    ((took,),) = database.rows(query)
    return float(took)
