"""The page of one job, on every store: what it shows to whom, and what its acts do."""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from pulsed import Backoff, CodecContext, Context, Job, Pulse, Status
from pulsed.model.outcome import Succeeded
from pulsed.model.step import StepKind
from pulsed.web import Basic, Local, Redaction, Role, dashboard
from pulsed.web.pages import job as job_page
from pulsed.web.runs import Scale
from tests.support.apps import working
from tests.support.backends import only_sqlite
from tests.support.checkpoints import a_family, suspended
from tests.support.jobs import settle
from tests.support.visits import Tab
from tests.support.workers import until

sqlite = only_sqlite

HOSTILE = "<script>alert('x')</script>\"'&amp;<img src=x onerror=alert(1)>"


class Shop:
    """An app whose jobs end in every way."""

    def __init__(self, app: Pulse) -> None:
        self.app = app

        @app.job(max_attempts=2, backoff=Backoff.fixed(0.0))
        async def pay(user: int, amount: float = 1.0, note: str = "", password: str = "") -> int:
            if user < 0:
                raise ValueError(f"no such user: {note}")
            return user

        @app.job
        async def ship(item: str) -> str:
            return item

        @app.job
        async def order(ctx: Context, customer: str) -> str:
            await ctx.step(charge, customer, name=f"charge {HOSTILE}")
            await ctx.fan_out([ship.bind("book"), ship.bind(HOSTILE)])
            approved = await ctx.wait_signal("approved")
            return f"{customer}: {approved}"

        async def charge(customer: str) -> dict[str, str]:
            return {"receipt": customer, "api_key": "k-1"}

        self.pay, self.ship, self.order = pay, ship, order


@pytest.fixture
async def shop(app):
    yield Shop(app)
    await app.aclose()


@pytest.fixture
def tab(shop) -> Tab:
    return Tab(dashboard(shop.app, access=Local(Role.ADMIN)))


async def finish(shop: Shop, *jobs: Job[Any]) -> None:
    async with working(shop.app):
        for job in jobs:
            await until(partial(is_done, job))


async def is_done(job: Job[Any]) -> bool:
    return (await job.arefresh()).is_done


async def test_a_job_is_shown_with_every_digit_of_its_numbers(shop, tab):
    job = await shop.pay.aenqueue(12345678901234567890123, amount=0.1, note="hi")
    page = await tab.get(f"/jobs/{job.id}")
    assert page.status == 200
    assert '"user": 12345678901234567890123' in page.text
    assert f" {job.id} " in page.text
    assert "PENDING" in page.text
    assert "Why is it not running?" in page.text
    assert "No worker is alive" in page.text
    assert "<code>pulsed worker module:app</code>" in page.body


async def test_a_job_that_expired_says_that_it_was_never_started(shop, tab):
    job = await shop.pay.using(expires=datetime(2001, 1, 1, tzinfo=UTC)).aenqueue(1)
    await shop.app.store.expire()
    page = await tab.get(f"/jobs/{job.id}")
    assert "It was never started. Expired at 2001-01-01 00:00:00 UTC before" in page.text
    assert str(job.id) in (await tab.get("/jobs?q=outcome:expired")).body
    assert str(job.id) not in (await tab.get("/jobs?q=outcome:failed")).body


class Hex:
    """A codec that anybody could break."""

    def encode(self, text: str, _: CodecContext) -> str:
        return text.encode().hex()

    def decode(self, text: str, _: CodecContext) -> str:
        return bytes.fromhex(text).decode()


async def test_what_is_encrypted_is_shown_where_the_codec_is_and_nowhere_else(url, tab):
    async with Pulse(url, codec=Hex()) as app:
        job = await Shop(app).pay.aenqueue(-1, note="from a codec")
        async with working(app):
            await until(partial(is_done, job))
        page = await Tab(dashboard(app, access=Local(Role.ADMIN))).get(f"/jobs/{job.id}")
        assert page.text.count("from a codec") > 2
    page = await tab.get(f"/jobs/{job.id}")
    assert (page.status, "from a codec" in page.text) == (200, False)
    assert "encrypted: the app that has its codec can show it" in page.text
    assert "edit it where the app has its codec" in (await tab.get(f"/jobs/{job.id}/edit")).text


