"""Jobs in Django's admin: who sees them, what is listed, and what can be done about them."""

from datetime import UTC
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from pulsed.contrib.django import app
from pulsed.model.job import Status
from tests.contrib_django.project.shop import tasks

JOBS = "/admin/pulsed/jobaccess/"


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The project has no time zone: Django would change that of the process."""
    monkeypatch.setattr(timezone, "get_default_timezone", lambda: UTC)


def signed_in(*permissions: str, **flags: bool) -> Client:
    """A browser in which a new user has signed in."""
    user = User.objects.create_user("ada", **{"is_staff": True, **flags})
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client(enforce_csrf_checks=False)
    client.force_login(user)
    return client


def text_of(answer: Any) -> str:
    assert answer.status_code == 200, answer.status_code
    return str(answer.content.decode())


def status_of(job_id: Any) -> Status:
    return app.jobs.get(job_id).status


@pytest.mark.parametrize(
    "permissions, flags, seen, may_act",
    [
        ([], {}, 403, False),
        (["view_jobs"], {"is_staff": False}, 302, False),
        (["view_jobs"], {}, 200, False),
        (["operate_jobs"], {}, 200, True),
        ([], {"is_superuser": True}, 200, True),
    ],
)
def test_permissions_decide_who_sees_and_who_acts(
    alias: str, permissions: list[str], flags: dict[str, bool], seen: int, may_act: bool
):
    browser = signed_in(*permissions, **flags)
    job_id = tasks.mail.enqueue("bob-the-payload").id
    for page in (JOBS, f"{JOBS}{job_id}/"):
        answer = browser.get(page)
        assert answer.status_code == seen
        assert ("Cancel" in answer.content.decode()) is may_act
        assert "bob-the-payload" not in answer.content.decode()
    index = browser.get("/admin/").content.decode()
    assert (JOBS in index) is (seen == 200)
    for page in (JOBS, f"{JOBS}{job_id}/"):
        browser.post(page, {"action": "cancel", "_selected_action": [job_id]})
    assert status_of(job_id) is (Status.CANCELLED if may_act else Status.PENDING)


def test_jobs_are_filtered_by_status_and_searched(alias: str):
    browser = signed_in("view_jobs")
    mail, packed = tasks.mail.enqueue("bob").id, tasks.pack.enqueue(1).id
    app.jobs.cancel(packed)
    assert mail in text_of(browser.get(JOBS))
    cancelled = text_of(browser.get(JOBS, {"status": "CANCELLED"}))
    assert (mail in cancelled, packed in cancelled) == (False, True)
    found = text_of(browser.get(JOBS, {"q": "queue:mail"}))
    assert (mail in found, packed in found) == (True, False)
    both = text_of(browser.get(JOBS, {"q": "queue:mail", "status": "CANCELLED"}))
    assert "No jobs." in both
    for hostile in ("<script>", "since:never", "payload.args:bob", "\0", "x" * 5000, "status:x"):
        page = text_of(browser.get(JOBS, {"q": hostile, "status": hostile, "before": hostile}))
        assert "<script>" not in page.replace("<script src=", "").replace("</script>", "")
    assert "in the dashboard" in text_of(browser.get(JOBS, {"q": "payload.args:bob"}))


def test_a_list_has_pages(alias: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pulsed.contrib.django.admin.PAGE", 2)
    browser = signed_in("view_jobs")
    ids = [tasks.mail.enqueue(str(n)).id for n in range(3)]
    first = text_of(browser.get(JOBS))
    assert [each in first for each in ids] == [False, True, True]
    assert "Older jobs" in first
    second = text_of(browser.get(JOBS, {"before": ids[1]}))
    assert [each in second for each in ids] == [True, False, False]


def test_ticked_jobs_are_retried_and_the_others_say_why_not(alias: str):
    browser = signed_in("operate_jobs")
    cancelled, waiting = tasks.mail.enqueue("a").id, tasks.mail.enqueue("b").id
    app.jobs.cancel(cancelled)
    ticked = {"action": "retry", "_selected_action": [cancelled, waiting, "nonsense"]}
    page = text_of(browser.post(JOBS, ticked, follow=True))
    assert status_of(cancelled) is Status.PENDING
    assert "1 job: retry." in page
    assert page.count('class="error"') == 2
    entry = app.audit.list()[0]
    assert (entry.act, entry.actor) == ("retry jobs", "ada")
    assert "Tick jobs" in text_of(browser.post(JOBS, {"action": "explode"}, follow=True))
    assert browser.get(f"{JOBS}{uuid4()}/").status_code == 404


def test_an_act_needs_the_token_of_the_form(alias: str):
    browser = signed_in("operate_jobs")
    job_id = tasks.mail.enqueue("a").id
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = browser.cookies
    answer = strict.post(JOBS, {"action": "cancel", "_selected_action": [job_id]})
    assert answer.status_code == 403
    assert status_of(job_id) is Status.PENDING
