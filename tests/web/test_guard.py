"""What stands before the pages: hosts, roles, forged requests, and the headers of every answer."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from pulsed import Pulse
from pulsed.store import tokens
from pulsed.store.sql_store.store import SqlStore
from pulsed.web import Basic, Delegated, Local, Role, Tokens, Visitor, dashboard
from pulsed.web.access import Access
from pulsed.web.guard import LARGEST_FORM, SECURITY_HEADERS
from pulsed.web.routes import PAGES
from pulsed.web.site import PageRoute

HERE = "http://127.0.0.1"
SOME_ID = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
def app(tmp_path: Any) -> Iterator[Pulse]:
    with Pulse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        app.jobs.counts()
        yield app


def visitor_of(app: Pulse, access: Access, **options: Any) -> TestClient:
    """Return a browser's stand-in on this machine."""
    site = dashboard(app, access=access)
    options.setdefault("client", ("127.0.0.1", 5000))
    return TestClient(site, base_url=HERE, follow_redirects=False, **options)


def a_role(role: Role) -> Access:
    return Delegated(lambda _: Visitor("ada", role))


def sample(page: PageRoute) -> str:
    """Return an address of a route, with something for each of its parameters."""
    return (
        page.path.replace("{id}", SOME_ID)
        .replace("{name:path}", "no-such-name")
        .replace("{name}", "no-such-name")
        .replace("{worker}", SOME_ID)
    )


def form(client: TestClient) -> dict[str, str]:
    """Return what a form of the dashboard proves itself with."""
    client.get("/")
    return {"csrf": client.cookies["pulsed_csrf"]}


def answered(client: TestClient, page: PageRoute, **options: Any) -> int:
    if page.path == "/live":  # a stream that does not end: what its role may is all that counts
        return 200 if page.role <= Role.VIEWER else 403
    return client.request(page.method, sample(page), **options).status_code


def name_of(page: PageRoute) -> str:
    return f"{page.method} {page.path}"


@pytest.mark.parametrize("role", Role)
def test_every_route_wants_its_role(app: Pulse, role: Role):
    client = visitor_of(app, a_role(role))
    answers = {}
    for page in PAGES:
        data = form(client) if page.method == "POST" else None
        answers[name_of(page)] = answered(client, page, headers={"origin": HERE}, data=data)
    refused = {name for name, status in answers.items() if status == 403}
    assert refused == {name_of(page) for page in PAGES if role < page.role}
    assert {name: status for name, status in answers.items() if status >= 500} == {}


def test_every_route_wants_a_visitor(app: Pulse):
    client = visitor_of(app, Delegated(lambda _: None))
    for page in PAGES:
        answer = client.request(page.method, sample(page), headers={"origin": HERE})
        assert answer.status_code == 401, name_of(page)


