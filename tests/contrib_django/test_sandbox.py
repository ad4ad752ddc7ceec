"""The test kit in a Django project: a drain inside of a test's transaction."""

import pytest
from django.db import transaction
from django.test import TestCase

from pulsed import testing
from pulsed.contrib.django import app
from pulsed.errors import ConfigError
from tests.contrib_django.project.shop import tasks
from tests.contrib_django.project.shop.models import Order


class Undone(Exception):
    """Rolls a test's transaction back, as Django's ``TestCase`` does."""


def run_in_a_transaction(alias: str) -> None:
    with transaction.atomic(using=alias), testing.override(app) as sandbox:
        order = Order.objects.create(name="book")
        with TestCase.captureOnCommitCallbacks(execute=True):  # the jobs are in another database
            result = tasks.pack.enqueue(order.id)
        assert len(sandbox.drain()) == 1
        order.refresh_from_db()
        assert order.runs == 1
        assert tasks.pack.get_result(result.id).status == "SUCCESSFUL"
        raise Undone


def test_a_drain_runs_tasks_in_the_transaction_of_the_test(alias: str):
    with pytest.raises(Undone):
        run_in_a_transaction(alias)
    assert Order.objects.count() == 0
    assert app.jobs.list() == []


def test_a_drain_of_the_projects_own_jobs_is_refused_in_a_transaction(alias: str):
    """A worker would not see them, and on SQLite wait for the transaction to end."""
    with transaction.atomic(using=alias):
        tasks.mail.enqueue("ada")
        with pytest.raises(ConfigError, match=f"open on the database '{alias}'.+override"):
            testing.drain(app)
    assert [ran.topic for ran in testing.drain(app)] == [tasks.mail.module_path]
