"""The pages of queues, workers, schedules and the audit log, on every store."""

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from pulsed import Pulse
from pulsed.model.audit import Operator
from pulsed.model.job import WorkerInfo
from pulsed.model.step import StepKind
from pulsed.web import Delegated, Local, Role, Visitor, dashboard
from pulsed.web.pages import audit, schedules, workflows
from tests.support.checkpoints import a_family, a_step, recorded, suspended
from tests.support.jobs import ALICE, BOB, TOPIC, a_job, claim, running
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


# -- ends of workers ------------------------------------------------------------------------------


async def test_an_operator_drains_or_stops_a_worker_and_a_viewer_cannot(seed, tab, url):
    await seed.announce(a_worker())
    assert f"/workers/{ALICE}" in (await tab.get("/workers")).body
    page = await tab.get(f"/workers/{ALICE}")
    assert "End host-1:812?" in page.text
    done = await tab.follow(await tab.post(f"/workers/{ALICE}/drain", back="/workers"))
    assert "Worker host-1:812 finishes what it runs, and ends." in done.text
    assert await seed.announce(a_worker()) == "drain"
    await tab.post(f"/workers/{ALICE}/stop", back="/workers")
    assert await seed.announce(a_worker()) == "stop"
    assert [entry.act for entry in await seed.audit_log()] == ["stop worker", "drain worker"]
    assert (await tab.get(f"/workers/{uuid4()}")).status == 404
    async with Pulse(url) as app:
        viewer = viewer_of(app)
        assert "End…" not in (await viewer.get("/workers")).text
        assert (await viewer.get(f"/workers/{ALICE}")).status == 403


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
    assert f"{TOPIC} Pause 3 " in topics
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
    assert page.body.count(EVIL_SHOWN) == 5


# -- the audit log --------------------------------------------------------------------------------


async def test_an_empty_log_says_what_will_be_in_it(tab):
    assert "No changes yet" in (await tab.get("/audit")).text


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


async def test_the_log_is_read_page_by_page_also_within_one_instant(store, tab, monkeypatch):
    monkeypatch.setattr(audit, "PAGE_SIZE", 2)
    for number in range(3):
        [job] = jobs = [a_job()]
        await store.submit(jobs)
        await store.cancel([job.id], by=Operator(f"actor-{number}"))
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


# -- schedules ------------------------------------------------------------------------------------


@pytest.fixture
async def app(seed, url):
    app = Pulse(url, name="shop")
    yield app
    await app.aclose()


@pytest.fixture
def admin(app):
    return Tab(dashboard(app, access=Local(Role.ADMIN)))


def viewer_of(app, role=Role.VIEWER):
    return Tab(dashboard(app, access=Delegated(lambda _: Visitor("ada", role))))


async def test_no_schedule_says_what_to_type(admin):
    assert "pulsed schedules add report" in (await admin.get("/schedules")).text


async def test_schedules_of_all_apps_say_when_they_run_and_what_they_did(seed, app, admin):
    await app.schedules.aput("report", "send", cron="0 9 * * MON-FRI", tz="Europe/Berlin")
    await app.schedules.of("other").aput("ping", "send", every=60)
    job = await app.schedules.arun_now("report")
    page = await admin.get("/schedules")
    assert "report app shop ● active" in page.text
    assert "ping app other ● active" in page.text
    assert "Europe/Berlin" in page.text
    assert f'class="pending" href="/jobs/{job.id}"' in page.body
    one = await admin.get("/schedules/ping?app=other")
    assert "not fired yet" in one.text
    assert "in 60 s" in one.text
    assert (await admin.get("/schedules/ping")).status == 404


async def test_an_overdue_schedule_says_for_how_long_and_why(seed, app, admin, backend):
    await app.schedules.aput("late", "send", every=60)
    earlier = {"sqlite": "600000000", "postgres": "interval '10 minutes'"}[backend.engine]
    backend.execute(f"UPDATE pulse_schedules SET next_run_at = next_run_at - {earlier}")
    text = (await admin.get("/schedules")).text
    assert "overdue for 9 min: no worker is alive to fire it" in text
    await seed.announce(a_worker())
    assert "--no-schedules" in (await admin.get("/schedules/late")).text


async def test_schedules_are_listed_page_by_page(app, admin, monkeypatch):
    monkeypatch.setattr(schedules, "PAGE_SIZE", 2)
    for name in "abc":
        await app.schedules.aput(f"schedule-{name}", "send", every=60)
    first = await admin.get("/schedules")
    assert [f"schedule-{name}" in first.text for name in "abc"] == [True, True, False]
    [more] = [p.split('"')[0] for p in first.body.split('href="')[1:] if "after=" in p]
    rest = await admin.get(more.replace("&amp;", "&"))
    assert [f"schedule-{name}" in rest.text for name in "abc"] == [False, False, True]


