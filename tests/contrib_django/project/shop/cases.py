"""Tests as a user of Django writes them; run by ``manage.py test``, and not by pytest."""

from django.db import connection
from django.test import TestCase, TransactionTestCase

from pulsed.contrib.django import app
from pulsed.model.job import Status
from pulsed.testing import drain, override
from tests.contrib_django.project.shop.models import Order
from tests.contrib_django.project.shop.tasks import attempts, mail, pack


def pending() -> int:
    """How many jobs there are to run."""
    return app.jobs.counts()[Status.PENDING]


class InTransaction(TestCase):
    """Each test is rolled back, and its jobs with it."""

    def test_one(self) -> None:
        """Enqueue, and read it back."""
        result = mail.enqueue("ada")
        self.assertEqual(pending(), 1)
        self.assertEqual(mail.get_result(result.id).status, "READY")

    test_other = test_one

    def test_a_sandbox_runs_tasks_in_the_tests_own_transaction(self) -> None:
        """Drain, on the connection of the test."""
        order = Order.objects.create(name="book")
        with override(app) as sandbox:
            results = [pack.enqueue(order.id), attempts.enqueue()]
            sandbox.drain(skip_time=True)
            for result in results:
                result.refresh()
        order.refresh_from_db()
        self.assertEqual(order.runs, 1)
        self.assertEqual([result.status for result in results], ["SUCCESSFUL"] * 2)
        self.assertEqual(pending(), 0)


class Committing(TransactionTestCase):
    """Each test commits, and the tables are emptied after it."""

    def test_one(self) -> None:
        """Find none but the job of this test."""
        mail.enqueue("ada")
        self.assertEqual(pending(), 1)
        if not connection.settings_dict["NAME"].startswith("file:memory"):
            self.assertEqual([ran.topic for ran in drain(app)], [mail.module_path])
            self.assertEqual(pending(), 0)

    test_other = test_one
