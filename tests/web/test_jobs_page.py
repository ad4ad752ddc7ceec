"""The list of jobs: what it shows, how it is searched and paged, and what it lets visitors do."""

import asyncio
import html
import re
from datetime import timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest

from pulsed import Pulse
from pulsed.model.audit import Operator
from pulsed.model.bulk import CANCEL
from pulsed.model.control import ControlScope, Numbers
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, JobRow, PayloadField, Status, WorkerInfo
from pulsed.model.outcome import Failed, Succeeded
from pulsed.store.sql.bulk import HOLD
from pulsed.store.verbs import bulk as verbs
from pulsed.store.verbs import search
from pulsed.web import Delegated, Local, Redaction, Role, Visitor, dashboard
from pulsed.web.reasons import progress_text, reason
from tests.support.jobs import ALICE, a_job, one_attempt, row, running, settle, submitted
from tests.support.visits import Answer, Tab


@pytest.fixture
def app(backend: Any, store: Any) -> Pulse:
    """An app on the store of the test, whichever that is."""
    return Pulse.over(store, backend.app_url)


@pytest.fixture
def tab(app: Pulse) -> Tab:
    return Tab(dashboard(app, access=Local(Role.ADMIN)))


def tab_of(app: Pulse, role: Role, **options: Any) -> Tab:
    return Tab(dashboard(app, access=Delegated(lambda _: Visitor("ada", role, **options))))


def ids_in(answer: Answer) -> list[UUID]:
    """Return the jobs in the list, in its order."""
    return [UUID(each) for each in re.findall(r'data-row="([^"]+)"', answer.body)]


def link(answer: Answer, label: str) -> str:
    """Return where a link of the page leads."""
    found = re.search(rf'href="([^"]+)"[^>]*>{label}', answer.body)
    assert found, f"there is no link {label!r}"
    return html.unescape(found[1])


def refresh_of(answer: Answer) -> str:
    (address,) = re.findall(r'data-refresh="([^"]+)"', answer.body)
    return html.unescape(address)


def jobs(q: str) -> str:
    return f"/jobs?q={quote(q)}"


async def a_dead_job(store: Any, error: str = "boom", **options: Any) -> UUID:
    run = await running(store, **one_attempt(**options))
    await settle(store, run, Failed(error))
    return run.job_id


# -- search, chips, pages -------------------------------------------------------------------------


async def test_a_search_finds_jobs_and_says_what_it_did_not_understand(tab, store):
    seven = await submitted(store, topic="send_email", payload='{"user": 7}')
    await submitted(store, topic="send_email", payload='{"user": 8}')
    page = await tab.get(jobs("topic:send* payload.user:7"))
    assert ids_in(page) == [seven]
    page = await tab.get(jobs("topic:send* colour:red"))
    assert (len(ids_in(page)), "colour: is no qualifier" in page.text) == (2, True)


async def test_chips_count_the_search_by_status_and_keep_it(tab, store):
    await a_dead_job(store, topic="send")
    await submitted(store, topic="send")
    await submitted(store, topic="send", delay=60)
    await submitted(store, topic="other")
    page = await tab.get(jobs("topic:send status:dead"))
    assert "All 3 Dead 1 Retrying 0 Running 0 Waiting 0 Due 1 Later 1 Done 0" in page.text
    later = await tab.get(link(page, "Later"))
    assert [(await row(store, each)).next_run_at for each in ids_in(later)] != []
    assert "q=status%3Alater+topic%3Asend" in link(page, "Later")


async def test_counts_beyond_the_bound_are_lower_bounds(tab, store, monkeypatch):
    if not store.is_remote:
        monkeypatch.setattr(search, "SEARCHED", 3)
        await store.submit([a_job() for _ in range(5)])
        assert "Due ≥ 3" in (await tab.get("/jobs")).text


async def test_pages_go_to_older_jobs_and_back_by_key(tab, store):
    await store.submit([a_job() for _ in range(60)])
    first = await tab.get("/jobs?size=25")
    second = await tab.get(link(first, "Older"))
    third = await tab.get(link(second, "Older"))
    found = [ids_in(page) for page in (first, second, third)]
    assert [len(each) for each in found] == [25, 25, 10]
    together = [job_id for page in found for job_id in page]
    assert together == sorted(together, reverse=True)
    assert "Older" not in third.text
    again = await tab.get(link(third, "Newer"))
    assert ids_in(again) == found[1]
    assert ids_in(await tab.get(link(again, "Newer"))) == found[0]
    assert "Newer" not in first.text


async def test_an_empty_list_says_what_to_type(tab):
    assert "pulsed enqueue module:app" in (await tab.get("/jobs")).text
    assert "No job matches" in (await tab.get(jobs("topic:none"))).text


