"""The dashboard inside of other applications, as docs/dashboard.md mounts it, over real HTTP."""

import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from pulsed import Pulse
from pulsed.model.job import Status
from pulsed.web import Delegated, Role, Visitor, dashboard
from tests.support.pages import FILE, ROOT, blocks
from tests.support.web_server import WebServer

PREFIX = "/jobs-admin"
PATIENCE = 60

SETTINGS = """
SECRET_KEY = "only for this test, which takes fifty characters of it"
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = [
    "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"}}
MIGRATION_MODULES = {"auth": None, "contenttypes": None, "sessions": None}  # tables at once
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "urls"
USE_TZ = True
"""

URLS = """
from django.http import HttpResponse
from django.urls import path

urlpatterns = [path("me", lambda request: HttpResponse(request.user.get_username()))]
"""

SERVE = """
import os, socket, sys
import asgi, uvicorn
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.core.management import call_command

call_command("migrate", run_syncdb=True, verbosity=0)

def session_of(name, **flags):
    user = User.objects.create_user(name, **flags)
    session = asgi.sessions.SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return session.session_key

listener = socket.create_server(("127.0.0.1", 0))
keys = session_of("ada", is_staff=True, is_superuser=True), session_of("bob")
print(listener.getsockname()[1], *keys, flush=True)
config = uvicorn.Config(asgi.application, log_level="warning", timeout_graceful_shutdown=2)
uvicorn.Server(config).run(sockets=[listener])
"""


class Host(NamedTuple):
    """An application with the dashboard in it, and how its users are known."""

    url: str
    jobs: Pulse
    cookie: str
    operator: str
    """The session of ada, who may operate."""
    other: str
    """The session of bob, who may not."""
    seen_by_other: int
    """What bob gets for a page."""

    own_page: str | None = None
    """What ada gets for /me, a page of the application itself."""

    def client(self, session: str | None = None) -> httpx2.Client:
        cookies = {} if session is None else {self.cookie: session}
        return httpx2.Client(base_url=self.url, cookies=cookies, timeout=PATIENCE)


def code_of(name: str) -> str:
    """The file of this name in the page."""
    page = ROOT / "docs/dashboard.md"
    (found,) = [
        block.code for block in blocks(page) if (file := FILE.match(block.code)) and file[1] == name
    ]
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=["web", "api"])
def in_process(request: pytest.FixtureRequest, folder: Path) -> Iterator[Host]:
    module: Any = types.ModuleType(request.param)
    exec(compile(code_of(request.param), f"{request.param}.py", "exec"), vars(module))
    server = WebServer(module.app)
    own_page = {"web": None, "api": '"ada"'}[request.param]
    yield Host(server.url, module.jobs, "session", "8f3a", "2c71", 200, own_page)
    server.stop()
    module.jobs.close()


@pytest.fixture
def django(folder: Path) -> Iterator[Host]:
    for name, text in (("settings", SETTINGS), ("urls", URLS), ("serve", SERVE)):
        (folder / f"{name}.py").write_text(text)
    (folder / "asgi.py").write_text(code_of("asgi"))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    with (
        Pulse(f"sqlite:///{folder / 'jobs.db'}") as jobs,
        subprocess.Popen(
            [sys.executable, "serve.py"], cwd=folder, env=environment, stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        port, ada, bob = process.stdout.readline().decode().split()
        yield Host(f"http://127.0.0.1:{port}", jobs, "sessionid", ada, bob, 401, "ada")
        process.terminate()


def test_in_starlette_and_fastapi(in_process: Host):
    assert_mounted(in_process)


def test_in_django(django: Host):
    assert_mounted(django)


def test_below_a_path_that_a_proxy_shows_the_application_at(folder: Path):
    jobs = Pulse("sqlite:///jobs.db")
    access = Delegated(lambda _: Visitor("ada", Role.OPERATOR))
    host = Starlette(routes=[Mount(PREFIX, dashboard(jobs, access=access))])
    # Servers put the path of the proxy before the one that they are asked for.
    page = TestClient(host, root_path="/shop").get(f"/shop{PREFIX}/jobs")
    assert page.status_code == 200
    assert f'href="/shop{PREFIX}/queues"' in page.text
    assert f"Path=/shop{PREFIX};" in page.headers["set-cookie"]


def assert_mounted(host: Host) -> None:
    job = host.jobs.enqueue("send", {"to": "ada"}, unknown=True)
    with host.client() as stranger:
        assert stranger.get(f"{PREFIX}/").status_code == 401
        assert stranger.get(f"{PREFIX}/live").status_code == 401
    with host.client(host.operator) as client:
        assert host.own_page in (None, client.get("/me").text)
        assert_pages_keep_to_their_path(client)
        assert_live_updates(client)
        assert_forms_are_protected(client, f"{PREFIX}/jobs/{job.id}/cancel", host.url)
        assert job.refresh().status is Status.CANCELLED
    (entry,) = host.jobs.audit.list(limit=1)
    assert entry.actor == "ada (dashboard)"
    with host.client(host.other) as other:
        assert other.get(f"{PREFIX}/").status_code == host.seen_by_other
        token = other.cookies.get("pulsed_csrf", "")
        form = {"csrf": token}
        answer = other.post(
            f"{PREFIX}/jobs/{job.id}/retry", data=form, headers={"origin": host.url}
        )
        assert answer.status_code in (401, 403)
    assert job.refresh().status is Status.CANCELLED


def assert_pages_keep_to_their_path(client: httpx2.Client) -> None:
    moved = client.get(PREFIX)
    assert moved.status_code in (307, 308)
    assert httpx2.URL(moved.headers["location"]).path == f"{PREFIX}/"
    for path in ("/", "/jobs", "/queues", "/workers", "/schedules", "/system", "/audit"):
        page = client.get(f"{PREFIX}{path}")
        assert page.status_code == 200
        links = re.findall(r'(?:href|src|action|data-refresh)="([^"]+)"', page.text)
        outside = [link for link in links if not link.startswith((f"{PREFIX}/", "#", "?"))]
        assert outside == []
    assets = {link for link in links if "/static/" in link}
    assert len(assets) > 3
    for asset in assets:
        assert client.get(asset.partition("#")[0]).status_code == 200


def assert_live_updates(client: httpx2.Client) -> None:
    with client.stream("GET", f"{PREFIX}/live") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert next(stream.iter_lines()) == "event: summary"


def assert_forms_are_protected(client: httpx2.Client, path: str, origin: str) -> None:
    (cookie,) = [each for each in client.cookies.jar if each.name == "pulsed_csrf"]
    assert cookie.path == PREFIX
    form = {"csrf": cookie.value or ""}
    for data, headers in (
        ({}, {"origin": origin}),
        (form, {"origin": "https://evil.example"}),
        (form, {}),
    ):
        assert client.post(path, data=data, headers=headers).status_code == 403
    done = client.post(path, data=form, headers={"origin": origin})
    assert done.status_code == 303
    assert done.headers["location"].startswith(f"{PREFIX}/")
    assert client.get(done.headers["location"]).status_code == 200
