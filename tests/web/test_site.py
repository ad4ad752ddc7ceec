"""The site of the documentation, as a reader has it: opened from its folder, without a network."""

from playwright.async_api import Page, expect

from tests.support.browser import assert_fits, dark, mobile
from tools.site.__main__ import build


async def test_the_site_builds_and_is_searched_from_its_folder(page: Page, tmp_path):
    """In one test, since to build it takes seconds."""
    site = tmp_path / "site"
    assert build(site) == []

    await page.goto((site / "index.html").as_uri())
    await page.get_by_role("button", name="Search").first.click()
    await page.keyboard.type("backoff jitter")
    found = page.get_by_role("option").filter(has_text="Retries")
    await expect(found.first).to_be_visible()

    await page.reload()
    light = page.locator('img[src*="overview-light"]')
    await expect(light).to_be_visible()
    await dark(page)
    await expect(light).to_be_hidden()
    await mobile(page)
    await assert_fits(page)
    await page.locator("label.md-header__button[for=__search]").click()
    await page.keyboard.type("backoff jitter")
    await expect(found.first).to_be_visible()
    await assert_fits(page)
