"""Pausing, limiting and overriding in the dashboard: queues, topics and limits."""

from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest

from pulsed import Pulse, Rate
from pulsed.client.bulk import start_bulk
from pulsed.client.search import parse
from pulsed.model.bulk import CANCEL
from pulsed.model.control import ControlScope, Numbers
from pulsed.store.base import Store
from pulsed.web import Basic, Delegated, Local, Role, Visitor, dashboard
from pulsed.web.routes import PAGES
from tests.support.jobs import ALICE, TOPIC, a_job, a_policy
from tests.support.visits import Answer, Tab
from tests.web.test_pages import EVIL, EVIL_SHOWN

NOW = datetime(2026, 11, 17, 9, tzinfo=UTC)

pytestmark = pytest.mark.usefixtures("seed")


@pytest.fixture
async def seed(backend):
    """The database itself, on the real clock."""
    store = backend.open(own_clock=False)
    await store.now()
    yield store
    await store.aclose()


@pytest.fixture
async def app(url):
    async with Pulse(url) as app:
        yield app


@pytest.fixture
def tab(app: Pulse) -> Tab:
    """An operator's tab."""
    return Tab(dashboard(app, access=Local(Role.OPERATOR)))


@pytest.fixture
def viewer(app: Pulse) -> Tab:
    return Tab(dashboard(app, access=Local(Role.VIEWER)))


async def acts(store: Store) -> list[tuple[str, str | None]]:
    return [(entry.act, entry.detail) for entry in await store.audit_log()]


async def sent(tab: Tab, page: str, act: str, **form: str) -> Answer:
    """Send a form of a page; returns the page that follows."""
    return await tab.follow(await tab.post(f"{page}/{act}", back=page, **form))


# -- queues ---------------------------------------------------------------------------------------


async def test_a_queue_is_paused_and_resumed(seed: Any, app: Pulse, tab: Tab):
    await seed.submit([a_job()])
    done = await tab.follow(await tab.post("/queues/default/pause", back="/queues/default"))
    assert "The queue default is paused" in done.text
    assert "paused by" in done.text
    assert "Resume" in done.text
    assert "paused by" in (await tab.get("/queues")).text
    assert (await app.queues.aget("default")).paused
    done = await tab.follow(await tab.post("/queues/default/resume", back="/queues/default"))
    assert "The queue default starts jobs again." in done.text
    assert not (await app.queues.aget("default")).paused
    assert [act for act, _ in await acts(seed)] == ["resume queue", "pause queue"]


async def test_limits_of_a_queue_are_set_and_cleared(app: Pulse, tab: Tab):
    form = {"running": "4", "rate": "60/1m", "burst": "10", "age": "5m"}
    done = await tab.follow(
        await tab.post("/queues/encode/override", back="/queues/encode", **form)
    )
    assert (
        "The queue encode has running 4, rate 60 per 60 s, 10 at once, age 300 s now." in done.text
    )
    assert "set by an operator" in done.text
    assert "0 of 4" in done.text
    numbers = Numbers(running=4, rate=Rate(60, per=60, burst=10), age=300)
    assert (await app.queues.aget("encode")).numbers == numbers
    emptied = {"running": "4", "rate": "", "burst": "", "age": ""}
    await tab.post("/queues/encode/override", back="/queues/encode", **emptied)
    assert (await app.queues.aget("encode")).numbers == Numbers(running=4)
    await tab.post("/queues/encode/clear", back="/queues/encode")
    assert (await app.queues.aget("encode")).is_neutral


@pytest.mark.parametrize(
    "form, told",
    [
        ({"running": "many"}, "running is a number, or none, not 'many'."),
        ({"running": "0"}, "running must be between 1 and"),
        ({"rate": "60"}, "rate is a number of starts and a time, as 60/1m, or none, not '60'."),
        ({"rate": "60/often"}, "rate needs a time, as 90s, 5m or 2h, not 'often'."),
        ({"rate": "1/1s", "burst": "x"}, "burst is a number, or none, not 'x'."),
        ({"age": "soon"}, "age needs a time, as 90s, 5m or 2h, not 'soon'."),
    ],
)
async def test_what_is_typed_wrong_is_said_and_changes_nothing(
    app: Pulse, tab: Tab, form: dict[str, str], told: str
):
    done = await tab.follow(
        await tab.post("/queues/encode/override", back="/queues/encode", **form)
    )
    assert told in done.text
    assert (await app.queues.aget("encode")).is_neutral


