"""What every page of the dashboard needs: the site, the call, and the role of a route."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from pulsed.app import Pulse
from pulsed.engine.lanes import Lanes
from pulsed.engine.shared_reads import SharedReads
from pulsed.engine.state_reads import StateReads
from pulsed.model.control import Control, ControlKey
from pulsed.model.job import JobFilter, WorkerInfo
from pulsed.model.page import Counts
from pulsed.store.results import Backlog
from pulsed.web.access import Access, Role, Visitor
from pulsed.web.guard import cookie
from pulsed.web.performing import Performing
from pulsed.web.redaction import Redaction
from pulsed.web.render import templates
from pulsed.web.summary import Summary, summary_of

Endpoint = Callable[["PageCall"], Awaitable[Response]]

NOTICE_COOKIE = "pulsed_notice"
LONGEST_NOTICE = 500


@dataclass(frozen=True)
class Notice:
    """What an act did, or why it did nothing. The page after it shows it once."""

    text: str
    is_error: bool = False


@dataclass(frozen=True)
class Site:
    """One dashboard: the app that it shows, and how."""

    app: Pulse
    access: Access
    redaction: Redaction
    environment: str
    templates: jinja2.Environment = field(default_factory=templates)
    shared: SharedReads = field(default_factory=SharedReads)
    performing: Performing = field(default_factory=Performing)

    # What several pages read: each of it once per tick, however many of them are open.

    @property
    def reads(self) -> StateReads:
        """What the doctor's checks read, too."""
        return StateReads(self.app.store, self.shared)

    async def now(self) -> datetime:
        """Return the database's time, at most a tick old."""
        return await self.reads.now()

    async def workers(self) -> list[WorkerInfo]:
        """Return the workers, live and silent ones."""
        return await self.reads.workers()

    async def backlog(self) -> list[Backlog]:
        """Return what is due, by queue and topic."""
        return await self.reads.backlog()

    async def controls(self) -> dict[ControlKey, Control]:
        """Return what governs queues, topics and limits, as far as one page of them reaches."""
        found = await self.shared.get("controls", self.app.store.controls.list_page)
        return {control.key: control for control in found}

    async def counts(self) -> Counts:
        """Return how many jobs there are, by status."""
        return await self.shared.get("counts", lambda: self.app.store.counts(JobFilter()))

    async def lanes(self) -> Lanes:
        """Return what the state of queues is made of."""
        running = self.shared.get("running", self.app.store.running)
        return Lanes(*await asyncio.gather(self.backlog(), running, self.workers(), self.now()))

    async def summary(self) -> Summary:
        """Return the numbers that every page shows."""
        return summary_of(
            *await asyncio.gather(self.now(), self.counts(), self.backlog(), self.workers())
        )


@dataclass(frozen=True)
class PageCall:
    """A request to a page or an act, from an authenticated visitor."""

    site: Site
    request: Request
    visitor: Visitor
    form: Mapping[str, list[str]]

    @property
    def app(self) -> Pulse:
        """The app whose jobs are shown."""
        return self.site.app

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the address."""
        return self.request.query_params

    @property
    def here(self) -> str:
        """The path of the page, without the place where the dashboard is mounted."""
        return self.request.url.path.removeprefix(self.request.scope.get("root_path", ""))

    @property
    def is_refresh(self) -> bool:
        """Whether an open page reads itself again."""
        return "x-refresh" in self.request.headers

    def path(self, name: str) -> str:
        """Return a parameter of the path."""
        return str(self.request.path_params[name])

    def given(self, name: str, default: str = "") -> str:
        """Return the first value of a field of the form."""
        return self.form.get(name, [default])[0]

    def url(self, path: str, **query: str | None) -> str:
        """Return the address of a page, wherever the dashboard is mounted."""
        return address(self.request.scope, path, query)

    def url_path(self, path: str, **query: str | None) -> str:
        """Return a path with its parameters, for ``done`` and ``back``: without the mount point."""
        return address({}, path, query)

    def back(self, default: str) -> str:
        """Return the path that an act leads back to: the form's ``back``, or ``default``."""
        given = self.given("back")
        return given if _is_path(given) else default

    def done(self, text: str, path: str, *, is_error: bool = False) -> Response:
        """Answer an act: redirect to a path of the dashboard, which shows the text.

        The text travels in a cookie, since a link to the page must not be able to make it up.
        """
        answer = RedirectResponse(self.url("") + path, 303)
        value = ("!" if is_error else "") + quote(text[:LONGEST_NOTICE], safe="")
        answer.headers.append("set-cookie", cookie(self.request, NOTICE_COOKIE, value, seconds=60))
        return answer

    @property
    def notice(self) -> Notice | None:
        """What the act before this page did; None if an open page reads itself again."""
        value = self.request.cookies.get(NOTICE_COOKIE)
        if not value or self.is_refresh:
            return None
        return Notice(unquote(value.removeprefix("!")), value.startswith("!"))

    async def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page."""
        answer = HTMLResponse(await self.html(template, **values), status)
        if self.notice:
            answer.headers.append("set-cookie", cookie(self.request, NOTICE_COOKIE, "", seconds=0))
        return answer

    async def html(self, template: str, **values: Any) -> str:
        """Return a rendered template."""
        frame = {
            "summary": await self.site.summary(),
            "environment": self.site.environment,
            "visitor": self.visitor,
            "signs_in": self.site.access.has_login,
            "csrf": self.request.state.csrf,
            "url": self.url,
            "here": self.here,
            "address": self.here + (f"?{self.request.url.query}" if self.request.url.query else ""),
            "notice": self.notice,
            "Role": Role,
        }
        return self.site.templates.get_template(template).render(frame | values)


@dataclass(frozen=True)
class PageRoute:
    """A route of the dashboard, and the role that it needs."""

    path: str
    endpoint: Endpoint
    role: Role = Role.VIEWER
    method: str = "GET"


def address(scope: Scope, path: str, query: Mapping[str, str | None]) -> str:
    """Return a path of the dashboard with its mount point and its parameters."""
    given = {name: value for name, value in query.items() if value}
    return str(scope.get("root_path", "")) + path + (f"?{urlencode(given)}" if given else "")


def _is_path(text: str) -> bool:
    """Whether a text is a path of this site, and nothing that a browser takes for another one."""
    return text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
