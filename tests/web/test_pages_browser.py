"""Every page in a real browser: light, dark, narrow, for a screen reader, and with evil names."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from playwright.async_api import Page, Route, expect

from pulsed import Pulse
from pulsed.model.audit import Operator
from pulsed.model.control import ControlScope, Numbers
from pulsed.model.job import WorkerInfo
from pulsed.model.step import StepKind
from pulsed.store.sqlite.store import SqliteStore
from pulsed.web import Local, Role, dashboard
from tests.support.browser import Problems, assert_fits, axe, dark, mobile
from tests.support.checkpoints import suspended
from tests.support.jobs import ALICE, BOB, TOPIC, a_job, a_policy, claim, running

EVIL = '<img src=x onerror="alert(1)">'


@pytest_asyncio.fixture(loop_scope="session")
async def seed(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "jobs.db")
    await store.migrate()
    yield store
    await store.aclose()


@pytest_asyncio.fixture(loop_scope="session")
async def app(seed: SqliteStore, tmp_path: Path) -> AsyncIterator[Pulse]:
    app = Pulse(f"sqlite:///{tmp_path / 'jobs.db'}", name="shop")
    yield app
    await app.aclose()


def site_of(app: Pulse, role: Role = Role.ADMIN) -> Any:
    return dashboard(app, access=Local(role), environment="shop · test")


async def looks_well(page: Page) -> None:
    """Check a page in light and dark, and on a phone."""
    await axe(page)
    await dark(page)
    await axe(page)
    await mobile(page)
    await assert_fits(page)
    await page.set_viewport_size({"width": 1280, "height": 800})
    await page.emulate_media(color_scheme="light")


info: dict[str, Any] = {
    "queues": ("default", EVIL),
    "topics": (TOPIC, EVIL),
    "slots": 4,
    "version": EVIL,
}


async def announce(seed: SqliteStore) -> None:
    """Let two workers say that they are alive, which holds for half a minute."""
    await seed.announce(WorkerInfo(id=ALICE, host="host-1", pid=812, running=2, **info))
    await seed.announce(WorkerInfo(id=BOB, host=EVIL, pid=1, state="failing", **info))


async def busy(seed: SqliteStore) -> None:
    """Have workers, jobs and acts, some of them with evil names."""
    await announce(seed)
    await seed.submit([a_job() for _ in range(5)])
    await claim(seed, limit=2)
    evil = a_job(queue=EVIL, topic=EVIL)
    await seed.submit([evil, a_job(queue="orphan"), a_job(queue=EVIL, topic=EVIL)])
    await seed.cancel([evil.id], by=Operator(EVIL, claimed=EVIL, detail=EVIL))


async def test_queues_workers_and_audit(app: Pulse, seed: SqliteStore, page: Page, serve: Any):
    await busy(seed)
    await page.goto(serve(site_of(app)) + "/queues")
    await expect(page.get_by_role("row", name="orphan")).to_contain_text("no live worker")
    await looks_well(page)
    await page.get_by_role("link", name=EVIL).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text(f"Queue {EVIL}")
    await expect(page.locator(".chart canvas")).to_have_count(2)
    await looks_well(page)
    await page.get_by_role("link", name="24 h").click()
    await expect(page.get_by_role("link", name="24 h")).to_have_attribute("aria-current", "true")

    await announce(seed)
    await page.get_by_role("navigation").get_by_role("link", name="Workers").click()
    row = page.get_by_role("row", name="host-1:812")
    await expect(row).to_contain_text("live")
    await expect(row).to_contain_text("2 of 4")
    await expect(page.get_by_role("row", name="failing")).to_contain_text(EVIL)
    await row.get_by_text("2 topics").click()
    await looks_well(page)

    await page.get_by_role("link", name="End host-1:812…").click()
    await looks_well(page)
    await page.get_by_role("button", name="Drain").click()
    await expect(page.get_by_text("Worker host-1:812 finishes what it runs")).to_be_visible()
    await expect(page.get_by_role("row", name="host-1:812")).to_contain_text("was asked to drain")
    assert await seed.announce(WorkerInfo(id=ALICE, host="host-1", pid=812, **info)) == "drain"

    await page.get_by_role("navigation").get_by_role("link", name="Audit").click()
    await expect(page.get_by_role("row", name="drain worker")).to_contain_text("host-1:812")
    await expect(page.get_by_role("row", name="cancel jobs")).to_contain_text(EVIL)
    await looks_well(page)
    await page.get_by_label("Who").fill("somebody else")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.get_by_text("No act matches.")).to_be_visible()


async def test_controls_of_queues_topics_and_limits(
    app: Pulse, seed: SqliteStore, page: Page, serve: Any
):
    await seed.controls.declare(ControlScope.LIMIT, {"openai": Numbers(running=2)})
    await seed.submit([a_job(limit_key=f"openai,{each}") for each in ("acme", "acme", EVIL)])
    await seed.claim(ALICE, "default", [a_policy(limit_name="openai", limit_per="tenant")], 10)
    await seed.submit([a_job(), a_job(limit_key="openai,acme")])

    await page.goto(serve(site_of(app, Role.OPERATOR)) + "/queues/default")
    await page.get_by_role("button", name="Pause").first.click()
    await expect(page.locator(".toast")).to_contain_text("The queue default is paused")
    await page.get_by_text("Set limits").click()
    await page.get_by_label("Jobs at the same time").fill("4")
    await page.get_by_label("Starts per time").fill("60/1m")
    await looks_well(page)
    await page.get_by_role("button", name="Set", exact=True).click()
    await expect(page.get_by_text("3 of 4")).to_be_visible()
    await page.get_by_role("row", name=TOPIC).get_by_role("button", name="Pause").click()
    await expect(page.locator(".toast")).to_contain_text(f"The topic {TOPIC} is paused")
    await looks_well(page)
    await page.get_by_role("button", name="Use the declared limits").click()
    await page.get_by_role("button", name="Resume").first.click()
    await expect(page.locator(".toast")).to_contain_text("The queue default starts jobs again.")

    await page.get_by_role("navigation").get_by_role("link", name="Limits").click()
    await looks_well(page)
    await page.get_by_role("link", name="openai", exact=True).click()
    row = page.get_by_role("row", name="acme")
    await expect(row).to_contain_text("2 of 2")
    await expect(row).to_contain_text("when one ends")
    await expect(page.get_by_role("row", name=EVIL)).to_contain_text("1 of 2")
    await page.get_by_text("Set other numbers").click()
    await page.get_by_label("Jobs at the same time").fill("7")
    await looks_well(page)
    await page.get_by_role("button", name="Set", exact=True).click()
    await expect(row).to_contain_text("2 of 7")
    await page.get_by_role("button", name="Use the declared numbers").click()
    await expect(row).to_contain_text("2 of 2")
    await row.get_by_role("link", name="acme").click()
    await expect(page.locator("tr[data-row]")).to_have_count(3)


async def test_workflows_and_system(app: Pulse, seed: SqliteStore, page: Page, serve: Any):
    run = await running(seed, topic=EVIL)
    await suspended(seed, run, StepKind.SIGNAL, key=EVIL)
    await seed.submit([a_job(topic=EVIL, queue=EVIL)])
    await page.goto(serve(site_of(app, Role.VIEWER)) + "/workflows")
    row = page.get_by_role("row", name="signal")
    await expect(row).to_contain_text(f"signal {EVIL}")
    await expect(row).to_contain_text("no deadline")
    await looks_well(page)
    await page.get_by_role("navigation").get_by_role("link", name="System").click()
    await expect(page.get_by_text("SQLite 3").first).to_be_visible()
    await expect(page.get_by_text("Needs a look")).to_be_visible()
    await looks_well(page)


async def test_queues_are_live(app: Pulse, seed: SqliteStore, page: Page, serve: Any):
    await page.goto(serve(site_of(app)) + "/queues")
    await expect(page.get_by_text("No queue yet")).to_be_visible()
    await seed.submit([a_job(queue="fresh")])
    await expect(page.get_by_role("row", name="fresh")).to_be_visible()


async def test_schedules(app: Pulse, page: Page, serve: Any, problems: Problems):
    problems.allow("400 ")  # the refused edit
    await app.schedules.aput("report", "send", cron="0 9 * * MON-FRI", payload={"to": EVIL})
    await app.schedules.of(EVIL).aput(EVIL, EVIL, every=3600, queue=EVIL)
    await page.goto(serve(site_of(app)) + "/schedules")
    await expect(page.get_by_role("row", name="report")).to_contain_text("active")
    await page.get_by_role("link", name="report", exact=True).click()
    await expect(page.locator("time[data-local]").first).not_to_contain_text("UTC")
    await page.get_by_role("button", name="Run now").click()
    await expect(page.locator(".toast")).to_contain_text("Enqueued job")
    await expect(page.get_by_role("link", name="pending")).to_have_count(1)
    await looks_well(page)
    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("paused")
    await page.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("active")

    await page.get_by_text("Edit", exact=True).click()
    await page.get_by_label("Cron", exact=True).fill("61 9 * * *")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_label("Cron", exact=True)).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("Cron", exact=True)).to_have_value("61 9 * * *")
    await looks_well(page)
    await page.get_by_label("Cron", exact=True).fill("30 9 * * *")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator(".toast")).to_contain_text("is changed: cron")

    await page.get_by_text("Delete", exact=True).click()
    await page.get_by_label("Delete this schedule for good").check()
    await page.get_by_role("button", name="Delete schedule").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Schedules")
    await expect(page.get_by_role("row", name="report")).to_have_count(0)
    await looks_well(page)
    await page.get_by_role("link", name=EVIL).click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text(EVIL)
    await looks_well(page)


async def test_state_and_time_of_a_schedule_stay_in_one_line_on_a_phone(
    app: Pulse, page: Page, serve: Any
):
    await app.schedules.aput("report-of-all-the-customers", "send", every=54_000)
    await app.schedules.aput("mail " * 20, "send", every=54_000)
    await mobile(page)
    await page.goto(serve(site_of(app)) + "/schedules")
    heights = await page.locator("td.nowrap").evaluate_all(
        """cells => cells.map(cell => {
            const range = document.createRange();
            range.selectNodeContents(cell);
            return range.getBoundingClientRect().height;
        })"""
    )
    assert len(heights) == 4
    assert max(heights) < 30  # a line has 20
    await assert_fits(page)


async def test_a_page_whose_form_was_sent_asks_for_nothing_more(app: Pulse, page: Page, serve: Any):
    """Its refresh would be refused once the form has deleted what the page shows."""
    await app.schedules.aput("report", "send", every=3600)
    held = asyncio.Event()
    refreshes: asyncio.Queue[Route] = asyncio.Queue()

    async def hold(route: Route) -> None:
        if route.request.method == "POST":
            await held.wait()
        elif "x-refresh" in route.request.headers:
            refreshes.put_nowait(route)
            return
        await route.continue_()

    await page.route("**/schedules/report**", hold)
    await page.goto(serve(site_of(app)) + "/schedules/report?app=shop")
    refresh = await refreshes.get()
    async with page.expect_event("requestfailed", lambda each: each == refresh.request):
        await page.get_by_role("button", name="Pause").click(no_wait_after=True)
    held.set()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("paused")
