"""Builds the shop, serves its dashboard, and takes a picture of every page."""

from __future__ import annotations

import asyncio
import base64
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from playwright.async_api import Browser, Page

from pulsed import Pulse
from pulsed.model.job import JobFilter, Status
from pulsed.store.base import Store
from pulsed.store.sqlite.connections import SqliteOptions
from pulsed.store.sqlite.store import SqliteStore
from pulsed.web import Local, Role, dashboard
from tests.support.browser import Problems, assert_fits, running_chromium, watched
from tests.support.pages import ROOT
from tests.support.web_server import WebServer
from tools.screenshots.shop import APP, NOW, Shop, declare
from tools.screenshots.simulation import Simulation

FOLDER = ROOT / "docs/images"
QUALITY = 82
SCALE = 1.5


class Picture(NamedTuple):
    """A page to take a picture of."""

    name: str
    path: str
    width: int = 1280
    opened: str = ""
    """What is clicked before, as a selector."""
    height: int = 860
    """The least; a picture has the whole page."""


def pictures(jobs: dict[str, str]) -> list[Picture]:
    """Return every page, and two of them on a phone."""
    pages = [
        Picture("overview", "/"),
        Picture("overview-week", "/?span=7d"),
        Picture("jobs", "/jobs?size=25"),
        Picture("job-dead", f"/jobs/{jobs['dead']}", opened="tr:last-child summary"),
        Picture("job-workflow", f"/jobs/{jobs['order']}"),
        Picture("job-fan-out", f"/jobs/{jobs['catalog']}"),
        Picture("new-job", "/jobs/new?topic=send_email"),
        Picture("queues", "/queues"),
        Picture("queue", "/queues/media"),
        Picture("queue-paused", "/queues/partners"),
        Picture("limits", "/limits"),
        Picture("limit", "/limits/export_orders"),
        Picture("bulk", f"/bulk/{jobs['bulk']}?q=topic%3Adescribe_product"),
        Picture("schedules", "/schedules"),
        Picture("schedule", "/schedules/inventory?app=shop"),
        Picture("workflows", "/workflows"),
        Picture("workers", "/workers"),
        Picture("system", "/system"),
        Picture("audit", "/audit"),
    ]
    phone = [page for page in pages if page.name in {"overview", "job-workflow"}]
    return pages + [
        page._replace(name=f"{page.name}-phone", width=360, height=740) for page in phone
    ]


async def build(path: Path) -> dict[str, str]:
    """Write the shop into a new file; returns the ids of jobs to look at."""
    fast = SqliteOptions(synchronous="NORMAL")
    sim = Simulation(lambda clock: SqliteStore(path, fast, clock=clock), NOW)
    shop = Shop(sim)
    await shop.open()
    found = {
        "bulk": str(shop.bulk),
        "dead": await newest(sim.store, "charge_card", Status.DEAD_LETTERED),
        "order": await newest(sim.store, "place_order", Status.WAITING, kind="SIGNAL"),
        "catalog": await newest(sim.store, "render_catalog", Status.WAITING),
    }
    await sim.store.aclose()
    return found


async def newest(store: Store, topic: str, status: Status, kind: str = "") -> str:
    """Return the id of the newest job of a topic in a status."""
    where = JobFilter(topic=topic, status=(status,))
    jobs = await store.list_jobs(where, limit=100)
    return str(next(job.id for job in jobs if not kind or job.wait_kind == kind))


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[str]:
    """Serve the dashboard of a file, at the moment at which its story ends."""
    store = SqliteStore(path, clock=lambda: NOW)
    app = Pulse.over(store, f"sqlite:///{path}")
    app.name = APP
    declare(app)
    site = dashboard(app, access=Local(Role.ADMIN), environment="shop · production")
    server = WebServer(site)
    clock = SimpleNamespace(time=NOW.timestamp, monotonic=time.monotonic)
    # The doctor compares the machine's clock with the database's.
    with patch("pulsed.engine.doctor.examine.time", clock):
        yield server.url
    server.stop()
    await app.aclose()


async def take(browser: Browser, url: str, picture: Picture, scheme: Any, folder: Path) -> int:
    """Take a picture; returns its size in bytes."""
    problems = Problems({url.removeprefix("http://")})
    size: Any = {"width": picture.width, "height": picture.height}
    options = {"viewport": size, "color_scheme": scheme, "device_scale_factor": SCALE}
    async with watched(browser, problems, **options) as context:
        page = await context.new_page()
        await page.goto(url + picture.path)
        if picture.opened:
            await page.locator(picture.opened).click()
        await page.locator("[data-live][data-state=good]").wait_for()
        await assert_fits(page)
        content = await webp(page, picture.width)
    (folder / f"{picture.name}-{scheme}.webp").write_bytes(content)
    return len(content)


async def webp(page: Page, width: int) -> bytes:
    """Return the whole page as WebP, by the browser's own encoder."""
    height = await page.evaluate("() => document.documentElement.scrollHeight")
    await page.set_viewport_size({"width": width, "height": height})
    session = await page.context.new_cdp_session(page)
    shot = await session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    return base64.b64decode(shot["data"])


async def main(arguments: list[str]) -> int:
    """Take the pictures whose names are given, or all."""
    home = Path(tempfile.gettempdir()) / "pulsed-shop"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    folder = FOLDER
    folder.mkdir(exist_ok=True)
    jobs = await build(home / "jobs.db")
    total = 0
    async with served(home / "jobs.db") as url, running_chromium() as browser:
        for picture in pictures(jobs):
            if not arguments or picture.name in arguments:
                for scheme in ("light", "dark"):
                    total += await take(browser, url, picture, scheme, folder)
    print(f"{total / 1e6:.1f} MB in {folder}", file=sys.stderr)
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