async def test_a_topic_is_paused_on_the_page_of_its_queue(seed: Any, app: Pulse, tab: Tab):
    await seed.submit([a_job()])
    page = await tab.get("/queues/default")
    assert f"/topics/{TOPIC}/pause" in page.body
    done = await tab.follow(await tab.post(f"/topics/{TOPIC}/pause", back="/queues/default"))
    assert f"The topic {TOPIC} is paused in all queues." in done.text
    assert f"/topics/{TOPIC}/resume" in done.body
    assert [control.name for control in await app.topics.apaused()] == [TOPIC]
    await tab.post(f"/topics/{TOPIC}/resume", back="/queues/default")
    assert await app.topics.apaused() == []


# -- limits ---------------------------------------------------------------------------------------


async def claimed(seed: Any, limit: int = 10) -> Any:
    topics = [a_policy(limit_name="openai", limit_per="tenant")]
    return await seed.claim(ALICE, "default", topics, limit)


async def a_limit(seed: Any) -> None:
    await seed.controls.declare(ControlScope.LIMIT, {"openai": Numbers(running=2)})
    await seed.submit([a_job(limit_key="openai,acme") for _ in range(5)])
    await seed.submit([a_job(limit_key="openai,zoo")])


async def test_no_limit_says_how_to_declare_one(tab: Tab):
    assert "No limit yet" in (await tab.get("/limits")).text


async def test_limits_show_what_runs_and_waits(seed: Any, tab: Tab):
    await a_limit(seed)
    await claimed(seed)
    page = await tab.get("/limits")
    assert "openai" in page.text
    assert "running 2" in page.text
    assert "/limits/openai" in page.body


async def test_a_limit_shows_who_holds_each_key(seed: Any, tab: Tab):
    await a_limit(seed)
    held = [job for job in await claimed(seed) if job.payload]
    assert len(held) == 3
    page = await tab.get("/limits/openai")
    assert "2 of 2" in page.text
    assert "when one ends" in page.text
    assert "1 of 2" in page.text
    for job in held:
        assert f"/jobs/{job.job_id}" in page.body
    jobs = await tab.get('/jobs?q=limit:"openai,acme"')
    assert jobs.body.count("data-row=") == 5


async def test_a_limit_is_overridden_paused_resumed_and_cleared(seed: Any, app: Pulse, tab: Tab):
    await a_limit(seed)
    form = {"running": "7", "rate": "", "burst": ""}
    done = await tab.follow(
        await tab.post("/limits/openai/override", back="/limits/openai", **form)
    )
    assert "The limit openai has running 7 now." in done.text
    assert "the code declares running 2" in done.text
    done = await tab.follow(await tab.post("/limits/openai/pause", back="/limits/openai"))
    assert "paused by" in done.text
    assert (await app.limits.aget("openai")).paused
    await tab.post("/limits/openai/resume", back="/limits/openai")
    done = await tab.follow(await tab.post("/limits/openai/clear", back="/limits/openai"))
    assert "The limit openai has running 2 now." in done.text
    assert (await app.limits.aget("openai")).override is None
    assert [act for act, _ in await acts(seed)] == [
        "clear limit", "resume limit", "pause limit", "limit limit",
    ]  # fmt: skip


async def test_the_page_of_a_job_names_its_limit(seed: Any, tab: Tab):
    await a_limit(seed)
    job = a_job(limit_key="openai,acme")
    await seed.submit([job])
    await claimed(seed)
    page = await tab.get(f"/jobs/{job.id}")
    assert "/limits/openai" in page.body
    assert "acme" in page.text