@pytest.mark.parametrize("query", ["before=x", "size=9999", "ids=x.y", "trail=x.first.y", "next=x"])
async def test_an_address_that_makes_no_sense_breaks_nothing(tab, store, query):
    await submitted(store)
    assert (await tab.get(f"/jobs?{query}")).status in (200, 400)


# -- live -----------------------------------------------------------------------------------------


async def test_rows_in_view_change_in_place_and_new_ones_are_counted(tab, store):
    first, second = await submitted(store), await submitted(store)
    page = await tab.get("/jobs")
    assert ids_in(page) == [second, first]
    await submitted(store)
    await store.cancel([second])
    await store.delete([first])
    again = await tab.get(refresh_of(page), **{"x-refresh": "1"})
    assert ids_in(again) == [second, first]
    assert refresh_of(again) == refresh_of(page)
    assert "CANCELLED" in again.text
    assert "deleted" in again.text
    assert "1 new job" in again.text
    assert len(ids_in(await tab.get(link(again, "1 new job")))) == 2


# -- acts -----------------------------------------------------------------------------------------


async def test_selected_jobs_are_retried_and_the_filter_survives(tab, store):
    dead = [str(await a_dead_job(store)) for _ in range(2)]
    waiting = str(await submitted(store))
    answer = await tab.post("/jobs/retry", id=[*dead, waiting], back=jobs("status:dead"))
    assert answer.location == jobs("status:dead")
    text = (await tab.follow(answer)).text
    assert "Retried: 2 jobs. 1 job could not be: only dead and cancelled jobs" in text
    entry = (await store.audit_log(limit=1))[0]
    assert (entry.act, entry.affected) == ("retry jobs", 2)
    assert "local (dashboard)" in (entry.actor, entry.claimed)


async def test_selected_jobs_are_cancelled_and_run_now(tab, store, clock):
    first, second = await submitted(store, delay=60), await submitted(store, delay=60)
    await tab.post("/jobs/run-now", id=[str(first)])
    await tab.post("/jobs/cancel", id=[str(second)])
    assert (await row(store, first)).next_run_at == clock.now
    assert (await row(store, second)).status is Status.CANCELLED


async def test_a_delete_needs_a_second_click(tab, store):
    job_id = await submitted(store)
    page = await tab.post("/jobs/delete", id=[str(job_id)], back=jobs("topic:email"))
    assert "Delete 1 job?" in page.text
    assert job_id in await store.get([job_id])
    answer = await tab.post("/jobs/delete", id=[str(job_id)], sure="1", back=jobs("topic:email"))
    assert answer.location == jobs("topic:email")
    assert await store.get([job_id]) == {}


async def test_an_act_without_a_selection_says_so(tab):
    answer = await tab.post("/jobs/retry", back="/jobs")
    assert "Select jobs first." in (await tab.follow(answer)).text


async def test_viewers_cannot_act_and_operators_cannot_delete(app, store):
    job_id = str(await submitted(store))
    viewer, operator = tab_of(app, Role.VIEWER), tab_of(app, Role.OPERATOR)
    assert "checkbox" not in (await viewer.get("/jobs")).body
    assert "Delete" not in (await operator.get(jobs("topic:email"))).text
    assert (await viewer.post("/jobs/cancel", id=[job_id])).status == 403
    assert (await operator.post("/jobs/delete", id=[job_id], sure="1")).status == 403
    assert (await operator.post("/bulk/delete", q="topic:email")).status == 403
    assert (await operator.get("/bulk?act=delete&q=topic:email")).status == 400


# -- all that match -------------------------------------------------------------------------------


def form_of(page: Answer) -> dict[str, str]:
    """Return the hidden fields of the confirmation."""
    form = page.body.split('class="confirm"')[1].split("</form>")[0]
    fields = re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in fields if name != "csrf"}


async def ended(tab: Tab, answer: Answer) -> Answer:
    """Wait for a bulk act to end."""
    while True:
        page = await tab.follow(answer)
        if "In progress" not in page.text:
            return page
        await asyncio.sleep(0.01)


