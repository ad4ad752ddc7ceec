"""Real workers of a project, in processes of their own, and databases that go away."""

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import InterfaceError, OperationalError, connections
from psycopg import errors

from pulsed import Snooze
from pulsed.contrib.django import app, connection_hygiene
from pulsed.contrib.django.connection_hygiene import (
    MOST_LOSSES,
    close_stale_connections,
    forgiving_outages,
    lost_the_database,
)
from pulsed.errors import StorageBusy
from pulsed.model.ids import new_job_id
from pulsed.model.job import Status
from tests.contrib_django.processes import MANAGE, PLACES, ROOT, environment
from tests.contrib_django.project.databases import entry
from tests.contrib_django.project.shop import tasks
from tests.contrib_django.project.shop.models import Order
from tests.contrib_django.working import use
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.waiting import PATIENCE, pauses


@contextlib.contextmanager
def worker(alias: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A worker process, drained at the end."""
    process = subprocess.Popen(
        [sys.executable, MANAGE, "pulsed", "worker", *options],
        cwd=ROOT,
        env=environment(alias),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE)
        sys.stderr.write(log)
    assert process.returncode == 0


def wait_until(condition: Any) -> None:
    give_up_at = time.monotonic() + PATIENCE
    for pause in pauses():
        if condition():
            return
        assert time.monotonic() < give_up_at, app.jobs.counts()
        time.sleep(pause)


def test_a_worker_process_runs_the_tasks_of_a_project(alias: str):
    order = Order.objects.create(name="book")
    results = [tasks.pack.enqueue(order.id), tasks.apack.enqueue(order.id)]
    processes = ("--processes", "2") if alias == "default" else ()
    with worker(alias, *processes, "--log-level", "warning"):
        wait_until(lambda: app.jobs.counts()[Status.SUCCEEDED] == 2)
    for result in results:
        result.refresh()
    assert {result.status for result in results} == {"SUCCESSFUL"}
    order.refresh_from_db()
    assert order.runs == 2


@pytest.fixture
def restartable(databases: None) -> Iterator[ScratchPostgres]:
    """A server of the test's own, which has the project's only database."""
    with ScratchPostgres() as server:
        PLACES["restartable"] = server.url
        entry_of = {**connections.settings["postgres"], **entry(server.url)}
        connections.settings["restartable"] = entry_of
        use("restartable")
        call_command("migrate", database="restartable", run_syncdb=True, verbosity=0)
        yield server
        app.leave()
        connections.close_all()
        del connections.settings["restartable"], PLACES["restartable"]


def test_a_restart_of_the_database_costs_no_task(restartable: ScratchPostgres):
    """Threads have kept connections; those that are lost count as no attempt."""
    order = Order.objects.create(name="book")
    for _ in range(60):
        tasks.slow.enqueue(order.id)
    url = restartable.url
    with worker("restartable", "-c", "10", "--log-level", "error"):
        wait_until(lambda: jobs_in(url, "SUCCEEDED") >= 10)
        restartable.restart()
        wait_until(lambda: jobs_in(url, "SUCCEEDED", "DEAD_LETTERED") == 60)
    assert jobs_in(url, "SUCCEEDED", attempts=1) == 60


def jobs_in(url: str, *statuses: str, attempts: int = 0) -> int:
    """How many jobs are in these statuses, with so many attempts; none, if the server is away."""
    with contextlib.suppress(psycopg.Error), psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT count(*) FROM pulse_jobs WHERE status = ANY(%s) AND %s IN (0, attempts)",
            [list(statuses), attempts],
        )
        return int(found.fetchall()[0][0])
    return 0


@pytest.mark.parametrize("alias", ["postgres"], indirect=True)
def test_a_kept_connection_that_died_is_replaced_before_the_run(alias: str):
    Order.objects.count()
    connection = connections[alias]
    (pid,) = connection.connection.execute("SELECT pg_backend_pid()").fetchone()
    with psycopg.connect(PLACES[alias], autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", [pid])
        wait_until(
            lambda: (
                not admin.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchall()
            )
        )
    close_stale_connections()
    assert Order.objects.count() == 0


def raised(kind: type[Exception], cause: Exception | None) -> Exception:
    error = kind("told by Django")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error, lost",
    [
        (raised(OperationalError, errors.AdminShutdown()), True),
        (raised(OperationalError, psycopg.OperationalError("connection refused")), True),
        (raised(InterfaceError, psycopg.InterfaceError("the connection is closed")), True),
        (raised(OperationalError, errors.QueryCanceled()), False),
        (raised(OperationalError, errors.OutOfMemory()), False),
        (raised(OperationalError, None), False),
        (StorageBusy("enqueueing waited for a lock"), True),
        (ValueError("its own"), False),
    ],
)
def test_only_an_outage_is_forgiven(error: Exception, lost: bool):
    assert lost_the_database(error) is lost


def test_a_job_that_always_loses_its_connection_fails_in_the_end():
    job_id = new_job_id()
    lost = raised(OperationalError, errors.AdminShutdown())
    for _ in range(MOST_LOSSES):
        with pytest.raises(Snooze), forgiving_outages(job_id):
            raise lost
    with pytest.raises(OperationalError), forgiving_outages(job_id):
        raise lost
    with forgiving_outages(job_id):
        pass
    assert job_id not in connection_hygiene._lost
