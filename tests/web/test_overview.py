"""The overview: what is wrong comes first, and every number is one of the statistics."""

import shlex
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import Page

from pulsed import Pulse
from pulsed.engine.governed import Governed, control_warnings
from pulsed.engine.lanes import Lanes
from pulsed.engine.limits import KeyState, LimitState
from pulsed.engine.overview import glance, warnings
from pulsed.model.control import Control, ControlScope, Numbers
from pulsed.model.job import WorkerInfo
from pulsed.model.rate import Rate
from pulsed.model.rollup import Histogram, Point, Series, Stats
from pulsed.store.results import Backlog
from pulsed.web import Local, Role, dashboard
from pulsed.web.charts import MOST_BARS, bars
from tests.support.browser import assert_fits, axe, dark, mobile

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


def a_worker(*queues: str, beat: float = 1.0, running: int = 0, topic: str = "send") -> WorkerInfo:
    return WorkerInfo(
        id=uuid4(),
        host="host-3",
        pid=7,
        queues=queues,
        topics=(topic,),
        slots=10,
        running=running,
        last_beat=NOW - timedelta(seconds=beat),
    )


def lane(queue: str, topic: str = "send", due: int = 120) -> Backlog:
    return Backlog(queue, topic, due, NOW - timedelta(minutes=14))


def a_series(*stats: Stats, step: int = 60) -> Series:
    since = NOW - timedelta(seconds=step * len(stats))
    points = [Point(since + timedelta(seconds=step * n), each) for n, each in enumerate(stats)]
    return Series(since, NOW, step, points)


def test_due_jobs_that_no_worker_takes_are_a_warning_with_the_command():
    (warning,) = warnings(Lanes([lane("encode"), lane("mail")], [], [a_worker("mail")], NOW))
    assert warning.text == (
        "Queue encode: 120 jobs are due and no live worker takes from it, the oldest for 14 min."
    )
    assert warning.command == "pulsed worker module:app -q encode"


def test_a_missing_handler_is_another_warning():
    (warning,) = warnings(Lanes([lane("mail", due=1)], [], [a_worker("mail", topic="other")], NOW))
    assert "1 job is due and no live worker has a handler for send" in warning.text


def test_a_silent_worker_with_jobs_is_a_warning():
    (warning,) = warnings(Lanes([], [], [a_worker("mail", beat=100, running=2)], NOW))
    assert "host-3:7 has sent no heartbeat for 2 min, with 2 jobs running" in warning.text
    assert (
        warnings(Lanes([], [], [a_worker("mail", beat=100), a_worker("mail", running=2)], NOW))
        == []
    )


def a_pause(scope: ControlScope, name: str) -> Control:
    at = NOW - timedelta(hours=2)
    return Control(scope=scope, name=name, paused=True, paused_at=at, paused_by="ada@host")


def a_limit(*keys: KeyState, numbers: Numbers, name: str = "api") -> LimitState:
    return LimitState(
        name=name,
        numbers=numbers,
        running=sum(key.running for key in keys),
        waiting=sum(key.waiting for key in keys),
        keys=keys,
    )


def a_key(
    value: str | None, running: int, waiting: int, next_start: datetime | None = None
) -> KeyState:
    return KeyState(
        value=value, running=running, waiting=waiting, holders=(), next_start=next_start
    )


@pytest.mark.parametrize(
    "scope, name", [(ControlScope.QUEUE, "my mail"), (ControlScope.TOPIC, "send")]
)
def test_a_pause_with_due_jobs_is_a_warning_that_says_who_since_when_and_how_to_resume(scope, name):
    pauses = [a_pause(scope, name), a_pause(scope, "nothing due")]
    governed = Governed({each.key: each for each in pauses})
    (warning,) = control_warnings(Lanes([lane("my mail")], [], [], NOW), governed)
    assert warning.text == (
        f"{scope.capitalize()} {name} was paused by ada@host 2 h ago, and 120 jobs are due, "
        "the oldest for 14 min."
    )
    assert warning.command == f"pulsed {scope}s resume {shlex.quote(name)}"


def test_a_paused_limit_with_waiting_jobs_is_a_warning():
    pause = a_pause(ControlScope.LIMIT, "api")
    limit = a_limit(a_key(None, 0, 1), numbers=Numbers(running=5))
    paused = msgspec.structs.replace(limit, paused=True)
    (warning,) = control_warnings(Lanes([], [], [], NOW), Governed({pause.key: pause}, [paused]))
    assert "Limit api was paused by ada@host 2 h ago, and 1 job waits." in warning.text
    assert warning.command == "pulsed limits resume api"


