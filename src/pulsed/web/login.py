"""The login page: a token of the database, kept in a cookie that scripts cannot read."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from pulsed.web.access import TOKEN_COOKIE, Tokens
from pulsed.web.guard import cookie, read_form
from pulsed.web.site import Site, address

KEPT_SECONDS = 12 * 3600
"""How long a visitor stays signed in."""


def login_routes(site: Site) -> list[Route]:
    """Return the routes of a dashboard whose visitors sign in."""
    access = site.access
    if not isinstance(access, Tokens):
        return []

    def page(request: Request, problem: str, status: int = 200) -> Response:
        template = site.templates.get_template("login.html")
        values = {"csrf": request.state.csrf, "problem": problem, "url": _urls(request)}
        return HTMLResponse(template.render(values), status)

    async def show(request: Request) -> Response:
        return page(request, "")

    async def sign_in(request: Request) -> Response:
        form = await read_form(request)
        if form is None:
            return page(request, "This form has expired: try again.", 403)
        secret = form.get("token", [""])[0].strip()
        if not secret or await access.known(secret, site.app.store) is None:
            return page(request, "This token is not known here, or gives no access.", 403)
        answer = RedirectResponse(address(request.scope, "/", {}), 303)
        kept = cookie(request, TOKEN_COOKIE, secret, seconds=KEPT_SECONDS)
        answer.headers.append("set-cookie", kept)
        return answer

    async def sign_out(request: Request) -> Response:
        if await read_form(request) is None:
            return PlainTextResponse("This form has expired: reload the page.\n", 403)
        answer = RedirectResponse(address(request.scope, "/login", {}), 303)
        answer.headers.append("set-cookie", cookie(request, TOKEN_COOKIE, "", seconds=0))
        return answer

    return [
        Route("/login", show, methods=["GET"]),
        Route("/login", sign_in, methods=["POST"]),
        Route("/logout", sign_out, methods=["POST"]),
    ]


def _urls(request: Request) -> object:
    return lambda path: address(request.scope, path, {})
