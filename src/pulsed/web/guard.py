"""What stands before every page: host, identity, forgery protection, and headers of the answer."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from pulsed.store.base import Store
from pulsed.web.access import Access

CSRF_COOKIE = "pulsed_csrf"
CSRF_FIELD = "csrf"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LARGEST_FORM = 2 * 1024 * 1024
"""Bytes of a form: a payload to edit may have a megabyte."""
MOST_FIELDS = 2_000

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Admits requests to the pages, and protects their answers."""

    def __init__(self, inner: Starlette, access: Access, store: Callable[[], Store]) -> None:
        self.inner = inner
        """The pages."""
        self._access = access
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on with its visitor."""
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        csrf = connection.cookies.get(CSRF_COOKIE) or secrets.token_urlsafe(24)
        is_new = CSRF_COOKIE not in connection.cookies
        scope.setdefault("state", {})["csrf"] = csrf

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
                if is_new and not _is_static(scope):
                    headers.append("set-cookie", cookie(connection, CSRF_COOKIE, csrf))
            await send(message)

        answer = await self._refusal(connection)
        await (answer or self.inner)(scope, receive, protected)

    async def _refusal(self, connection: HTTPConnection) -> Response | None:
        if not self._access.accepts_host(_host_name(connection)):
            return PlainTextResponse(
                "This address is not a name of this dashboard. Open it at its own address, or "
                "configure access for other machines (see docs/dashboard.md).\n",
                421,
            )
        if connection.scope["method"] not in SAFE_METHODS and not _is_same_origin(connection):
            return PlainTextResponse("This request comes from another site.\n", 403)
        if _is_static(connection.scope):
            return None
        visitor = await self._access.visitor(connection, self._store())
        connection.scope["state"]["visitor"] = visitor
        if visitor is None and not _is_login(connection.scope):
            return self._unauthenticated(connection)
        return None

    def _unauthenticated(self, connection: HTTPConnection) -> Response:
        if self._access.has_login and connection.scope["method"] == "GET":
            path = connection.scope.get("root_path", "")
            return RedirectResponse(f"{path}/login", 303)
        headers = {"www-authenticate": self._access.challenge} if self._access.challenge else None
        return PlainTextResponse("You are not signed in here.\n", 401, headers)


async def read_form(request: Request) -> dict[str, list[str]] | None:
    """Return the fields of a form; None if it is too large or does not prove where it is from."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_FORM:
            return None
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, strict_parsing=bool(body),
            max_num_fields=MOST_FIELDS,
        )  # fmt: skip
    except ValueError:
        return None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    known = request.cookies.get(CSRF_COOKIE, "")
    proven = bool(known) and _equal(fields.get(CSRF_FIELD, [""])[0], known)
    return fields if proven else None


def cookie(connection: HTTPConnection, name: str, value: str, *, seconds: int | None = None) -> str:
    """Return a cookie of the dashboard: only for its own paths, never for scripts."""
    path = connection.scope.get("root_path", "") or "/"
    secure = "; Secure" if connection.url.scheme == "https" else ""
    age = "" if seconds is None else f"; Max-Age={seconds}"
    return f"{name}={value}; Path={path}; HttpOnly; SameSite=Strict{secure}{age}"


def _is_same_origin(connection: HTTPConnection) -> bool:
    """Whether a page of this site sent the request, by what the browser says about it."""
    site = connection.headers.get("sec-fetch-site")
    if site is not None and site != "same-origin":
        return False
    origin = connection.headers.get("origin")
    if origin is None:
        return site == "same-origin" or "authorization" in connection.headers
    return urlsplit(origin).netloc.lower() == connection.headers.get("host", "").lower()


def _host_name(connection: HTTPConnection) -> str:
    host = connection.headers.get("host", "").lower()
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _route_path(scope: Scope) -> str:
    root, path = scope.get("root_path", ""), scope["path"]
    return path[len(root) :] if root and path.startswith(root) else str(path)


def _is_static(scope: Scope) -> bool:
    return _route_path(scope).startswith("/static/")


def _is_login(scope: Scope) -> bool:
    return _route_path(scope) in {"/login", "/logout"}


def _equal(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())