def test_a_full_limit_is_a_warning_if_many_jobs_wait_for_it():
    def said(*keys: KeyState, numbers: Numbers) -> list[str]:
        governed = Governed({}, [a_limit(*keys, numbers=numbers)])
        return [each.text for each in control_warnings(Lanes([], [], [], NOW), governed)]

    five, two, often = Numbers(running=5), Numbers(running=2), Numbers(rate=Rate(1, per=60))
    (full,) = said(a_key(None, 5, 2_000), numbers=five)
    assert full.startswith("Limit api is full: 5 of 5 run, and 2,000 jobs wait.")
    keys = a_key("acme", 2, 90), a_key("free", 2, 20), a_key("new", 1, 50)
    (full,) = said(*keys, numbers=two)
    assert full.startswith("Limit api is full: 5 run, 2 keys are full, and 160 jobs wait.")
    later = NOW + timedelta(seconds=30)
    (full,) = said(a_key(None, 1, 100, next_start=later), numbers=often)
    assert full.startswith("Limit api is full: 1 run, and 100 jobs wait.")
    assert said(a_key(None, 5, 99), numbers=five) == []  # few wait
    assert said(a_key(None, 4, 500), numbers=five) == []  # a slot is free
    assert said(a_key("acme", 2, 0), a_key("free", 1, 500), numbers=two) == []  # nobody waits
    assert said(a_key(None, 1, 500), numbers=Numbers(sequential=True)) != []


def test_the_tiles_compare_the_last_hour_with_the_last_day():
    waits = Histogram.of([0.04] * 100)
    minute = Stats(succeeded=9, failed=1, wait=waits, run=waits)
    hour = a_series(*[minute] * 60)
    quiet = [Stats()] * 100
    day = a_series(*quiet, *[Stats(succeeded=600, dead_lettered=2)] * 44, step=600)
    found = glance(hour, day)
    assert found.per_minute == 10
    assert round(found.usual_per_minute, 1) == 60.2  # while there was something to do
    assert found.failure_rate == 0.1
    assert found.new_dead == 88
    assert found.wait_p95 is not None
    assert 0.025 < found.wait_p95 <= 0.05


def test_queues_with_due_jobs_come_first():
    workers = [a_worker("mail", "default")]
    by_queue = {"default": a_series(*[Stats(succeeded=5)] * 60)}
    lines = Lanes([lane("encode")], [], workers, NOW).queues(by_queue)
    assert [(line.name, line.due, line.workers) for line in lines] == [
        ("encode", 120, 0),
        ("default", 0, 1),
        ("mail", 0, 1),
    ]
    assert lines[1].per_minute_out == 5
    assert lines[0].oldest == 840


def test_small_bars_are_few_and_to_scale():
    assert bars([]) == ""
    assert bars([0, 0]) == ""
    assert bars([1, 2]) == "M0 18v-9.0h59.0v9.0zM60 18v-18.0h59.0v18.0z"
    assert bars([1] * 1_000).count("M") <= MOST_BARS


@pytest_asyncio.fixture(loop_scope="session")
async def app(tmp_path: Path) -> AsyncIterator[Pulse]:
    app = Pulse(f"sqlite:///{tmp_path / 'jobs.db'}")
    yield app
    await app.aclose()


async def test_the_overview_in_a_browser(app: Pulse, page: Page, serve):
    url = serve(dashboard(app, access=Local(Role.VIEWER), environment="shop"))
    await app.queues.apause("<b>mail</b>")
    await page.goto(f"{url}/")
    await page.get_by_text("Nothing here yet").wait_for()
    await app.aenqueue("send", {"to": "ada"}, queue="<b>mail</b>")
    await page.get_by_text("1 job is due and no live worker").wait_for()  # live, without a reload
    assert await page.locator("main b", has_text="<b>mail</b>").count() == 1  # as text
    warning = page.locator(".warning", has_text="Queue <b>mail</b> was paused by ")
    assert "pulsed queues resume '<b>mail</b>'" in await warning.inner_text()
    assert "paused" in await page.locator("tr", has_text="<b>mail</b>").inner_text()
    await page.locator("canvas").first.wait_for()
    await page.get_by_role("link", name="24 h", exact=True).click()
    await page.wait_for_url("**/?span=24h")
    await axe(page)
    await dark(page)
    await axe(page)
    await mobile(page)
    await assert_fits(page)
