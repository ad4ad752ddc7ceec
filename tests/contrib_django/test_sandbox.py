"""The test kit in a Django project: a drain inside of a test's transaction."""

import pytest
from django.db import transaction
from django.test import TestCase

from pulsed import testing
from pulsed.contrib.django import app
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