async def test_an_unknown_job_is_not_found(tab):
    assert (await tab.get("/jobs/0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69")).status == 404
    assert (await tab.get("/jobs/nonsense")).status == 400


async def test_a_dead_letter_shows_its_attempts_and_is_retried(shop, tab):
    job = await shop.pay.aenqueue(-1, note=HOSTILE)
    await finish(shop, job)
    page = await tab.get(f"/jobs/{job.id}")
    assert "It failed for good in attempt 2 of 2" in page.text
    assert page.text.count("Traceback (most recent call last)") == 2
    answer = await tab.post(f"/jobs/{job.id}/retry", back=f"/jobs/{job.id}")
    assert "will run again" in (await tab.follow(answer)).text
    assert (await job.arefresh()).status is Status.PENDING
    [entry] = await shop.app.store.audit_log()
    assert entry.act == "retry jobs"
    assert "local (dashboard)" in {entry.actor, entry.claimed}  # a server vouches for no name


async def test_the_newest_runs_come_first_and_earlier_ones_page_by_page(shop, tab, monkeypatch):
    monkeypatch.setattr(job_page, "RUNS", 2)
    job = await shop.pay.using(max_attempts=5).aenqueue(-1, note="x")
    await finish(shop, job)
    page, shown = await tab.get(f"/jobs/{job.id}"), []
    while True:
        shown.append(
            [int(number) for number in re.findall(r'class="number attempt">(\d)', page.body)]
        )
        following = re.search(r'href="([^"]+)">Earlier runs', page.body)
        if following is None:
            break
        page = await tab.get(following[1])
    assert shown == [[5, 4], [3, 2], [1]]


async def test_a_dead_letter_is_edited_and_retried(shop, tab):
    job = await shop.pay.aenqueue(-1, note="x", password="secret")
    await finish(shop, job)
    form = f"/jobs/{job.id}/edit"
    shown = (await tab.get(form)).text
    assert '"user": -1' in shown
    assert "secret" not in shown
    for wrong, problem in {
        "{nonsense": "Line 1, column 2",
        "[1]": "A payload is an object",
        '{"user": "x"}': "cannot take argument 'user'",
        '{"user": 1, "unknown": 2}': "has no parameter 'unknown'",
        '{"user": 1, "note": "••••••"}': "Write the values out",
        '{"user": NaN}': "NaN is no number",
    }.items():
        page = await tab.post(form, payload=wrong)
        assert (page.status, problem in page.text, wrong in page.text) == (422, True, True), page
    right = '{"user": 12345678901234567890123, "password": "••••••"}'
    answer = await tab.post(form, payload=right)
    assert "The payload is changed" in (await tab.follow(answer)).text
    await finish(shop, job)
    assert await job.aresult() == 12345678901234567890123
    assert job.payload["password"] == "secret"
    assert (await tab.post(form, payload=right)).status == 400
    assert [entry.act for entry in await shop.app.store.audit_log()] == ["edit and retry job"]


async def test_a_job_that_is_not_due_is_run_now(shop, tab):
    job = await shop.ship.using(delay=3600).aenqueue("book")
    assert "Run now" in (await tab.get(f"/jobs/{job.id}")).text
    answer = await tab.post(f"/jobs/{job.id}/run-now", back=f"/jobs/{job.id}")
    page = await tab.follow(answer)
    assert "The job is due now." in page.text
    assert "Run now" not in page.text


async def test_steps_are_a_tree_with_children_and_results(shop, tab):
    job = await shop.order.aenqueue("ada")
    async with working(shop.app):
        await until(lambda: waits_for_signal(job))
    page = await tab.get(f"/jobs/{job.id}")
    assert "It waits for the signal 'approved'" in page.text
    assert re.search(r"fan_out.*2 succeeded.*0 ship.*1 ship.*waits for this signal", page.text)
    assert '"receipt": "ada"' in page.text
    assert "k-1" not in page.body
    assert "2 children" in page.text
    assert page.body.count(f"/jobs?q=parent%3A{job.id}+status%3Asucceeded") == 2
    [child] = [job.id for job in await shop.app.jobs.alist(topic="ship", limit=1)]
    assert f"order {str(job.id)[-12:]} , fan_out" in (await tab.get(f"/jobs/{child}")).text