async def test_all_that_match_are_counted_confirmed_and_retried(tab, store, clock):
    dead = [await a_dead_job(store, topic="send") for _ in range(3)]
    other = await a_dead_job(store, topic="charge")
    clock.advance(1)
    page = await tab.get(f"/bulk?act=retry&q={quote('topic:send*')}")
    assert "Retry 3 jobs?" in page.text
    assert "DEAD LETTERED or CANCELLED jobs of topics that begin with send" in page.text
    late = await a_dead_job(store, topic="send")
    done = await ended(tab, await tab.post("/bulk/retry", **form_of(page)))
    assert "Done: retry" in done.text
    assert "3 jobs retried" in done.text
    rows = await store.get([*dead, other, late])
    assert {rows[each].status for each in dead} == {Status.PENDING}
    assert rows[other].status is rows[late].status is Status.DEAD_LETTERED
    entry = (await store.audit_log(limit=1))[0]
    assert (entry.act, entry.affected) == ("retry jobs", 3)
    assert "topic_prefix=send" in entry.detail
    assert "topic%3Asend%2A" in link(done, "Back to the list")


async def test_a_delete_of_all_needs_its_number_typed(tab, store, clock):
    await store.submit([a_job(topic="send") for _ in range(3)])
    clock.advance(1)
    fields = form_of(await tab.get("/bulk?act=delete&q=topic:send"))
    answer = await tab.post("/bulk/delete", **fields, typed="2")
    assert "Type 3 to confirm. Nothing was deleted." in (await tab.follow(answer)).text
    assert sum((await store.counts(search_filter("send"))).values()) == 3
    await ended(tab, await tab.post("/bulk/delete", **fields, typed="3"))
    assert sum((await store.counts(search_filter("send"))).values()) == 0


async def test_an_operation_goes_on_in_another_process(app, tab, store, clock, monkeypatch):
    """The dashboard that started it is gone; one that shows it later goes on with it."""
    monkeypatch.setattr(verbs, "BATCH", 1)
    await store.submit([a_job(topic="send") for _ in range(3)])
    where = JobFilter(topic="send", status=(Status.PENDING,))
    begun = await store.bulk.start(new_job_id(), CANCEL, where, by=Operator("ada"))
    await store.bulk.advance(uuid4(), begun.id)
    clock.advance(HOLD)
    listed = await tab.get("/operations")
    assert "RUNNING" in listed.text
    assert "PENDING jobs of the topic send" in listed.text
    page = await tab.get(f"/bulk/{begun.id}")
    while "In progress" in page.text:
        await asyncio.sleep(0.01)
        page = await tab.get(f"/bulk/{begun.id}")
    assert "Done: cancel" in page.text
    assert "3 jobs cancelled" in page.text
    assert "ada" in page.text


async def test_hidden_values_of_payloads_are_not_shown_in_operations(tab, store):
    field = PayloadField(("user", "password"), "s3cret")
    where = JobFilter(topic="send", status=(Status.PENDING,), payload=(field,))
    begun = await store.bulk.start(new_job_id(), CANCEL, where, by=Operator("ada"))
    for path in ("/operations", f"/bulk/{begun.id}"):
        page = await tab.get(path)
        assert "with hidden values" in page.text
        assert "s3cret" not in page.body


async def test_an_operation_is_stopped(tab, store):
    where = JobFilter(topic="send", status=(Status.PENDING,))
    begun = await store.bulk.start(new_job_id(), CANCEL, where, by=Operator("ada"))
    answer = await tab.post(f"/bulk/{begun.id}/stop")
    assert "Stopped: cancel" in (await tab.follow(answer)).text
    assert (await tab.get(f"/bulk/{new_job_id()}")).status == 404


async def test_skipped_jobs_are_shown_with_the_holders_of_their_keys(tab, store, clock):
    job_id = await a_dead_job(store, topic="send", key="k")
    holder = await submitted(store, topic="send", key="k")
    clock.advance(1)
    page = await tab.get("/bulk?act=retry&q=topic:send")
    done = await ended(tab, await tab.post("/bulk/retry", **form_of(page)))
    assert "0 jobs retried, 1 skipped" in done.text
    assert f"/jobs/{job_id}" in done.body
    assert f"/jobs/{holder}" in done.body
    assert "holds its key" in done.text


@pytest.mark.parametrize(
    "act, to, wrong",
    [("reprioritise", "7", "x"), ("move", "mail", "a,b"), ("reschedule", "2h", "soon")],
)
async def test_all_that_match_get_another_time_priority_or_queue(tab, store, clock, act, to, wrong):
    job_id = await submitted(store, topic="send")
    clock.advance(1)
    fields = form_of(await tab.get(f"/bulk?act={act}&q=topic:send"))
    await tab.post(f"/bulk/{act}", **fields, to=wrong)
    assert await store.bulk.list(limit=5) == []
    await ended(tab, await tab.post(f"/bulk/{act}", **fields, to=to))
    row = (await store.get([job_id]))[job_id]
    changed = {
        "reprioritise": row.priority == 7,
        "move": row.queue == "mail",
        "reschedule": row.next_run_at == clock.now + timedelta(hours=2),
    }
    assert changed[act]


