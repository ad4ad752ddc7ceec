"""Fixtures of tests with a browser: take ``page`` and ``serve``.

``await page.goto(serve(app))`` shows an ASGI application in Chromium, in a profile of the test's
own. At the end the test fails if anything was wrong with the page: see ``Problems`` in
tests/support/browser.py. ``problems.allow(...)`` expects something, such as the console's error
after an answer of 403.

One browser serves all tests of a process, and lives in the event loop of the session. So do these
tests: let them use an app's ``a…`` methods, and no fixture that has the event loop of one test.
Take ``app`` before ``page``, so that pages and servers are closed before it.
"""

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page

from tests.support.browser import Problems, running_chromium, screenshot, watched
from tests.support.web_server import WebServer

Serve = Callable[[Any], str]

CALL_FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    in_session = pytest.mark.asyncio(loop_scope="session")
    for item in items:
        if needs_browser(item):
            item.add_marker(in_session, append=False)
    # First of all, for one process of a run: what comes late is shared out among those that have
    # nothing left to do, and each of them would start a browser for a test or two.
    items.sort(key=lambda item: not needs_browser(item))


def needs_browser(item: pytest.Item) -> bool:
    return "browser" in getattr(item, "fixturenames", ())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[CALL_FAILED] = report.failed
    return report


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The Chromium of this process; started when the first test needs it."""
    async with running_chromium() as browser:
        yield browser


@pytest.fixture
def hosts() -> set[str]:
    """Where pages may send requests: every served application, and what a test adds."""
    return set()


@pytest.fixture
def serve(hosts: set[str]) -> Iterator[Serve]:
    """Serves an ASGI application until the end of the test; returns its URL."""
    servers: list[WebServer] = []

    def start(app: Any) -> str:
        servers.append(WebServer(app))
        hosts.add(servers[-1].host)
        return servers[-1].url

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def problems(hosts: set[str]) -> Problems:
    """What went wrong in the pages of the test."""
    return Problems(hosts)


@pytest_asyncio.fixture(loop_scope="session")
async def context(
    browser: Browser, problems: Problems, serve: Serve
) -> AsyncIterator[BrowserContext]:
    """A fresh profile; it is closed before the applications are."""
    async with watched(browser, problems) as context:
        yield context


@pytest_asyncio.fixture(loop_scope="session")
async def page(
    context: BrowserContext, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Page]:
    """An empty page; of one that a test failed with there is a picture."""
    page = await context.new_page()
    yield page
    if request.node.stash.get(CALL_FAILED, False):
        picture = await screenshot(page, tmp_path / "page.png")
        print("the page:", picture)  # noqa: T201 (pytest shows it with the failure)