async def test_a_schedule_is_run_paused_resumed_edited_and_deleted(app, admin):
    await app.schedules.of("other").aput("a/b", "send", every=60, payload={"to": "x"})
    at, back = "/schedules/a%2Fb", "/schedules/a%2Fb?app=other"

    async def act(name, **fields):
        return await admin.follow(
            await admin.post(f"{at}/{name}", app="other", back=back, **fields)
        )

    assert "Enqueued job" in (await act("run-now")).text
    assert "◐ paused" in (await act("pause")).text
    assert "● active" in (await act("resume")).text
    shown = {"every": "60", "catch_up": "one", "overlap": "allow", "queue": "default"}
    shown |= {"priority": "0"}
    assert "Nothing was changed." in (await act("edit", **shown)).text
    changed = shown | {"every": "5m", "queue": "mail", "tags": "eu, vip"}
    assert "is changed: every, queue, tags." in (await act("edit", **changed)).text
    spec = (await app.schedules.of("other").aget("a/b")).spec
    assert (spec.every, spec.queue, spec.tags) == (300_000_000, "mail", ("eu", "vip"))
    assert spec.payload == '{"to":"x"}'
    payload = '{\r\n  "to": "y",\r\n  "n": 12345678901234567890123,\r\n  "token": "••••••"\r\n}'
    await app.schedules.of("other").aedit("a/b", payload={"to": "x", "token": "secret"})
    typed = {"payload": payload, "headers": '{"team": "ops"}'}
    assert "is changed: payload, headers." in (await act("edit", **typed)).text
    spec = (await app.schedules.of("other").aget("a/b")).spec
    assert spec.payload == '{"to":"y","n":12345678901234567890123,"token":"secret"}'
    assert spec.headers == {"team": "ops"}
    assert "is changed: headers." in (await act("edit", headers="")).text
    assert "Tick the box" in (await act("delete")).text
    assert "is deleted" in (await act("delete", sure="yes")).text
    assert await app.schedules.of("other").alist() == []
    acts = [entry.act for entry in await app.audit.alist()]
    assert acts[0] == "delete schedule"


@pytest.mark.parametrize(
    "field, text, says",
    [
        ("cron", "0 9 * *", "cron"),
        ("tz", "Europe/Nowhere", "Europe/Nowhere"),
        ("priority", "high", "priority must be a whole number"),
        ("start", "soon", "start must be a time such as"),
        ("jitter", "long", "jitter must be a time such as"),
        ("limit", "5", "limit= bounds"),
        ("queue", "", "queue must not be empty"),
        ("payload", "{nonsense", "payload: Line 1, column 2"),
        ("payload", "[1]", "payload: A payload is an object"),
        ("headers", "[1]", "headers"),
    ],
)
async def test_a_wrong_value_is_refused_at_its_field_and_stays_there(app, admin, field, text, says):
    await app.schedules.aput("report", "send", cron="0 9 * * *")
    shown = {"cron": "0 9 * * *", "tz": "UTC", "catch_up": "one", "overlap": "allow"}
    shown |= {"queue": "default", "priority": "0", field: text}
    page = await admin.post("/schedules/report/edit", back="/schedules/report", **shown)
    assert page.status == 400
    assert says in page.text
    assert re.search(f'name="{field}" [^>]*aria-invalid="true"', page.body)
    shown_again = (
        f'name="{field}" value="{text}"' in page.body or f">{text}</textarea>" in page.body
    )
    assert shown_again
    assert (await app.schedules.aget("report")).spec.cron == "0 9 * * *"


async def test_a_viewer_sees_no_acts_and_no_payload_of_a_schedule(app):
    await app.schedules.aput("report", "send", every=60, payload={"to": "ada@example.com"})
    page = await viewer_of(app).get("/schedules/report")
    assert "Run now" not in page.text
    assert "Delete" not in page.text
    assert "ada@example.com" not in page.text
    operator = await viewer_of(app, Role.OPERATOR).get("/schedules/report")
    assert "Run now" in operator.text
    assert "ada@example.com" in operator.text
    assert "Delete" not in operator.text


async def test_who_may_not_see_a_payload_cannot_edit_it(app):
    await app.schedules.aput("report", "send", every=60, payload={"to": "ada@example.com"})
    hidden = Visitor("eve", Role.ADMIN, sees_payloads=False)
    tab = Tab(dashboard(app, access=Delegated(lambda _: hidden)))
    assert 'name="payload"' not in (await tab.get("/schedules/report")).body
    await tab.post("/schedules/report/edit", payload="{}", queue="mail")
    spec = (await app.schedules.aget("report")).spec
    assert (spec.payload, spec.queue) == ('{"to":"ada@example.com"}', "mail")


