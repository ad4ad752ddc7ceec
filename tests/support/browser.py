"""Pages in a real Chromium, and what is wrong with them.

``watched`` opens a context (a fresh profile: cookies, storage, cache) and fails at its end if any
of its pages had a problem that no test would think of asking for: an error in the console, a
violation of the content security policy, a request that failed or went to another host, a native
dialog, a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Error,
    Page,
    Request,
    WebError,
    async_playwright,
    expect,
)

from tools.browser import axe_script, find_chromium

PATIENCE = 30.0  # seconds; for everything a page is waited for, also on a busy machine
expect.set_options(timeout=PATIENCE * 1000)

ARGUMENTS = (
    "--no-sandbox",  # root has none, nor has a container; only pages of the test are opened
    # No name is resolved: what a page or the browser itself asks of another host stays here.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
# The same on every machine. The time zone is not UTC, so that mistaking one for the other shows.
CONTEXT: dict[str, Any] = {
    "locale": "en-US",
    "timezone_id": "Europe/Berlin",
    "reduced_motion": "reduce",
    "viewport": {"width": 1280, "height": 800},
}
REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", event => reportViolation(
    `${event.effectiveDirective} of ${event.documentURI} forbids ${event.blockedURI}`))
"""
# What a page takes away after seconds (a notice, the word "Copied") stays: a test may come later.
KEEP_NOTICES = """
{
    const later = setTimeout;
    window.setTimeout = (task, wait, ...rest) => wait >= 2000 ? 0 : later(task, wait, ...rest);
}
"""
# A violation is reported by a task of its own, so one after it must have run.
NEXT_TASK = "() => new Promise(done => setTimeout(done))"


@contextlib.asynccontextmanager
async def running_chromium() -> AsyncIterator[Browser]:
    """A browser without a window; it takes 0.8 s to start."""
    found = find_chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=found.path,
            args=list(ARGUMENTS),
            env={**os.environ, **found.variables},
        )
        yield browser
        await browser.close()


# Problems


class PageProblems(AssertionError):
    """Something was wrong with a page, whatever the test checked."""


class Problems:
    """What went wrong in the pages of a context; ``hosts`` are those that pages may ask."""

    def __init__(self, hosts: Collection[str]) -> None:
        self._hosts = hosts
        self._found: list[str] = []
        self._allowed: list[str] = []

    def allow(self, pattern: str) -> None:
        """Expect problems in which this regular expression is found, at least one."""
        self._allowed.append(pattern)

    async def watch(self, context: BrowserContext) -> None:
        """Record what happens in all pages of a context."""
        await context.expose_binding("reportViolation", self._on_violation)
        await context.add_init_script(REPORT_VIOLATIONS)
        context.on("console", self._on_console)
        context.on("weberror", self._on_exception)
        context.on("request", self._on_request)
        context.on("requestfailed", self._on_failed_request)
        context.on("dialog", self._on_dialog)
        context.on("page", self._on_page)

    def check(self) -> None:
        """Raise an error if there was a problem, or none where one was expected."""
        absent = [
            f"expected, but absent: {pattern}"
            for pattern in self._allowed
            if not any(re.search(pattern, problem) for problem in self._found)
        ]
        unexpected = [
            problem
            for problem in self._found
            if not any(re.search(pattern, problem) for pattern in self._allowed)
        ]
        if found := unexpected + absent:
            raise PageProblems("\n".join(found))

    def add(self, problem: str) -> None:
        """Record a problem."""
        self._found.append(problem)

    def _on_violation(self, _source: Any, text: str) -> None:
        self.add(f"policy violation: {text}")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "assert"}:
            self.add(f"console {message.type}: {message.text} ({message.location['url']})")

    def _on_exception(self, error: WebError) -> None:
        self.add(f"exception: {error.error}")

    def _on_request(self, request: Request) -> None:
        self._on_address(request.url)

    def _on_address(self, url: str) -> None:
        address = urlsplit(url)
        if address.scheme in {"http", "https", "ws", "wss"} and address.netloc not in self._hosts:
            self.add(f"foreign request: {url}")

    def _on_failed_request(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page itself gave it up, or went away
            self.add(f"failed request: {request.url}: {request.failure}")

    async def _on_dialog(self, dialog: Dialog) -> None:
        self.add(f"native dialog: {dialog.type}: {dialog.message}")
        await dialog.dismiss()

    def _on_page(self, page: Page) -> None:
        page.on("crash", lambda page: self.add(f"crash: {page.url}"))
        page.on("websocket", lambda opened: self._on_address(opened.url))


@contextlib.asynccontextmanager
async def watched(
    browser: Browser, problems: Problems, **options: Any
) -> AsyncIterator[BrowserContext]:
    """A new context; its end fails if one of its pages had a problem."""
    context = await browser.new_context(**CONTEXT | options)
    context.set_default_timeout(PATIENCE * 1000)
    try:
        await problems.watch(context)
        await context.add_init_script(KEEP_NOTICES)
        yield context
        for page in context.pages:
            await settle(page, problems)
    finally:
        await context.close()
    problems.check()


async def settle(page: Page, problems: Problems) -> None:
    """Let a page report what has happened in it so far."""
    try:
        await asyncio.wait_for(page.evaluate(NEXT_TASK), PATIENCE)
    except TimeoutError:
        problems.add(f"no answer: {page.url} is busy")
    except Error as error:  # it has crashed, which is recorded, or is just being left
        if "crash" not in error.message and "navigation" not in error.message:
            raise


# Views of a page


async def dark(page: Page) -> None:
    """Show a page in dark colours."""
    await page.emulate_media(color_scheme="dark")


async def mobile(page: Page, width: int = 360) -> None:
    """Show a page on a narrow screen."""
    await page.set_viewport_size({"width": width, "height": 740})


async def screenshot(page: Page, path: Path) -> Path:
    """A picture of the whole page, with no animation or cursor in it."""
    await page.screenshot(path=path, full_page=True, animations="disabled", caret="hide")
    return path


async def assert_fits(page: Page) -> None:
    """Fail if a page is wider than its window; what overflows is named."""
    overflowing = await page.evaluate(
        """() => document.documentElement.scrollWidth <= innerWidth ? [] :
            [...document.querySelectorAll("body *")]
                .filter(element => element.getBoundingClientRect().right > innerWidth + 1)
                .map(element => element.cloneNode().outerHTML)"""
    )
    assert not overflowing, "\n".join(overflowing)


@functools.cache
def axe_source() -> str:
    return axe_script().read_text(encoding="utf-8")


async def axe(page: Page) -> None:
    """Fail if axe-core finds a fault of accessibility that is serious or critical."""
    if not await page.evaluate("() => 'axe' in window"):  # 0.3 s
        await page.evaluate(axe_source())
    found = await page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    faults = [
        f"{fault['impact']}: {fault['id']}: {fault['help']}: {node['html']}"
        for fault in found["violations"]
        if fault["impact"] in {"serious", "critical"}
        for node in fault["nodes"]
    ]
    assert not faults, "\n".join(faults)
