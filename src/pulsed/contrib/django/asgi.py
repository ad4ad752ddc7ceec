"""The dashboard beside a project's pages, for users whom Django has signed in."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.db import close_old_connections
from django.http import HttpRequest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from pulsed.contrib.django.current import project_app
from pulsed.web import Delegated, Redaction, Role, Visitor, dashboard

ROLES = (
    ("pulsed.administer_jobs", Role.ADMIN),
    ("pulsed.operate_jobs", Role.OPERATOR),
    ("pulsed.view_jobs", Role.VIEWER),
)
"""The permissions that give a role, the highest first. A superuser has them all."""


def with_dashboard(
    application: ASGIApp,
    path: str = "/jobs",
    *,
    redaction: Redaction | None = None,
    environment: str = "",
) -> ASGIApp:
    """Return a project's ASGI application with the dashboard below a path.

    It is for staff who have a permission of ``pulsed``: ``view_jobs``, ``operate_jobs`` or
    ``administer_jobs``.
    """
    app = project_app()
    path = f"/{path.strip('/')}"
    jobs = dashboard(app, access=Delegated(visitor), redaction=redaction, environment=environment)

    async def to_overview(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}{path}/")

    return Starlette(routes=[Route(path, to_overview), Mount(path, jobs), Mount("/", application)])


@sync_to_async
def visitor(connection: HTTPConnection) -> Visitor | None:
    """Return who visits the dashboard, from the session's cookie; None if that is no staff."""
    close_old_connections()  # as Django does around its own requests
    try:
        return _visitor(_user_of(connection.cookies.get(settings.SESSION_COOKIE_NAME)))
    finally:
        close_old_connections()


def _user_of(session_key: str | None) -> Any:
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return get_user(request)


def _visitor(user: Any) -> Visitor | None:
    if not (user.is_active and user.is_staff):
        return None
    for permission, role in ROLES:
        if user.has_perm(permission):
            return Visitor(user.get_username(), role)
    return None
