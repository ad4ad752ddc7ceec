"""What an act says on the page that it leads back to."""

import pytest
from starlette.responses import Response

from pulsed import Pulse
from pulsed.errors import InvalidOption
from pulsed.web import Local, Role, dashboard
from pulsed.web.routes import PAGES
from pulsed.web.site import PageCall, PageRoute
from tests.support.visits import Tab

TEXT = "Cancelled 3 jobs; <b>é</b>"


async def act(call: PageCall) -> Response:
    return call.done(TEXT, call.back("/jobs"))


async def refuse(_: PageCall) -> Response:
    raise InvalidOption("It has ended already.")


@pytest.fixture
async def tab(monkeypatch, tmp_path):
    acts = (PageRoute("/act", act, method="POST"), PageRoute("/refuse", refuse, method="POST"))
    monkeypatch.setitem(dashboard.__globals__, "PAGES", (*PAGES, *acts))
    app = Pulse(f"sqlite:///{tmp_path}/jobs.db")
    yield Tab(dashboard(app, access=Local(Role.ADMIN)))
    await app.aclose()


async def test_the_page_after_an_act_says_once_what_was_done(tab):
    answer = await tab.post("/act", back="/jobs?q=status%3Adead")
    assert (answer.status, answer.location) == (303, "/jobs?q=status%3Adead")
    assert TEXT in (await tab.follow(answer)).text
    assert TEXT not in (await tab.get("/jobs")).text


async def test_a_live_part_of_a_page_does_not_use_it_up(tab):
    answer = await tab.post("/act", back="/jobs")
    assert TEXT not in (await tab.get("/jobs", **{"x-refresh": "1"})).text
    assert TEXT in (await tab.follow(answer)).text


async def test_a_refused_act_says_why_on_the_page_it_came_from(tab):
    answer = await tab.post("/refuse", back="/jobs")
    assert answer.location == "/jobs"
    page = await tab.follow(answer)
    assert "It has ended already." in page.text
    assert 'class="toast bad"' in page.body


@pytest.mark.parametrize("back", ["https://elsewhere.example", "//elsewhere.example", "/\\x", "x"])
async def test_an_act_leads_back_to_this_site_only(tab, back):
    assert (await tab.post("/act", back=back)).location == "/jobs"
