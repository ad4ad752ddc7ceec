"""The project around the jobs: settings, commands, tables, test databases."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from pulsed.cli.root import root
from pulsed.contrib.django import app
from pulsed.contrib.django.management.commands.pulsed import APP, Command
from pulsed.contrib.django.project import from_settings
from pulsed.contrib.django.tables import store_in
from pulsed.errors import ConfigError
from pulsed.events import RunSucceeded
from pulsed.model.job import Status
from tests.contrib_django.processes import manage
from tests.contrib_django.project.shop import tasks
from tests.contrib_django.project.shop.jobs import acount_orders, count_orders
from tests.contrib_django.project.shop.models import Order
from tests.contrib_django.working import work_until
from tests.support.commands import run


def test_jobs_py_and_tasks_py_are_found(alias: str):
    topics = {handler.topic for handler in app.registry}
    assert {"count_orders", "acount_orders"} <= topics
    assert "tests.contrib_django.project.shop.tasks.pack" in topics


def test_jobs_use_the_orm_in_threads_and_on_the_loop(alias: str):
    Order.objects.create(name="book")
    seen: list[RunSucceeded] = []
    app._events.subscribe(seen.extend, {RunSucceeded})
    jobs = [count_orders.enqueue(), acount_orders.enqueue()]

    async def all_ended() -> bool:
        for job in jobs:
            await job.arefresh()
        return all(job.status is Status.SUCCEEDED for job in jobs)

    work_until(all_ended)
    assert [job.result() for job in jobs] == [1, 1]
    assert {event.job_id for event in seen} == {job.id for job in jobs}


def test_flush_removes_jobs_and_keeps_the_tables(alias: str):
    count_orders.enqueue()
    call_command("flush", database=alias, interactive=False, verbosity=0)
    assert sum(app.jobs.counts().values()) == 0


def test_a_flush_that_is_not_confirmed_removes_nothing(alias: str, monkeypatch: pytest.MonkeyPatch):
    count_orders.enqueue()
    for answer, left in (("no", 1), ("yes", 0)):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        call_command("flush", database=alias, verbosity=0)
        assert sum(app.jobs.counts().values()) == left


def test_migrate_of_another_database_makes_no_tables(alias: str):
    assert store_in(app, alias) is not None
    assert store_in(app, "another") is None


def test_test_databases_have_the_tables_and_lose_the_jobs(alias: str):
    ended = manage(alias, "test", "--noinput", "tests.contrib_django.project.shop.cases")
    assert ended.returncode == 0, ended.stdout
    assert "Ran 5 tests" in ended.stdout


def test_a_database_in_memory_has_no_worker(databases: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(app, "_database", "default")
    in_memory = "file:memorydb_default?mode=memory&cache=shared"
    monkeypatch.setitem(connections.settings["default"], "NAME", in_memory)
    with pytest.raises(ConfigError, match="TEST"):
        asyncio.run(app.jobs.acounts())


def test_the_command_line_has_the_projects_app(alias: str):
    result = tasks.mail.enqueue("ada")
    shown = run("jobs", "show", result.id, PULSED_APP=APP)
    assert shown.exit_code == 0, shown.stderr
    assert tasks.mail.module_path in shown.stdout
    assert run("jobs", "show", "0" * 31 + "1", PULSED_APP=APP).exit_code == 3


def test_processes_of_a_worker_find_the_project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    calls: list[tuple[list[str], str]] = []
    monkeypatch.setattr(root, "main", lambda args, prog_name: calls.append((args, prog_name)))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv("PYTHONPATH", "before")
    monkeypatch.setenv("PULSED_APP", "another")
    Command().run_from_argv([str(tmp_path / "manage.py"), "pulsed", "jobs", "list"])
    assert calls == [(["jobs", "list"], "manage.py pulsed")]
    assert sys.argv == ["pulsed", "jobs", "list"]
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(tmp_path), "before"])
    assert os.environ["PULSED_APP"] == "pulsed.contrib.django:app"


def test_a_worker_takes_every_queue_of_the_settings(alias: str, monkeypatch: pytest.MonkeyPatch):
    calls: list[list[str]] = []
    monkeypatch.setattr(root, "main", lambda args, **_: calls.append(args))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv("PULSED_APP", "another")
    command = Command()
    command.call(["worker", "-c", "5"])
    command.call(["worker", "-q", "mail"])
    command.call(["jobs", "list"])
    assert calls == [
        ["worker", "-c", "5", "--queues", "default,mail"],
        ["worker", "-q", "mail"],
        ["jobs", "list"],
    ]


@pytest.mark.parametrize(
    "given, reason",
    [
        ({"database": "nowhere"}, "nowhere"),
        ({"database": "default", "url": "sqlite:///x.db"}, "both"),
        ({"colour": "red"}, "colour"),
        (["default"], "dict"),
    ],
)
def test_wrong_settings_are_named(databases: None, given: Any, reason: str):
    with override_settings(PULSED=given), pytest.raises(ImproperlyConfigured, match=reason):
        from_settings()


def test_deferred_transactions_of_sqlite_are_warned_about(
    databases: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(app, "_database", "default")

    def found() -> list[str | None]:
        every = run_checks(databases=["default"])
        return [each.id for each in every if str(each.id).startswith("pulsed")]

    assert found() == []
    monkeypatch.delitem(connections["default"].settings_dict["OPTIONS"], "transaction_mode")
    assert found() == ["pulsed.W001"]


def test_pulsed_itself_does_not_import_django():
    code = (
        "import sys; from pulsed import Pulse; Pulse('sqlite://').store; import pulsed.cli.root; "
    )
    code += "sys.exit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_operators_do_works_on_djangos_connection(alias: str):
    """Statements of pulsed may need functions and settings that its own connections have."""
    first, second = count_orders.enqueue(), count_orders.using(delay=3600).enqueue()
    assert app.jobs.run_now(second.id) is Status.PENDING
    app.jobs.reschedule(second.id, delay=60)
    assert app.jobs.cancel(first.id) is Status.CANCELLED
    assert app.jobs.retry(first.id) is Status.PENDING
    app.jobs.cancel(first.id)
    assert app.jobs.edit_and_retry(first.id, {}) is Status.PENDING
    app.signal(first.id, "go", 1)
    assert app.jobs.cancel_matching(topic="count_orders") == 2
    assert app.jobs.prune(older_than=0)[Status.CANCELLED] == 2
    app.schedules.put("nightly", count_orders, cron="0 3 * * *")
    app.schedules.pause("nightly")
    app.schedules.resume("nightly")
    job = app.schedules.run_now("nightly")
    app.schedules.delete("nightly")
    assert app.jobs.delete(job.id) is Status.PENDING
    assert len(app.audit.list()) > 5
    assert app.stats.errors() == []
