"""The browser of other tests: it runs the vendored script, and misses no problem of a page."""

import re
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Error, Page, expect

import tests.support.browser as browser_support
from tests.support.browser import (
    PageProblems,
    Problems,
    assert_fits,
    axe,
    dark,
    mobile,
    screenshot,
    watched,
)
from tests.web.test_vendor import VENDOR

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'"
)
FOREIGN = "http://elsewhere.example/"
WORDS = "<!doctype html><html lang=en><title>Words</title><main><h1>Words</h1>{}</main></html>"


class Pages:
    """A tiny ASGI application: pages by path, and the vendored files."""

    def __init__(self, csp: str = CSP, **pages: str) -> None:
        self.csp = csp
        self.pages = {f"/{name}": WORDS.format(body) for name, body in pages.items()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        status, kind, body = self.answer(scope["path"])
        await start(send, status, kind, self.csp)
        await send({"type": "http.response.body", "body": body.encode()})

    def answer(self, path: str) -> tuple[int, str, str]:
        if path in self.pages:
            return 200, "text/html", self.pages[path]
        if path in SCRIPTS:
            return 200, "text/javascript", SCRIPTS[path]
        if path == "/style.css":
            return 200, "text/css", CSS
        if path.startswith("/vendor/"):
            kind = "text/css" if path.endswith(".css") else "text/javascript"
            return 200, kind, (VENDOR / path.removeprefix("/vendor/")).read_text("utf-8")
        return (500, "text/plain", "") if path == "/broken" else (404, "text/plain", "")


async def start(send: Any, status: int, kind: str, csp: str) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-security-policy", csp.encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})


SCRIPTS = {
    "/chart.js": """
        const data = [[1, 2, 3], [4, 6, 5]];
        const options = {width: 400, height: 200, series: [{}, {label: "rate", stroke: "red"}]};
        new uPlot(options, data, document.querySelector("#chart"));
    """,
    "/log.js": "console.error('it broke')",
    "/assert.js": "console.assert(false, 'it broke')",
    "/raise.js": "throw new Error('it broke')",
    "/eval.js": "try { eval('1') } catch (error) {}",
    "/alert.js": "alert('it broke')",
    "/fetch.js": "fetch('/missing')",
    "/socket.js": "new WebSocket('ws://elsewhere.example/')",
    "/late.js": """
        document.querySelector("button").onclick = event => {
            event.target.setAttribute("style", "color: red")
        };
    """,
}
CSS = """
    body { background: white }
    @media (prefers-color-scheme: dark) { body { background: black } }
    .faint { color: #ccc }
    .wide { width: 600px }
    .tall { height: 3000px }
"""
STYLE = "<link rel=stylesheet href=/style.css>"


# -- the vendored script under the policy of the dashboard ---------------------------------------


async def test_charts_work_under_the_policy(page: Page, serve: Any):
    body = """
        <link rel=stylesheet href="/vendor/uplot.min.css"><div id=chart></div>
        <script src="/vendor/uplot.min.js"></script><script src="/chart.js"></script>
    """
    await page.goto(serve(Pages(index=body)) + "/index")
    await expect(page.locator("#chart canvas")).to_be_visible()
    width = await page.locator("#chart .u-wrap").evaluate("e => e.getBoundingClientRect().width")
    assert width == 400  # set through the DOM, which the policy allows


# -- problems -------------------------------------------------------------------------------------


Visit = Callable[[Page], Awaitable[object]]
Complaint = Callable[[Visit], Awaitable[str]]


@pytest.fixture
def complaint(browser: Browser, hosts: set[str]) -> Complaint:
    """What the end of a test says after a visit of some page; nothing if that page is fine."""

    async def complaint(visit: Visit) -> str:
        try:
            async with watched(browser, Problems(hosts)) as context:
                await visit(await context.new_page())
        except PageProblems as problems:
            return str(problems)
        return ""

    return complaint


def script(name: str) -> str:
    return f"<script src=/{name}.js></script>"


PROBLEMS = {
    script("log"): r"console error: it broke .*/log\.js",
    script("assert"): r"console assert: it broke",
    script("raise"): r"exception: .*it broke",
    script("alert"): r"native dialog: alert: it broke",
    script("fetch"): r"console error: .*404 .*/missing",
    script("absent"): r"console error: .*404 .*/absent\.js",
    script("eval"): r"policy violation: script-src .* forbids eval",
    "<script>1</script>": r"policy violation: script-src-elem .* forbids inline",
    "<p style='color: red'>": r"policy violation: style-src-attr .* forbids inline",
    f"<img src={FOREIGN}>": rf"policy violation: img-src .* forbids {FOREIGN}",
    "<img src=/broken>": r"console error: .*500 .*/broken",
}


async def test_every_problem_fails_the_test(serve: Any, complaint: Complaint):
    url = serve(Pages(index="".join(PROBLEMS)))

    async def visit(page: Page) -> None:
        async with page.expect_console_message(lambda each: "/missing" in each.location["url"]):
            await page.goto(f"{url}/index")  # which does not wait for what its scripts fetch

    said = await complaint(visit)
    assert [problem for problem in PROBLEMS.values() if not re.search(problem, said)] == []


async def test_a_page_without_problems_passes(serve: Any, complaint: Complaint):
    url = serve(Pages(index=STYLE))
    assert await complaint(lambda page: page.goto(f"{url}/index")) == ""


async def test_requests_to_other_hosts_fail_the_test_and_are_not_sent(
    serve: Any, complaint: Complaint
):
    here = serve(Pages(index=""))
    other = here.replace("127.0.0.1", "localhost")  # a name that could be resolved
    url = serve(Pages(csp="", index=f"<img src={FOREIGN}><iframe src={other}/index></iframe>"))
    said = await complaint(lambda page: page.goto(f"{url}/index"))
    for each in (FOREIGN, f"{other}/index"):
        assert f"foreign request: {each}" in said
        assert f"failed request: {each}: net::ERR_NAME_NOT_RESOLVED" in said


async def test_another_port_is_another_host(serve: Any, hosts: set[str], complaint: Complaint):
    other = serve(Pages(index=""))
    hosts.clear()
    url = serve(Pages(csp="", index=f"<iframe src={other}/index></iframe>"))
    assert f"foreign request: {other}/index" in await complaint(
        lambda page: page.goto(f"{url}/index")
    )


async def test_a_websocket_to_another_host_fails_the_test(serve: Any, complaint: Complaint):
    url = serve(Pages(csp="", index=script("socket")))
    said = await complaint(lambda page: page.goto(f"{url}/index"))
    assert "foreign request: ws://elsewhere.example" in said


async def test_a_violation_by_the_last_step_is_not_missed(serve: Any, complaint: Complaint):
    url = serve(Pages(index="<button>Press</button>" + script("late")))

    async def press(page: Page) -> None:
        await page.goto(f"{url}/index")
        await page.get_by_role("button").click()

    assert "policy violation" in await complaint(press)


async def test_a_second_page_is_watched_too(serve: Any, complaint: Complaint):
    url = serve(Pages(index="<a target=_blank href=/other>Open</a>", other=script("log")))

    async def follow(page: Page) -> None:
        await page.goto(f"{url}/index")
        async with page.expect_popup() as opened:
            await page.get_by_role("link").click()
        await (await opened.value).wait_for_load_state()

    assert "it broke" in await complaint(follow)


async def test_a_crash_fails_the_test(complaint: Complaint):
    async def crash(page: Page) -> None:
        with pytest.raises(Error, match="crash"):
            await page.goto("chrome://crash")

    assert "crash: " in await complaint(crash)


async def test_a_page_that_hangs_fails_the_test(complaint: Complaint, monkeypatch):
    monkeypatch.setattr(browser_support, "PATIENCE", 0.1)
    hang = "() => { setTimeout(() => { for (;;); }) }"
    assert "no answer: " in await complaint(lambda page: page.evaluate(hang))


async def test_an_expected_problem_passes(page: Page, serve: Any, problems: Problems):
    problems.allow("404 .*/missing")
    await page.goto(serve(Pages()) + "/missing")


def test_a_problem_that_is_expected_and_absent_fails_the_test():
    problems = Problems(hosts=[])
    problems.allow("404")
    with pytest.raises(PageProblems, match="expected, but absent: 404"):
        problems.check()


# -- views of a page ------------------------------------------------------------------------------


async def test_axe_passes_a_page_that_everyone_can_use(page: Page, serve: Any):
    await page.goto(serve(Pages(index="<label>Name <input></label>")) + "/index")
    await axe(page)


async def test_axe_fails_a_page_with_serious_faults(page: Page, serve: Any):
    await page.goto(serve(Pages(index=STYLE + "<input><p class=faint>Words")) + "/index")
    with pytest.raises(AssertionError) as raised:
        await axe(page)
    assert "critical: label: " in str(raised.value)
    assert "serious: color-contrast: " in str(raised.value)


async def test_dark_prefers_dark_colours(page: Page, serve: Any):
    await page.goto(serve(Pages(index=STYLE)) + "/index")
    colour = "() => getComputedStyle(document.body).backgroundColor"
    assert await page.evaluate(colour) == "rgb(255, 255, 255)"
    await dark(page)
    assert await page.evaluate(colour) == "rgb(0, 0, 0)"


async def test_a_page_wider_than_a_narrow_screen_fails(page: Page, serve: Any):
    await page.goto(serve(Pages(index=STYLE + "<p class=wide>Words")) + "/index")
    await assert_fits(page)
    await mobile(page, 360)
    with pytest.raises(AssertionError, match="wide"):
        await assert_fits(page)


async def test_a_screenshot_shows_the_whole_page(page: Page, serve: Any, tmp_path: Path):
    await page.goto(serve(Pages(index=STYLE + "<p class=tall>Words")) + "/index")
    picture = (await screenshot(page, tmp_path / "page.png")).read_bytes()
    width, height = struct.unpack(">II", picture[16:24])
    assert (width, height > 3000) == (1280, True)


@pytest.mark.parametrize("time", ["first", "second"])
async def test_each_test_has_a_fresh_profile(page: Page, serve: Any, time: str):
    await page.goto(serve(Pages(index="")) + "/index")
    assert await page.evaluate("() => document.cookie") == ""
    await page.evaluate("() => { document.cookie = 'seen=yes' }")