POSTS = [page for page in PAGES if page.method == "POST"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "https://elsewhere.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "origin": HERE},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_a_form_of_another_site_changes_nothing(app: Pulse, headers: dict[str, str]):
    client = visitor_of(app, a_role(Role.ADMIN))
    data = form(client)
    for page in POSTS:
        answer = client.post(sample(page), data=data, headers=headers)
        assert answer.status_code == 403, name_of(page)
        assert "another site" in answer.text


@pytest.mark.parametrize("csrf", [None, "", "guess"])
def test_a_form_without_the_token_changes_nothing(app: Pulse, csrf: str | None):
    client = visitor_of(app, a_role(Role.ADMIN))
    form(client)
    data = {} if csrf is None else {"csrf": csrf}
    for page in POSTS:
        answer = client.post(sample(page), data=data, headers={"origin": HERE})
        assert answer.status_code == 403, name_of(page)
        assert "has expired" in answer.text
        header = {"origin": HERE, "x-csrf-token": "guess"}
        assert client.post(sample(page), headers=header).status_code == 403, name_of(page)


@pytest.mark.parametrize("page", POSTS[:1], ids=lambda page: page.path)
def test_a_form_that_is_too_large_is_refused(app: Pulse, page: PageRoute):
    client = visitor_of(app, a_role(Role.ADMIN))
    data = form(client) | {"payload": "x" * LARGEST_FORM}
    assert client.post(sample(page), data=data, headers={"origin": HERE}).status_code == 403


@pytest.mark.parametrize("host", ["elsewhere.example", "127.0.0.1.elsewhere.example", "10.0.0.1"])
def test_a_foreign_name_for_this_machine_is_refused(app: Pulse, host: str):
    """DNS rebinding: a page of that name would otherwise read what this machine may."""
    client = visitor_of(app, Local(Role.ADMIN))
    answer = client.get("/", headers={"host": f"{host}:8484"})
    assert answer.status_code == 421
    assert client.get("/", headers={"host": "localhost:8484"}).status_code == 200
    assert client.get("/", headers={"host": "[::1]:8484"}).status_code == 200


def test_local_access_is_for_this_machine_alone(app: Pulse):
    assert visitor_of(app, Local()).get("/").status_code == 200
    assert visitor_of(app, Local(), client=("10.0.0.7", 5000)).get("/").status_code == 401


@pytest.mark.parametrize(
    "path", ["/", "/jobs", "/static/app.css", "/nowhere", "/static/../site.py", "/static/%2e%2e/x"]
)
def test_every_answer_has_the_security_headers(app: Pulse, path: str):
    answer = visitor_of(app, Local()).get(path)
    assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert "'unsafe" not in answer.headers["content-security-policy"]
    assert "def " not in answer.text


def test_only_static_files_are_cached(app: Pulse):
    client = visitor_of(app, Local())
    assert "immutable" in client.get("/static/app.css").headers["cache-control"]
    assert client.get("/jobs").headers["cache-control"] == "no-store"


def test_users_sign_in_with_name_and_password(app: Pulse):
    client = visitor_of(app, Basic({"ada": ("secret", Role.OPERATOR)}))
    answer = client.get("/")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic ")
    assert client.get("/", auth=("ada", "wrong")).status_code == 401
    assert client.get("/", auth=("eve", "")).status_code == 401
    assert client.get("/", headers={"authorization": "Basic !"}).status_code == 401
    answer = client.get("/", auth=("ada", "secret"))
    assert answer.status_code == 200
    assert "ada · operator" in answer.text


@pytest.mark.parametrize(
    "roles, shown",
    [(("read",), "viewer"), (("operate",), "operator"), (("read", "admin"), "admin")],
)
def test_a_token_of_the_database_signs_in(app: Pulse, roles: tuple[str, ...], shown: str):
    secret = a_token(app, roles)
    client = visitor_of(app, Tokens())
    assert client.get("/", headers={"authorization": "Bearer nonsense"}).status_code != 200
    bearer = client.get("/", headers={"authorization": f"Bearer {secret}"})
    for page in (bearer, client.get("/", auth=("", secret))):
        assert f"ada · {shown}" in page.text


def test_a_visitor_signs_in_and_out(app: Pulse):
    secret = a_token(app, ("admin",))
    client = visitor_of(app, Tokens())
    assert client.get("/jobs").headers["location"] == "/login"
    page = client.get("/login")
    assert "Sign in" in page.text
    data = {"csrf": client.cookies["pulsed_csrf"], "token": "guess"}
    origin = {"origin": HERE}
    assert client.post("/login", data=data, headers=origin).status_code == 403
    assert client.post("/login", data={"token": secret}, headers=origin).status_code == 403
    data["token"] = secret
    answer = client.post("/login", data=data, headers=origin)
    assert answer.headers["location"] == "/"
    assert "HttpOnly; SameSite=Strict" in answer.headers["set-cookie"]
    assert "Sign out" in client.get("/").text
    assert client.post("/logout", data=data, headers=origin).headers["location"] == "/login"
    assert client.get("/").status_code == 303


def test_a_revoked_token_ends_the_visit(app: Pulse):
    secret = a_token(app, ("admin",))
    client = visitor_of(app, Tokens(), cookies={"pulsed_token": secret})
    assert client.get("/").status_code == 200
    store = app.store
    assert isinstance(store, SqlStore)
    assert asyncio.run(tokens.remove(store, "ada"))
    assert client.get("/").status_code == 303


@pytest.mark.parametrize("roles", [("work",), ("produce",), ()])
def test_a_token_for_workers_opens_no_dashboard(app: Pulse, roles: tuple[str, ...]):
    secret = a_token(app, roles)
    client = visitor_of(app, Tokens())
    assert client.get("/", auth=("", secret)).status_code != 200


def test_a_limited_token_opens_no_dashboard(app: Pulse):
    """It may see some topics only, and the pages show all of them."""
    secret = a_token(app, ("admin",), topics=("mail",))
    assert visitor_of(app, Tokens()).get("/", auth=("", secret)).status_code != 200


def a_token(app: Pulse, roles: tuple[str, ...], topics: tuple[str, ...] | None = None) -> str:
    secret = tokens.new_secret()
    store = app.store
    assert isinstance(store, SqlStore)
    token = tokens.Token("ada", tokens.digest_of(secret), roles, topics, None)
    assert asyncio.run(tokens.add(store, token))
    return secret


def test_it_works_below_a_path_of_another_application(app: Pulse):
    site = dashboard(app, access=a_role(Role.ADMIN))
    host = Starlette(routes=[Mount("/admin/jobs", site)])
    client = TestClient(host, base_url=HERE)
    page = client.get("/admin/jobs/")
    assert page.status_code == 200
    assert 'href="/admin/jobs/queues"' in page.text
    for path in ("/static/app.css", "/jobs?q=status:dead"):
        assert client.get(f"/admin/jobs{path}").status_code == 200