async def waits_for_signal(job: Job[Any]) -> bool:
    row = (await job.arefresh()).row
    return row.status is Status.WAITING and row.wait_kind == "SIGNAL"


async def test_a_signal_is_sent_with_its_value(shop, tab):
    job = await shop.order.aenqueue("ada")
    back = f"/jobs/{job.id}"
    answer = await tab.post(f"{back}/signal", name="approved", payload="{no", back=back)
    assert "is no JSON" in (await tab.follow(answer)).text
    answer = await tab.post(f"{back}/signal", name="approved", payload='{"by": "eve"}', back=back)
    assert "The signal 'approved' is sent." in (await tab.follow(answer)).text
    await finish(shop, job)
    assert await job.aresult() == "ada: {'by': 'eve'}"


async def test_a_job_is_cancelled_and_deleted_after_a_confirmation(shop, tab):
    job = await shop.ship.aenqueue("book")
    back = f"/jobs/{job.id}"
    answer = await tab.post(f"{back}/cancel", back=back)
    assert "The job is cancelled." in (await tab.follow(answer)).text
    answer = await tab.post(f"{back}/delete", back=back)
    assert "Tick the box" in (await tab.follow(answer)).text
    answer = await tab.post(f"{back}/delete", back=back, sure="yes")
    assert answer.location == "/jobs"
    assert (await tab.get(back)).status == 404


async def test_hostile_texts_are_shown_as_text(shop, tab):
    using = shop.order.using(tags=[HOSTILE], headers={"x": HOSTILE, HOSTILE: "y"})
    job = await using.aenqueue(HOSTILE)
    failing = await shop.pay.aenqueue(-1, note=HOSTILE)
    async with working(shop.app):
        await until(lambda: waits_for_signal(job))
        await until(lambda: is_done(failing))
    children = await shop.app.jobs.alist(parent=job.id)
    [child] = [each for each in children if each.result_value == HOSTILE]
    for each in (job, failing, child):
        page = await tab.get(f"/jobs/{each.id}")
        assert "onerror=alert" in page.text
        assert not re.search(r"<(script(?! src)|img)", page.body)
    bad = await tab.post(f"/jobs/{job.id}/signal", name=HOSTILE * 9, back=f"/jobs/{job.id}")
    assert not re.search(r"<(script(?! src)|img)", (await tab.follow(bad)).body)


async def test_progress_is_a_bar_with_its_note(shop, tab):
    reached = asyncio.Event()

    @shop.app.job
    async def render(ctx: Context) -> None:
        await ctx.aprogress({"percent": 40, "note": HOSTILE})
        reached.set()
        await ctx.step(asyncio.sleep, 0)
        await go_on.wait()

    go_on = asyncio.Event()
    job = await render.aenqueue()
    async with working(shop.app):
        await reached.wait()
        page = await tab.get(f"/jobs/{job.id}")
        go_on.set()
    assert '<progress max="1" value="0.4"' in page.body
    assert f"40 % {HOSTILE}" in page.text
    assert "It runs now." in page.text


async def test_long_data_is_left_to_a_page_of_its_own(shop, tab):
    job = await shop.pay.aenqueue(1, note="x" * 70_000, password="secret")
    page = await tab.get(f"/jobs/{job.id}")
    assert "too long for this page" in page.text
    assert len(page.body) < 40_000
    whole = await tab.get(f"/jobs/{job.id}/payload?download=yes")
    assert ("x" * 70_000) in whole.body
    assert "secret" not in whole.body
    assert whole.headers["content-disposition"].endswith('-payload.json"')
    assert whole.headers["content-type"].startswith("text/plain")


