"""The dashboard as an ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from pulsed.app import Pulse
from pulsed.client.operator import acting_as
from pulsed.errors import (
    BulkNotFound,
    JobNotFound,
    PulsedError,
    ScheduleNotFound,
    StorageError,
    WorkerNotFound,
)
from pulsed.model.audit import Operator
from pulsed.web.access import Access, Local, Visitor
from pulsed.web.guard import SAFE_METHODS, Guard, read_form
from pulsed.web.live import Hub
from pulsed.web.login import login_routes
from pulsed.web.redaction import Redaction
from pulsed.web.render import STATIC
from pulsed.web.routes import PAGES
from pulsed.web.site import PageCall, PageRoute, Site


def dashboard(
    app: Pulse,
    *,
    access: Access | None = None,
    redaction: Redaction | None = None,
    environment: str = "",
) -> ASGIApp:
    """Return the dashboard of an app as an ASGI application, to serve or to mount.

    Args:
        app: The app whose jobs are shown. Its database may be behind a server.
        access: Who may see and change what. By default, visitors from this machine may see
            everything and change nothing: ``Local(Role.ADMIN)`` lets them.
        redaction: Which values of payloads are hidden from everybody.
        environment: A line below the navigation, such as ``shop · production``.
    """
    site = Site(app, access or Local(), redaction or Redaction(), environment)
    hub = Hub(site.summary)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await site.performing.close()
        await hub.close()

    routes = [Route(page.path, _endpoint(site, page), methods=[page.method]) for page in PAGES]
    routes += login_routes(site)
    static = Mount("/static", _ImmutableFiles(directory=STATIC), name="static")
    inner = Starlette(routes=[*routes, static], lifespan=lifespan)
    inner.state.hub = hub
    inner.state.site = site
    return Guard(inner, site.access, lambda: app.store)


def _endpoint(site: Site, page: PageRoute) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        visitor: Visitor | None = request.state.visitor
        if visitor is None or not visitor.may(page.role):
            return PlainTextResponse(
                f"This needs the role {page.role.name.lower()}; you have "
                f"{visitor.role.name.lower() if visitor else 'none'}.\n",
                403,
            )
        is_safe = page.method in SAFE_METHODS
        form: Mapping[str, list[str]] | None = {} if is_safe else await read_form(request)
        if form is None:
            return PlainTextResponse("This form is too large, or has expired: reload it.\n", 403)
        call = PageCall(site, request, visitor, form)
        who = Operator(f"{visitor.name} (dashboard)", role=visitor.role.name.lower())
        with acting_as(who):
            return await _answered(call, page)

    return answer


async def _answered(call: PageCall, page: PageRoute) -> Response:
    """Return an endpoint's answer, or a page about what went wrong."""
    try:
        answer = await page.endpoint(call)
    except (JobNotFound, ScheduleNotFound, BulkNotFound, WorkerNotFound) as error:
        return await _error_page(call, 404, str(error))
    except StorageError as error:
        return PlainTextResponse(f"The database cannot be reached: {error}\n", 503)
    except PulsedError as error:
        if call.form.get("back"):
            return call.done(str(error), call.back("/"), is_error=True)
        return await _error_page(call, 400, str(error))
    if page.method not in SAFE_METHODS:
        call.site.shared.forget()
    return answer


async def _error_page(call: PageCall, status: int, message: str) -> Response:
    return await call.page("error.html", status=status, message=message)


class _ImmutableFiles(StaticFiles):
    """Static files whose address has their digest."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response