def search_filter(topic: str) -> Any:
    return JobFilter(topic=topic)


@pytest.mark.parametrize(
    "q, says",
    [
        ("", "Without a search every job would be"),
        ("colour:red status:dead", "The search is not clear, so nothing is done"),
        ("status:running", "cannot be retried"),
    ],
)
async def test_a_search_that_could_hit_others_is_refused(tab, q, says):
    page = await tab.get(f"/bulk?act=retry&q={quote(q)}")
    assert (page.status, says in page.text) == (400, True)


# -- completion -----------------------------------------------------------------------------------


async def test_completion_offers_what_there_is(tab, store):
    await submitted(store, topic="send_email", queue="mail", tags=("campaign 7",))
    await a_dead_job(store, "TimeoutError: 30 s")
    await submitted(store, key="invoice 7", limit_key="partner,acme")
    await store.controls.declare(ControlScope.LIMIT, {"openai": Numbers(running=5)})
    for text, offered in {
        "topic:sen": "topic:send_email",
        "queue:m": "queue:mail",
        "tag:": 'tag:"campaign 7"',
        "error:ti": "error:TimeoutError",
        "key:inv": 'key:"invoice 7"',
        "limit:op": "limit:openai",
        "limit:acme": "limit:partner,acme",
        "outcome:exp": "outcome:expired",
    }.items():
        answer = await tab.get(f"/jobs/complete?q={quote(text)}")
        assert offered.replace('"', '\\"') in answer.body


# -- what is hidden, and what is text -------------------------------------------------------------


async def test_what_a_visitor_may_not_see_cannot_be_searched(app, store):
    await submitted(store, payload='{"user": 7, "password": "x"}')
    page = await tab_of(app, Role.VIEWER).get(jobs("payload.user:7"))
    assert "You may not see payloads" in page.text
    page = await tab_of(app, Role.OPERATOR).get(jobs("payload.password:x"))
    assert "password is hidden in payloads" in page.text
    assert (
        await tab_of(app, Role.OPERATOR).get("/bulk?act=cancel&q=payload.token:x")
    ).status == 400


XSS = '"><img src=x onerror=alert(1)>'


async def test_what_users_write_is_shown_as_text(tab, store):
    await a_dead_job(store, XSS, topic=XSS, tags=(XSS,), headers={XSS: XSS})
    await submitted(store, topic=XSS, queue=XSS, payload='{"a": "<script>alert(1)</script>"}')
    for path in (
        "/jobs",
        jobs(f"topic:{XSS}"),
        jobs(XSS),
        f"/bulk?act=cancel&q={quote('queue:' + XSS)}",
    ):
        body = (await tab.get(path)).body
        assert "<img" not in body
        assert "<script>alert" not in body
    assert XSS in (await tab.get("/jobs")).text


# -- the line below a job -------------------------------------------------------------------------


async def test_a_list_of_jobs_says_why_each_does_not_run(tab, store):
    await submitted(store, queue="encode")
    run = await running(store)
    await store.set_progress(run.lease, '{"percent": 37, "note": "tile 12 of 32"}')
    await a_dead_job(store, "HTTPError: 503\nmore")
    retrying = await running(store, max_attempts=5)
    await settle(store, retrying, Failed("charge took 30 s"))
    done = await running(store)
    await settle(store, done, Succeeded())
    text = (await tab.get("/jobs")).text
    assert "no worker is alive" in text
    assert "37 % · tile 12 of 32" in text
    assert "HTTPError: 503 after 1 attempt" in text
    assert "charge took 30 s; next attempt in" in text


async def test_a_queue_that_no_worker_takes_from_is_named(store, clock):
    worker = WorkerInfo(
        id=ALICE, host="h", pid=1, queues=("default",), topics=("email",), slots=1, running=1,
        last_beat=clock.now,
    )  # fmt: skip
    job: JobRow = await row(store, await submitted(store, queue="encode"))
    assert reason(job, [worker], clock.now) == "no live worker takes from the queue 'encode'"
    job = await row(store, await submitted(store))
    assert reason(job, [worker], clock.now) == "all 1 slots of the workers for it are taken"


@pytest.mark.parametrize(
    "progress, text",
    [
        ("37", "37 %"),
        ('{"percent": 37.4, "note": "x"}', "37 % · x"),
        ('{"done": 3, "total": 7}', "43 %"),
        ('"half"', "half"),
        ("[1]", "[1]"),
        ("null", ""),
        ("true", ""),
        (None, ""),
        ('{"token": "x"}', "token ••••••"),
    ],
)
def test_progress_in_few_words(progress, text):
    assert progress_text(progress, Redaction()) == text
    assert "x" not in progress_text(progress, None)
