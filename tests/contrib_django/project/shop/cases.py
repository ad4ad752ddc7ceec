"""Tests as a user of Django writes them; run by ``manage.py test``, and not by pytest."""

from django.test import TestCase, TransactionTestCase

from pulsed.contrib.django import app
from pulsed.model.job import Status
from tests.contrib_django.project.shop.tasks import mail


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


class Committing(TransactionTestCase):
    """Each test commits, and the tables are emptied after it."""

    def test_one(self) -> None:
        """Find none but the job of this test."""
        mail.enqueue("ada")
        self.assertEqual(pending(), 1)

    test_other = test_one
