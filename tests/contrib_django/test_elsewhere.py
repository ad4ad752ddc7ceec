"""Jobs in another database than Django's: tasks are enqueued after the commit."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import transaction
from msgspec.structs import replace

from pulsed.contrib.django import app
from pulsed.model.job import Status
from tests.contrib_django.project.shop.tasks import bill, mail


@pytest.fixture
def elsewhere(alias: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The project's jobs are in a file that Django knows nothing about."""
    app.leave()
    monkeypatch.setattr(app, "_url", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    monkeypatch.setattr(app, "_settings", replace(app.settings, migrate=True))
    yield
    app.leave()


pytestmark = [
    pytest.mark.usefixtures("elsewhere"),
    pytest.mark.parametrize("alias", ["default"], indirect=True),
]


def pending() -> int:
    return app.jobs.counts()[Status.PENDING]


def test_a_task_is_stored_after_the_commit_under_the_id_it_was_given():
    with transaction.atomic():
        result = mail.enqueue("ada")
        assert pending() == 0
    assert app.database is None
    assert mail.get_result(result.id).status == "READY"


def test_a_rollback_stores_nothing():
    with transaction.atomic():
        mail.enqueue("ada")
        transaction.set_rollback(True)
    assert pending() == 0


def test_outside_of_a_transaction_it_is_stored_at_once():
    mail.enqueue("ada")
    assert pending() == 1


def test_what_cannot_be_stored_raises_before_the_commit():
    with transaction.atomic(), pytest.raises(TypeError, match="Unsupported"):
        mail.enqueue(object())
    with transaction.atomic():
        first, again = bill.enqueue(1), bill.enqueue(1)
    assert first.id != again.id  # which of them holds the key is known after the commit
    assert pending() == 1
