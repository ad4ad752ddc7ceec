"""The list of jobs in a real browser: search, selection, bulk acts, live rows, keyboard."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from pulsed import Pulse
from pulsed.model.job import Status
from pulsed.model.outcome import Failed
from pulsed.store.verbs import bulk as verbs
from pulsed.web import Local, Role, dashboard
from tests.support.browser import Problems, assert_fits, axe, dark, mobile
from tests.support.jobs import a_job, one_attempt, running, settle

XSS = '"><img src=x onerror=alert(1)>'


@pytest_asyncio.fixture(loop_scope="session")
async def app(tmp_path: Path) -> AsyncIterator[Pulse]:
    app = Pulse(f"sqlite:///{tmp_path / 'jobs.db'}")
    yield app
    await app.aclose()


@pytest.fixture
def url(app: Pulse, serve: Any) -> str:
    address: str = serve(dashboard(app, access=Local(Role.ADMIN)))
    return address


async def dead_jobs(app: Pulse, number: int, topic: str = "send_email") -> None:
    for _ in range(number):
        run = await running(app.store, **one_attempt(topic=topic))
        await settle(app.store, run, Failed("HTTPError: 503"))


async def test_searching_with_completion_chips_and_pages(app: Pulse, url: str, page: Page):
    await dead_jobs(app, 2)
    await app.store.submit([a_job(topic="charge_card") for _ in range(60)])
    await page.goto(f"{url}/jobs?size=25")
    await expect(page.locator("tr[data-row]")).to_have_count(25)
    await axe(page)
    await page.get_by_role("link", name="Older").click()
    await page.get_by_role("link", name="Older").click()
    await expect(page.locator("tr[data-row]")).to_have_count(12)
    await page.get_by_role("link", name="Newer").click()
    await expect(page.locator("tr[data-row]")).to_have_count(25)

    await page.wait_for_load_state()  # its scripts have run
    await page.keyboard.press("/")
    box = page.get_by_role("combobox", name="Search jobs")
    await expect(box).to_be_focused()
    await page.keyboard.type("to")
    await expect(page.get_by_role("option")).to_have_text(["topic:"])
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("option", name="topic:send_email")).to_be_visible()
    await page.keyboard.type("send")
    await expect(page.get_by_role("option")).to_have_count(1)
    await page.keyboard.press("ArrowDown")
    await expect(box).to_have_attribute("aria-activedescendant", "completions-0")
    await axe(page)
    await page.keyboard.press("Tab")
    await expect(box).to_have_value("topic:send_email ")
    await page.keyboard.press("Enter")
    await expect(page.locator("tr[data-row]")).to_have_count(2)
    await expect(page).to_have_url(re.compile(r"q=topic%3Asend_email"))
    await expect(page.get_by_text("HTTPError: 503 after 1 attempt")).to_have_count(2)

    await page.get_by_role("navigation", name="Statuses").get_by_role("link", name="Due").click()
    await expect(page.get_by_text("No job matches.")).to_be_visible()
    await expect(box).to_have_value("status:due topic:send_email")


async def test_selecting_jobs_and_acting_on_them(app: Pulse, url: str, page: Page):
    await dead_jobs(app, 5)
    await page.goto(f"{url}/jobs?q=status:dead")
    boxes = page.locator('input[name="id"]')
    actions = page.get_by_role("group", name="Selected jobs")
    await expect(actions).to_be_hidden()
    await boxes.nth(0).click()
    await boxes.nth(2).click(modifiers=["Shift"])
    await expect(actions).to_contain_text("3 selected")
    await page.get_by_label("Select all jobs on this page").click()
    await expect(actions).to_contain_text("5 selected")
    await axe(page)
    await actions.get_by_role("button", name="Select none").click()
    await expect(actions).to_be_hidden()

    await page.locator("h1").click()
    for key in ("j", "j", "x", "k", "x"):
        await page.keyboard.press(key)
    await expect(actions).to_contain_text("2 selected")
    await actions.get_by_role("button", name="Retry").click()
    await expect(page.locator(".toast")).to_have_text("Retried: 2 jobs.")
    await expect(page).to_have_url(f"{url}/jobs?q=status:dead")
    await expect(page.locator("tr[data-row]")).to_have_count(3)

    await page.wait_for_load_state()  # its scripts have run
    await boxes.nth(0).click()
    await actions.get_by_role("button", name="Delete…").click()
    await expect(page.get_by_role("heading", name="Delete 1 job?")).to_be_visible()
    await axe(page)
    await page.get_by_role("button", name="Delete 1 job").click()
    await expect(page.locator("tr[data-row]")).to_have_count(2)
    counts = await app.jobs.acounts()
    assert (counts[Status.PENDING], counts[Status.DEAD_LETTERED]) == (2, 2)


async def test_acting_on_all_that_match(app: Pulse, url: str, page: Page):
    await dead_jobs(app, 4)
    await dead_jobs(app, 1, topic="charge_card")
    await page.goto(f"{url}/jobs?q=status:dead+topic:send*")
    await page.get_by_text("All that match…").click()
    await axe(page)
    await page.get_by_role("link", name="Delete all").click()
    await expect(page.get_by_role("heading", name="Delete 4 jobs?")).to_be_visible()
    await expect(page.get_by_text("jobs of topics that begin with send")).to_be_visible()
    await axe(page)
    confirm = page.get_by_role("button", name="Delete 4 jobs")
    await page.get_by_label("This cannot be undone").fill("3")
    await confirm.click()
    await expect(page.locator(".toast")).to_have_text("Type 4 to confirm. Nothing was deleted.")
    await page.get_by_label("This cannot be undone").fill("4")
    await confirm.click()
    await expect(page.get_by_role("heading", name="Done: delete")).to_be_visible()
    await expect(page.get_by_text("4 jobs deleted")).to_be_visible()
    await axe(page)
    await page.get_by_role("link", name="Back to the list").click()
    await expect(page).to_have_url(re.compile("topic%3Asend"))
    assert (await app.jobs.acounts())[Status.DEAD_LETTERED] == 1


async def test_operations_are_followed_listed_and_stopped(
    app: Pulse, url: str, page: Page, monkeypatch: pytest.MonkeyPatch
):
    """The page shows how far it is while another process performs it, and after a restart."""
    await app.store.submit([a_job(topic="send_email") for _ in range(3)])
    operation = await app.jobs.bulk.acancel(topic="send_email")
    monkeypatch.setattr(verbs, "BATCH", 1)
    await app.store.bulk.advance(uuid4(), operation.id)  # another process holds it now
    await page.goto(f"{url}/jobs")
    await page.get_by_role("link", name="Bulk operations").click()
    await expect(page.get_by_role("heading", name="Bulk operations")).to_be_visible()
    await expect(page.locator("tr[data-row]")).to_have_count(1)
    await expect(page.get_by_role("cell", name=re.compile("^RUNNING"))).to_be_visible()
    await axe(page)
    await page.locator("tr[data-row] a").first.click()
    await expect(page.get_by_role("heading", name="In progress: cancel")).to_be_visible()
    await expect(page.get_by_text("1 job cancelled of 3")).to_be_visible()
    await axe(page)
    await mobile(page)
    await assert_fits(page)
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("heading", name="Stopped: cancel")).to_be_visible()
    assert (await app.jobs.acounts())[Status.CANCELLED] == 1


async def test_rows_change_in_place_and_new_ones_wait_behind_a_pill(
    app: Pulse, url: str, page: Page
):
    first, second = a_job(delay=60), a_job(delay=60)
    await app.store.submit([first, second])
    await page.goto(f"{url}/jobs")
    shown = page.locator("tr[data-row]")
    await expect(shown).to_have_count(2)
    await page.locator('input[name="id"]').nth(0).click()
    await app.jobs.acancel(second.id)
    await app.store.submit([a_job(), a_job()])
    pill = page.get_by_role("link", name="2 new jobs")
    await expect(pill).to_be_visible()
    await expect(shown).to_have_count(2)
    await expect(shown.nth(0)).to_contain_text("CANCELLED")
    await expect(page.locator('input[name="id"]').nth(0)).to_be_checked()
    await axe(page)
    await pill.click()
    await expect(shown).to_have_count(4)


async def test_the_keyboard_opens_help_rows_and_the_palette(
    app: Pulse, url: str, page: Page, problems: Problems
):
    await dead_jobs(app, 1)
    await page.goto(f"{url}/jobs")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Go to")
    await expect(palette.get_by_role("option", name="Overview")).to_be_visible()
    await axe(page)
    await page.keyboard.type("send")
    await expect(palette.get_by_role("option", name="Search for send")).to_be_visible()
    await expect(palette.get_by_role("option", name="send_email")).to_be_visible()
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile("q=topic%3Asend_email"))  # and until its scripts have run
    await page.keyboard.press("Control+k")
    (job,) = await app.jobs.alist()
    await page.keyboard.type(str(job.id))
    await expect(palette.get_by_role("option", name="Open job")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("Escape")
    await expect(palette).to_be_hidden()
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(re.compile(f"/jobs/{job.id}"))


@pytest.mark.parametrize("look", [dark, mobile], ids=["dark", "mobile"])
async def test_it_fits_every_screen_and_shows_what_users_write_as_text(
    app: Pulse, url: str, page: Page, look: Any
):
    run = await running(app.store, **one_attempt(topic=XSS, tags=(XSS,), headers={XSS: XSS}))
    await settle(app.store, run, Failed(XSS * 9))
    await app.store.submit([a_job(queue=XSS, payload='{"a": "<script>alert(1)</script>"}')])
    await running(app.store)
    await look(page)
    await page.goto(f"{url}/jobs?q=until:0s")
    await expect(page.locator("tr[data-row]")).to_have_count(3)
    await expect(page.locator("tr[data-row] img")).to_have_count(0)
    await expect(page.get_by_role("link", name=XSS)).to_be_visible()
    await page.locator('input[name="id"]').nth(0).click()
    await axe(page)
    await assert_fits(page)