async def test_names_and_errors_of_schedules_are_text(app, admin, backend):
    await app.schedules.of(EVIL).aput(EVIL, EVIL, every=60, queue=EVIL, tags=[EVIL])
    backend.execute(f"UPDATE pulse_schedules SET state = 'ERROR', error = '{EVIL}'")
    page = await admin.get("/schedules")
    assert EVIL not in page.body
    assert f"{EVIL} app {EVIL} {EVIL} ▲ error" in page.text
    [link] = [p.split('"')[0] for p in page.body.split('href="')[1:] if "/schedules/%" in p]
    one = await admin.get(link.replace("&amp;", "&"))
    assert one.status == 200
    assert EVIL not in one.body
    assert "None until the error is fixed" in one.text


async def test_a_schedule_that_cannot_be_read_is_shown_and_can_be_deleted(app, admin, backend):
    await app.schedules.aput("broken", "send", every=60)
    backend.execute("""UPDATE pulse_schedules SET spec = '{"topic": 1}'""")
    assert "its definition cannot be read" in (await admin.get("/schedules")).text
    one = await admin.get("/schedules/broken")
    assert one.status == 200
    assert "Delete schedule" in one.text


# -- workflows ------------------------------------------------------------------------------------


async def test_no_workflow_says_what_would_be_one(tab):
    assert "No workflow is in flight" in (await tab.get("/workflows")).text


async def test_waiting_workflows_are_grouped_by_what_they_wait_for(seed, tab):
    sleeper = await running(seed, topic="sleeper")
    until = await seed.now() + timedelta(hours=1)
    await suspended(seed, sleeper, StepKind.SLEEP, until=until)
    waiter = await running(seed, topic=EVIL)
    await suspended(seed, waiter, StepKind.SIGNAL, key=EVIL)
    parent, _ = await a_family(seed, 2, parent={"topic": "parent"})
    await suspended(seed, parent, StepKind.FAN_OUT)
    page = await tab.get("/workflows")
    assert "Sleeping 1" in page.text
    assert "Waiting for a signal 1" in page.text
    assert f"signal {EVIL}" in page.text
    assert EVIL not in page.body
    assert "Waiting for children 1" in page.text
    assert f"/jobs?q=parent%3A{parent.job_id}" in page.body
    assert "no deadline" in page.text


async def test_running_workflows_are_listed_and_jobs_without_steps_are_not(seed, tab):
    run = await running(seed)
    await running(seed, BOB)
    await recorded(seed, run, a_step())
    page = await tab.get("/workflows")
    assert f"{TOPIC} {str(run.job_id)[-12:]} runs now" in page.text
    assert page.body.count("data-row") == 1


async def test_workflows_are_listed_page_by_page(seed, tab, monkeypatch):
    monkeypatch.setattr(workflows, "PAGE_SIZE", 1)
    for number in range(2):
        run = await running(seed, topic=f"flow-{number}")
        await suspended(seed, run, StepKind.SIGNAL, key="go")
    first = await tab.get("/workflows")
    assert ["flow-1" in first.text, "flow-0" in first.text] == [True, False]
    [older] = [p.split('"')[0] for p in first.body.split('href="')[1:] if "before=" in p]
    assert "flow-0" in (await tab.get(older)).text
    assert (await tab.get("/workflows?before=nonsense")).status == 400


# -- the system -----------------------------------------------------------------------------------


async def test_the_system_page_shows_the_database_and_the_findings_the_worst_first(
    seed, tab, backend
):
    await seed.submit([a_job(topic=EVIL, queue=EVIL)])
    page = await tab.get("/system")
    assert {"sqlite": "SQLite 3", "postgres": "PostgreSQL 1"}[backend.engine] in page.text
    assert "schema version" in page.text
    assert re.search(r"size \d[\d.]* .?B", page.text)
    assert "none is alive; jobs wait" in page.text
    assert page.text.index("Needs a look") < page.text.index("Well")
    assert EVIL not in page.body
    if backend.engine == "postgres":
        table = r"pulse_jobs \d[\d.]* .?B, indexes \d[\d.]* .?B, about [\d,]+ rows, [\d,]+ dead, "
        assert re.search(table, page.text)


async def test_the_findings_stand_for_half_a_minute(seed, tab):
    assert "none is alive" in (await tab.get("/system")).text
    await seed.announce(a_worker())
    assert "none is alive" in (await tab.get("/system")).text


async def test_the_overview_warns_of_overdue_schedules(seed, app, admin, backend):
    await app.schedules.aput("late", "send", every=60)
    earlier = {"sqlite": "600000000", "postgres": "interval '10 minutes'"}[backend.engine]
    backend.execute(f"UPDATE pulse_schedules SET next_run_at = next_run_at - {earlier}")
    assert (
        "Overdue schedules: 1 due, and no worker fires them: 'late' of 'shop'"
        in (await admin.get("/")).text
    )