async def test_a_viewer_sees_controls_and_changes_none(seed: Any, app: Pulse, viewer: Tab):
    await a_limit(seed)
    await app.queues.apause("default")
    assert "paused" in (await viewer.get("/queues/default")).text
    for page in ("/queues/default", "/limits/openai"):
        body = (await viewer.get(page)).body
        assert "/override" not in body
        assert "/pause" not in body
        assert (await viewer.post(f"{page}/resume", back=page)).status == 403
    assert (await app.queues.aget("default")).paused


async def test_names_of_controls_are_shown_as_text(seed: Any, app: Pulse, tab: Tab):
    await app.queues.apause(EVIL)
    await seed.controls.declare(ControlScope.LIMIT, {EVIL: Numbers(running=1)})
    await seed.submit([a_job(queue=EVIL, topic=EVIL, limit_key=f"{EVIL},{EVIL}")])
    quoted = "%3Cimg%20src%3Dx%20onerror%3D%22alert(1)%22%3E"
    for path in ("/queues", f"/queues/{quoted}", "/limits", f"/limits/{quoted}"):
        body = (await tab.get(path)).body
        assert EVIL_SHOWN in body
        assert EVIL not in body


async def test_who_sees_no_payloads_does_not_see_what_a_limit_counts_by(
    seed: Any, app: Pulse, tab: Tab
):
    """It is an argument."""
    vera = Basic({"vera": ("pw", Role.VIEWER)})
    viewer = Tab(dashboard(app, access=vera), headers={"authorization": "Basic dmVyYTpwdw=="})
    jobs = [a_job(limit_key="openai,ada@example.com") for _ in range(2)]
    await seed.submit(jobs)
    await app.limits.aoverride("openai", running=1)
    await seed.claim(ALICE, "default", [a_policy()], 1)
    pages = ["/limits/openai", *(f"/jobs/{job.id}" for job in jobs), "/jobs/complete?q=limit:"]
    pages.append("/jobs?q=limit:openai,ada@example.com")
    for page in pages:
        assert "ada@example.com" in (await tab.get(page)).body.replace("%40", "@"), page
    for page in pages[:-1]:
        assert "ada@example.com" not in (await viewer.get(page)).body.replace("%40", "@"), page
    assert "You may not see what a limit counts by" in (await viewer.get(pages[-1])).text
    assert "key 1" in (await viewer.get("/limits/openai")).text


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("sees", [False, True], ids=["without payloads", "with payloads"])
async def test_who_sees_no_payloads_sees_no_keys(seed: Any, app: Pulse, role: Role, sees: bool):
    """On any page: a key has what makes a job unique, such as the address of a user."""
    key = "ada@example.com"
    visitor = Visitor("vera", role, sees_payloads=sees)
    tab = Tab(dashboard(app, access=Delegated(lambda _: visitor)))
    first, second = a_job(key=key), a_job(key=key, limit_key=f"mail,{key}")
    await seed.submit([first])
    await seed.cancel([first.id])
    await seed.submit([second])
    where = [f"key:{key}", f"limit:mail,{key}"]
    bulk = [await start_bulk(app.store, CANCEL, parse(q, NOW).where) for q in where]
    pages = [
        route.path.replace("{name:path}", "mail").replace("{token}", "1").replace("{id}", str(some))
        for some in (first.id, second.id, *(each.id for each in bulk))
        for route in PAGES
        if route.method == "GET" and route.path != "/live" and role >= route.role
    ]
    pages += ["/jobs/complete?q=key:"]
    bodies = {page: (await tab.get(page)).body.replace("%40", "@") for page in dict.fromkeys(pages)}
    shown = [page for page, body in bodies.items() if key in body]
    assert bool(shown) is sees, shown
    taken = f"has taken its key {key!r}." if sees else "has taken its key."
    assert taken in unescape(bodies[f"/jobs/{first.id}"])
    found = await tab.get(f"/jobs?q=key:{key}")
    assert ("You may not see the keys of jobs" in found.text) is not sees
    other = await tab.get("/jobs?q=key:other")
    is_told = [str(second.id) in each.body for each in (found, other)]
    assert is_told == ([True, False] if sees else [is_told[0]] * 2)  # whether there is such a job
