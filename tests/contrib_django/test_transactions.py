"""Jobs and Django's transactions: what is rolled back was never enqueued."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections, transaction
from psycopg import OperationalError

from pulsed import Pulse
from pulsed.contrib.django import app
from pulsed.contrib.django.store import ProjectStore
from pulsed.errors import ConfigError, SchemaError, StorageError
from pulsed.model.job import Status
from pulsed.store import migrations
from pulsed.store.blocking import run_blocking
from pulsed.store.sql.statement import Sql, Statement
from pulsed.store.verbs.script import Script, Verb, VerbKind
from tests.contrib_django.processes import python
from tests.contrib_django.project.shop import tasks
from tests.contrib_django.project.shop.jobs import count_orders
from tests.contrib_django.project.shop.models import Order

CRASH = """
import os, signal
import django
django.setup()
from django.db import transaction
from tests.contrib_django.project.shop.models import Order
from tests.contrib_django.project.shop.tasks import pack
with transaction.atomic():
    order = Order.objects.create(name="never")
    pack.enqueue(order.id)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def pending() -> int:
    return app.jobs.counts()[Status.PENDING]


class Undo(Exception):
    """Ends a transaction."""


@contextlib.contextmanager
def undone(alias: str) -> Iterator[None]:
    """A transaction that is rolled back at its end."""
    with contextlib.suppress(Undo), transaction.atomic(using=alias):
        yield
        raise Undo


def test_a_commit_stores_one_job_and_a_rollback_none(alias: str):
    with transaction.atomic(using=alias):
        result = tasks.mail.enqueue("ada")
        assert tasks.mail.get_result(result.id).status == "READY"  # in its own transaction
    assert pending() == 1
    with undone(alias):
        result = tasks.mail.enqueue("ada")
    assert pending() == 1
    with pytest.raises(Exception, match=result.id):
        tasks.mail.get_result(result.id)


def test_a_savepoint_takes_its_jobs_with_it(alias: str):
    with transaction.atomic(using=alias):
        tasks.mail.enqueue("kept")
        with undone(alias):
            tasks.mail.enqueue("undone")
    assert pending() == 1


def test_a_crash_before_the_commit_leaves_nothing(alias: str):
    process = python(alias, "-c", CRASH)
    assert process.wait() == -signal.SIGKILL
    assert (Order.objects.count(), pending()) == (0, 0)


def test_jobs_without_the_framework_join_too(alias: str):
    with undone(alias):
        count_orders.enqueue()
        count_orders.enqueue_many([(), ()])
        app.enqueue("count_orders")
        assert pending() == 4
    assert pending() == 0


def test_operators_acts_join_too(alias: str):
    result = tasks.mail.enqueue("ada")
    with undone(alias):
        assert app.jobs.cancel(result.id) is Status.CANCELLED
    assert pending() == 1


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The queues of each notification."""
    found: list[set[str]] = []
    monkeypatch.setattr(ProjectStore, "notify_workers", lambda _, queues: found.append(queues))
    return found


def test_workers_are_woken_once_after_the_commit(alias: str, announced: list[set[str]]):
    with transaction.atomic(using=alias):
        tasks.mail.enqueue("ada")
        with transaction.atomic(using=alias):
            tasks.mail.enqueue("bob")
            tasks.pack.enqueue(1)
        assert announced == []
    assert announced == [{"mail", "default"}]


def test_a_notification_does_not_go_with_a_savepoint(alias: str, announced: list[set[str]]):
    with transaction.atomic(using=alias):
        with undone(alias):
            tasks.pack.enqueue(1)
        tasks.mail.enqueue("ada")
        with undone(alias):
            tasks.mail.enqueue("bob")
    assert announced == [{"mail"}]


def test_a_failed_statement_dooms_the_transaction_it_joined(alias: str):
    """Otherwise PostgreSQL would turn the COMMIT into a ROLLBACK, and Django would not notice."""

    def script() -> Script[None]:
        yield Statement(Sql("SELECT nothing FROM nowhere", ()), {})

    _ = pending()
    broken = Verb("broken", VerbKind.READ, script)
    store: Any = app.store
    with undone(alias):
        with pytest.raises(StorageError):
            run_blocking(store.perform(broken))
        with pytest.raises(transaction.TransactionManagementError):
            Order.objects.count()


@pytest.mark.parametrize("alias", ["postgres"], indirect=True)
def test_a_transaction_without_atomic_is_joined(alias: str):
    transaction.set_autocommit(False, using=alias)
    try:
        tasks.mail.enqueue("ada")
        transaction.rollback(using=alias)
    finally:
        transaction.set_autocommit(True, using=alias)
    assert pending() == 0


@pytest.mark.parametrize("alias", ["postgres"], indirect=True)
def test_a_connection_that_broke_is_replaced(alias: str):
    """Outside of a transaction, a lost connection costs a retry and nothing else."""
    _ = pending()
    with contextlib.suppress(OperationalError), connections[alias].cursor() as cursor:
        cursor.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    tasks.mail.enqueue("ada")
    assert pending() == 1


def test_missing_tables_name_the_command(alias: str, monkeypatch: pytest.MonkeyPatch):
    store: Any = app.store
    store._schema_is_good = False
    monkeypatch.setattr(migrations, "newest", lambda _: 9999)
    with pytest.raises(SchemaError, match=r"manage\.py migrate"):
        app.jobs.counts()


@pytest.mark.parametrize("how", [str, connections.__getitem__], ids=["alias", "connection"])
def test_other_apps_join_with_a_connection_of_django(alias: str, how: Callable[[str], Any]):
    other = Pulse(app.url)

    @other.job
    def follow(n: int) -> None: ...

    with other, transaction.atomic(using=alias):
        follow.using(conn=how(alias)).enqueue(1)
        with undone(alias):
            follow.using(conn=how(alias)).enqueue(2)
    assert [job.payload for job in app.jobs.list()] == [{"n": 1}]


def test_a_connection_outside_of_a_transaction_is_refused(alias: str):
    with pytest.raises(ConfigError, match=r"transaction\.atomic"):
        count_orders.using(conn=alias).enqueue()
    with pytest.raises(ConfigError, match="sync_to_async"):
        asyncio.run(count_orders.using(conn=alias).aenqueue())
    with pytest.raises(ConfigError, match="nowhere"):
        count_orders.using(conn="nowhere").enqueue()
    assert pending() == 0