@pytest.fixture
def viewer(shop) -> Tab:
    access = Basic({"vera": ("pw", Role.VIEWER), "otto": ("pw", Role.OPERATOR)})
    return Tab(dashboard(shop.app, access=access), headers={"authorization": "Basic dmVyYTpwdw=="})


async def test_a_viewer_sees_no_payloads_and_no_buttons(shop, viewer):
    job = await shop.order.using(headers={"x-who": "header-1"}).aenqueue("payload-1")
    async with working(shop.app):
        await until(lambda: waits_for_signal(job))
        await job.asignal("approved", "result-1")
        await until(lambda: is_done(job))
    page = await viewer.get(f"/jobs/{job.id}")
    assert page.status == 200
    for hidden in ("payload-1", "result-1", "header-1", 'method="post"', "Delete"):
        assert hidden not in page.body, hidden
    assert page.text.count("Hidden from your role.") == 2
    for name in ("payload", "result"):
        assert (await viewer.get(f"/jobs/{job.id}/{name}")).status == 403
    assert (await viewer.post(f"/jobs/{job.id}/retry")).status == 403


async def test_the_last_items_of_a_stream_are_shown_to_those_who_see_payloads(shop, tab, viewer):
    async def talk(ctx: Context) -> None:
        for n in range(job_page.ITEMS + 1):
            await ctx.aemit({"line": f"item-{n} {HOSTILE}", "password": "secret-1"})

    job = await shop.app.job(talk).aenqueue()
    await finish(shop, job)
    page = await tab.get(f"/jobs/{job.id}")
    assert f"The last {job_page.ITEMS} of {job_page.ITEMS + 1} items." in page.text
    assert "item-1 <script>" in page.text
    assert "item-0" not in page.text
    for hidden in ("secret-1", "<script>alert"):
        assert hidden not in page.body
    assert "item-1" not in (await viewer.get(f"/jobs/{job.id}")).body


async def test_what_is_hidden_is_configured(shop):
    job = await shop.pay.aenqueue(4711, password="secret")
    tab = Tab(dashboard(shop.app, redaction=Redaction(also=["^user$"])))
    page = await tab.get(f"/jobs/{job.id}")
    assert '"user": "••••••"' in page.text
    assert '"password": "••••••"' in page.text


# -- workflows as pictures ------------------------------------------------------------------------


async def test_a_fan_out_of_any_size_is_read_with_as_many_queries(sqlite, monkeypatch):
    numbers = []
    store = sqlite.open()
    for children in (40, 200):
        parent, runs = await a_family(store, children)
        for run in runs[: children // 2]:
            await settle(store, run, Succeeded("1"))
        await suspended(store, parent, StepKind.FAN_OUT)
        verbs: list[str] = []
        perform = store.perform

        async def counted(verb, verbs=verbs, perform=perform):
            verbs.append(verb.name)
            return await perform(verb)

        monkeypatch.setattr(store, "perform", counted)
        view = await job_page.read_view(store, parent.job_id, 0, 0)
        monkeypatch.undo()
        [step] = view.tree.steps
        assert step.children is not None
        assert (step.children.total, len(step.children.shown) <= 30) == (children, True)
        numbers.append(len(verbs))
    await store.aclose()
    assert numbers[0] == numbers[1] < 60


def test_time_without_work_is_drawn_shorter_when_there_is_much_of_it():
    begin = datetime(2030, 1, 1, tzinfo=UTC)

    def at(second: float) -> datetime:
        return begin + timedelta(seconds=second)

    folded = Scale(begin, at(10_000), [(begin, at(10)), (at(50), at(60)), (at(55), at(58))])
    places = [folded.place(at(second)) for second in (0, 10, 50, 60, 10_000)]
    assert folded.is_folded
    assert places == sorted(places)
    assert (places[1], round(places[3] - places[2], 6), places[4]) == (30, 30, 100)
    assert places[2] - places[1] > 1  # a wait of 40 s stays visible beside one of hours
    for work in ([], [(begin, at(70))]):
        linear = Scale(begin, at(100), work)
        assert [linear.place(at(second)) for second in (0, 25, 100, 200)] == [0, 25, 100, 100]
