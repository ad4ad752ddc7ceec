"""The pages of queues, workers and the audit log, on every store."""

from typing import Any
from uuid import uuid4

import pytest

from pulsed import Pulse
from pulsed.model.audit import Operator
from pulsed.model.job import WorkerInfo
from pulsed.web import Local, Role, dashboard
from pulsed.web.pages import audit
from tests.support.jobs import ALICE, TOPIC, a_job, claim
from tests.support.visits import Tab

EVIL = '<img src=x onerror="alert(1)">'
EVIL_SHOWN = "&lt;img src=x onerror=&#34;alert(1)&#34;&gt;"


@pytest.fixture
async def seed(backend):
    """The database itself, on the real clock."""
    store = backend.open(own_clock=False)
    await store.now()
    yield store
    await store.aclose()


@pytest.fixture
async def tab(seed, url):
    """An administrator's tab, on the same database."""
    app = Pulse(url)
    yield Tab(dashboard(app, access=Local(Role.ADMIN)))
    await app.aclose()


def a_worker(**changes: Any) -> WorkerInfo:
    known: dict[str, Any] = {"id": ALICE, "host": "host-1", "pid": 812, "version": "1.2.3"}
    known |= {"queues": ("default",), "topics": (TOPIC,), "slots": 4}
    return WorkerInfo(**known | changes)


# -- queues ---------------------------------------------------------------------------------------


async def test_no_queue_says_what_to_type(tab):
    page = await tab.get("/queues")
    assert "No queue yet" in page.text
    assert "pulsed worker module:app -q default,mail" in page.text


async def test_a_queue_shows_what_is_due_and_running_and_who_takes_from_it(seed, tab):
    await seed.announce(a_worker())
    await seed.submit([a_job() for _ in range(5)])
    await claim(seed, limit=2)
    await seed.submit([a_job(queue="orphan"), a_job(queue="orphan", delay=60)])
    text = (await tab.get("/queues")).text
    assert "default 3 " in text
    assert "orphan no live worker takes from it 1 " in text
    topics = (await tab.get("/queues/default")).text
    assert f"{TOPIC} 3 " in topics
    assert "host-1:812 0 of 4 slots" in topics
    assert "No live worker takes from it." in (await tab.get("/queues/orphan")).text


async def test_a_queue_says_which_topic_no_worker_handles(seed, tab):
    await seed.announce(a_worker())
    await seed.submit([a_job(topic="other")])
    assert (
        "no live worker on this queue has a handler for it"
        in (await tab.get("/queues/default")).text
    )


async def test_names_of_queues_and_topics_are_text_in_pages_and_in_addresses(seed, tab):
    name = 'a/b ?#"' + EVIL
    await seed.submit([a_job(queue=name, topic=EVIL)])
    page = await tab.get("/queues")
    assert EVIL not in page.body
    assert EVIL_SHOWN in page.body
    [link] = [part.split('"')[0] for part in page.body.split('href="')[1:] if "/queues/a" in part]
    one = await tab.get(link)
    assert f"Queue {name}" in one.text
    assert f"{EVIL} no live worker" in one.text
    assert EVIL not in one.body


async def test_a_name_that_no_queue_can_have_is_refused(tab):
    assert (await tab.get("/queues/a,b")).status == 400


# -- workers --------------------------------------------------------------------------------------


async def test_no_worker_says_what_to_type(tab):
    assert "Start one: pulsed worker module:app" in (await tab.get("/workers")).text


