"""The page of a job in a browser: live steps, acts, forms, copying, dark, narrow, accessible."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from pulsed import Backoff, Context, Pulse
from pulsed.web import Local, Role, dashboard
from tests.support.apps import working
from tests.support.browser import Problems, assert_fits, axe, dark, mobile

HOSTILE = "<img src=x onerror=alert(1)>"


class Shop:
    """An app with a workflow, and with a job that fails for some arguments."""

    def __init__(self, app: Pulse) -> None:
        self.app = app

        @app.job(max_attempts=1, backoff=Backoff.fixed(0.0))
        async def charge(user: int, note: str = "") -> int:
            if user < 0:
                raise ValueError(f"no such user {note}")
            return user

        @app.job
        async def ship(item: str) -> str:
            return item

        async def weigh(item: str) -> dict[str, str]:
            return {"item": item}

        @app.job
        async def order(ctx: Context, items: list[str]) -> Any:
            await ctx.step(weigh, items[0], name=f"weigh {HOSTILE}")
            await ctx.fan_out([ship.bind(item) for item in items])
            return await ctx.wait_signal("approved")

        self.charge, self.order = charge, order


@pytest_asyncio.fixture(loop_scope="session")
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    app = Pulse(f"sqlite:///{tmp_path}/jobs.db")
    yield Shop(app)
    await app.aclose()


@pytest.fixture
def home(shop: Shop, serve: Any) -> str:
    url: str = serve(dashboard(shop.app, access=Local(Role.ADMIN)))
    return url


async def test_a_workflow_is_followed_live_and_signalled(shop: Shop, home: str, page: Page):
    job = await shop.order.aenqueue(["book", HOSTILE])
    await page.goto(f"{home}/jobs/{job.id}")
    await expect(page.get_by_text("No worker is alive")).to_be_visible()
    async with working(shop.app):
        await expect(page.get_by_text("waits for this signal")).to_be_visible()
        await expect(page.get_by_role("row").filter(has_text="2 succeeded")).to_be_visible()
        assert await page.locator("table.steps rect.bar").count() >= 4
        await page.locator("details.value summary").click()
        await expect(page.locator("details.value pre")).to_be_visible()
        await axe(page)
        await dark(page)
        await axe(page)
        await mobile(page)
        await assert_fits(page)
        await page.get_by_label("Value, as JSON").fill('{"by": 12345678901234567890}')
        await page.get_by_role("button", name="Send", exact=True).click()
        await expect(page.get_by_text("The signal 'approved' is sent.")).to_be_visible()
        await expect(page.get_by_text("It succeeded")).to_be_visible()
    await expect(page.locator("#result")).to_have_text('{\n  "by": 12345678901234567890\n}')
    await axe(page)


async def test_a_dead_letter_is_retried_edited_and_deleted(
    shop: Shop, home: str, page: Page, problems: Problems
):
    problems.allow("422")  # the console's word for a form that was refused
    job = await shop.charge.aenqueue(-1, note=HOSTILE)
    async with working(shop.app):
        await page.goto(f"{home}/jobs/{job.id}")
        await expect(page.get_by_text("It failed for good")).to_be_visible()
        await page.get_by_role("button", name="Retry", exact=True).click()
        await expect(page.get_by_text("will run again.")).to_be_visible()
        await expect(page.get_by_text("It failed for good")).to_be_visible()
        await page.get_by_text("traceback").first.click()
        await expect(page.get_by_text("Traceback (most recent call last)").first).to_be_visible()
        await axe(page)
        await page.get_by_role("link", name="Edit and retry…").click()
        await page.get_by_label("Payload").fill('{"user": "x"}')
        await page.get_by_role("button", name="Save and retry").click()
        await expect(page.get_by_role("alert")).to_contain_text("cannot take argument 'user'")
        await axe(page)
        await page.get_by_label("Payload").fill('{"user": 7}')
        await page.get_by_role("button", name="Save and retry").click()
        await expect(page.get_by_text("It succeeded")).to_be_visible()
    await page.get_by_text("Delete this job…").click()
    await page.get_by_role("checkbox").check()
    await page.get_by_role("button", name="Delete").click()
    await expect(page.get_by_text(f"Job {job.id} is deleted.")).to_be_visible()


async def test_a_new_job_is_typed_cancelled_and_its_id_copied(
    shop: Shop, home: str, page: Page, problems: Problems
):
    problems.allow("422")
    await page.goto(f"{home}/jobs/new")
    await page.get_by_label("Topic", exact=True).fill("charge")
    await page.get_by_role("button", name="Continue").click()
    await page.get_by_label("user", exact=True).fill("seven")
    await page.get_by_role("button", name="Enqueue").click()
    await expect(page.get_by_role("alert")).to_have_text("'seven' is no whole number.")
    await axe(page)
    await mobile(page)
    await assert_fits(page)
    await page.get_by_label("user", exact=True).fill("7")
    await page.get_by_role("button", name="Enqueue").click()
    await expect(page.get_by_text("The job charge is enqueued.")).to_be_visible()
    await page.wait_for_load_state()  # its scripts have run
    await page.get_by_role("button", name="Copy").first.click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_text("The job is cancelled.")).to_be_visible()


async def test_acts_work_without_scripts(shop: Shop, home: str, browser: Any):
    job = await shop.charge.aenqueue(1)
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(f"{home}/jobs/{job.id}")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_text("The job is cancelled.")).to_be_visible()
    await context.close()
