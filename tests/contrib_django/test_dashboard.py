"""The dashboard of a project: for staff, by permission."""

from importlib import import_module
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import Permission, User
from django.core.asgi import get_asgi_application
from starlette.testclient import TestClient

from pulsed.contrib.django.asgi import with_dashboard
from pulsed.model.job import Status
from tests.contrib_django.project.shop.jobs import count_orders


def session_of(user: Any) -> str:
    """Sign a user in; returns the key of the session."""
    session = import_module(settings.SESSION_ENGINE).SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return str(session.session_key)


def client(*permissions: str, **flags: bool) -> TestClient:
    """A browser in which a new user has signed in."""
    user = User.objects.create_user("ada", **{"is_staff": True, **flags})
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return TestClient(
        with_dashboard(get_asgi_application(), "/jobs"),
        cookies={settings.SESSION_COOKIE_NAME: session_of(user)},
        base_url="http://testserver",
    )


@pytest.mark.parametrize(
    "permissions, flags, seen, role",
    [
        ([], {}, 401, None),
        (["view_jobs"], {"is_staff": False}, 401, None),
        (["administer_jobs"], {"is_active": False}, 401, None),
        (["view_jobs"], {}, 200, "viewer"),
        (["view_jobs", "operate_jobs"], {}, 200, "operator"),
        ([], {"is_superuser": True}, 200, "admin"),
    ],
)
def test_permissions_decide(
    alias: str, permissions: list[str], flags: dict[str, bool], seen: int, role: str | None
):
    browser = client(*permissions, **flags)
    job = count_orders.enqueue()
    page = browser.get(f"/jobs/jobs/{job.id}")
    assert page.status_code == seen
    assert ("Cancel" in page.text) is (role in ("operator", "admin"))
    assert browser.get("/jobs", follow_redirects=False).headers["location"] == "/jobs/"
    assert browser.get("/nowhere").status_code == 404  # Django's own


def test_strangers_see_nothing(alias: str):
    browser = TestClient(with_dashboard(get_asgi_application()), base_url="http://testserver")
    assert browser.get("/jobs/").status_code == 401
    assert count_orders.enqueue().status is Status.PENDING