async def test_a_worker_shows_its_slots_its_jobs_and_its_last_heartbeat(seed, tab):
    await seed.submit([a_job() for _ in range(7)])
    runs = await claim(seed, limit=7)
    await seed.announce(a_worker(running=7, slots=10))
    await seed.announce(a_worker(id=uuid4(), pid=813, state="draining"))
    await seed.announce(a_worker(id=uuid4(), pid=814, state="failing"))
    await seed.announce(a_worker(id=uuid4(), pid=815, stuck=2))
    page = await tab.get("/workers")
    assert "● live 7 of 10" in page.text
    assert "◐ draining" in page.text
    assert "takes nothing new" in page.text
    assert "▲ failing" in page.text
    assert "2 slots with a handler that does not stop: restart it." in page.text
    assert "1.2.3" in page.text
    assert sum(f"/jobs/{run.job_id}" in page.body for run in runs) == 5
    assert f"/jobs?q=worker%3A{ALICE}" in page.body


async def test_a_silent_worker_comes_first_and_says_what_becomes_of_its_jobs(seed, tab, backend):
    await seed.announce(a_worker(id=uuid4(), host="well"))
    await seed.announce(a_worker(host="gone", running=3))
    earlier = {"sqlite": "60000000", "postgres": "interval '1 minute'"}[backend.engine]
    backend.execute(
        f"UPDATE pulse_workers SET last_beat = last_beat - {earlier} WHERE host = 'gone'"
    )
    text = (await tab.get("/workers")).text
    assert text.index("gone:812") < text.index("well:812")
    assert "✕ silent" in text
    assert "It ran 3 jobs: each restarts elsewhere when its lease expires." in text


async def test_what_a_worker_says_of_itself_is_text(seed, tab):
    evil = {"queues": (EVIL,), "topics": (EVIL,), "host": EVIL, "version": EVIL, "state": EVIL}
    await seed.announce(a_worker(**evil))
    page = await tab.get("/workers")
    assert EVIL not in page.body
    assert page.body.count(EVIL_SHOWN) == 4


# -- the audit log --------------------------------------------------------------------------------


async def test_an_empty_log_says_what_will_be_in_it(tab):
    assert "Nobody has changed anything yet" in (await tab.get("/audit")).text


@pytest.mark.embedded("a server names its caller itself")
async def test_the_log_is_filtered_by_who_and_when(seed, tab):
    for who in ("ada", "bob"):
        [job] = jobs = [a_job()]
        await seed.submit(jobs)
        await seed.cancel([job.id], by=Operator(who, role="admin", claimed="root"))
    text = (await tab.get("/audit")).text
    assert text.index("bob says to be root admin cancel jobs 1") < text.index("ada says to be root")
    of_ada = (await tab.get("/audit?actor=ada&since=1h")).text
    assert "ada says" in of_ada
    assert "bob says" not in of_ada
    assert "No act matches." in (await tab.get("/audit?until=1h")).text
    assert "soon is no time" in (await tab.get("/audit?since=soon")).text
    assert "actor must be" in (await tab.get(f"/audit?actor={'x' * 300}")).text


async def test_the_log_is_read_page_by_page(seed, tab, monkeypatch):
    monkeypatch.setattr(audit, "PAGE_SIZE", 2)
    for number in range(3):
        [job] = jobs = [a_job()]
        await seed.submit(jobs)
        await seed.cancel([job.id], by=Operator(f"actor-{number}"))
    first = await tab.get("/audit")
    assert [f"actor-{n}" in first.text for n in range(3)] == [False, True, True]
    [older] = [p.split('"')[0] for p in first.body.split('href="')[1:] if "before=" in p]
    last = await tab.get(older.replace("&amp;", "&"))
    assert [f"actor-{n}" in last.text for n in range(3)] == [True, False, False]
    assert "Older" not in last.text
    assert (await tab.get("/audit?before=nonsense")).status == 200


@pytest.mark.embedded("a server names its caller itself")
async def test_what_the_log_says_is_text(seed, tab):
    [job] = jobs = [a_job()]
    await seed.submit(jobs)
    await seed.cancel([job.id], by=Operator(EVIL, claimed=EVIL, detail=EVIL))
    page = await tab.get("/audit")
    assert EVIL not in page.body
    assert page.body.count(EVIL_SHOWN) == 3
