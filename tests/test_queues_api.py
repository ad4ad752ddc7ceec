"""``app.queue``, ``app.queues``, ``app.topics`` and ``pulsed queues``; what why and doctor say."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from pulsed import Pulse, Rate
from pulsed.engine.doctor.examine import examine
from pulsed.engine.held_back import why
from pulsed.engine.queues import read_queues
from pulsed.errors import ConfigError, InvalidOption
from pulsed.model.audit import Operator
from pulsed.model.control import ControlScope, Numbers
from pulsed.model.job import WorkerInfo
from pulsed.store.blocking import run_blocking
from tests.support.commands import lines_of, run
from tests.support.jobs import ALICE, EVERYTHING, TOPIC, a_job, claim, claim_one, row, submitted
from tests.support.workers import Working, a_worker, all_finished, submit_many, working

QUEUE = (ControlScope.QUEUE, "default")


async def nothing(n: int) -> None: ...


# -- declared in code -----------------------------------------------------------------------------


async def test_a_worker_declares_the_limits_of_its_queues_before_it_claims(store):
    ids = await submit_many(store, "nothing", 5)
    worker = a_worker(store, nothing)
    worker.registry.queues["default"] = Numbers(running=2)
    seen = []
    store_claim = store.claim

    async def watched(*args):
        seen.append((await store.controls.get(*QUEUE)).numbers.running)
        return await store_claim(*args)

    store.claim = watched
    running = Working(worker)
    await all_finished(store, ids)
    await running.stop()
    assert set(seen) == {2}


def test_declaring_a_queue_checks_its_numbers():
    app = Pulse("sqlite:///nowhere.db")
    app.queue("encode", running=4, rate=Rate(60, per=60), age=timedelta(minutes=1))
    assert app.registry.queues == {"encode": Numbers(running=4, rate=Rate(60, per=60.0), age=60.0)}
    with pytest.raises(ConfigError, match="declared twice"):
        app.queue("encode")
    with pytest.raises(InvalidOption, match="running must be between 1"):
        app.queue("mail", running=0)
    with pytest.raises(InvalidOption, match="commas"):
        app.queue("a,b")


# -- app.queues and app.topics --------------------------------------------------------------------


def test_queues_are_paused_resumed_and_limited_by_the_app(app):
    assert app.queues.pause("encode").paused
    found = app.queues.limit("encode", running=4, rate=Rate(60, per=60, burst=10))
    found = app.queues.limit("encode", age=timedelta(seconds=30), running=None)
    assert found.numbers == Numbers(rate=Rate(60, per=60, burst=10), age=30.0)
    (state,) = [each for each in app.queues.list() if each.name == "encode"]
    assert (state.paused, state.due, state.running, state.takers) == (True, 0, 0, ())
    assert state.numbers == found.numbers
    assert app.queues.get("encode").paused_by
    assert not app.queues.resume("encode").paused
    assert app.queues.clear("encode").is_neutral
    acts = [entry.act for entry in reversed(app.audit.list())]
    assert acts == ["pause queue", "limit queue", "limit queue", "resume queue", "clear queue"]


def test_limits_without_numbers_or_with_wrong_ones_change_nothing(app):
    for wrong in ({}, {"running": 0}, {"age": -1}, {"rate": 5}, {"running": True}):
        with pytest.raises(InvalidOption):
            app.queues.limit("encode", **wrong)
    for name in ("", "a,b", "x" * 300):
        with pytest.raises(InvalidOption):
            app.queues.pause(name)
    assert app.queues.list() == []


def test_topics_are_paused_and_resumed_by_the_app(app):
    app.topics.pause("email")
    assert [control.name for control in app.topics.paused()] == ["email"]
    app.topics.resume("email")
    assert app.topics.paused() == []


async def test_the_async_twins_do_the_same(app):
    async with app:
        await app.queues.apause("encode")
        await app.queues.alimit("encode", running=1)
        assert (await app.queues.aget("encode")).numbers.running == 1
        assert [each.name for each in await app.queues.alist()] == ["encode"]
        await app.queues.aresume("encode")
        await app.queues.aclear("encode")
        await app.topics.apause("email")
        assert len(await app.topics.apaused()) == 1
        await app.topics.aresume("email")


async def test_a_list_says_who_takes_from_a_queue_and_when_its_rate_permits_more(store, clock):
    await store.submit([a_job() for _ in range(3)])
    await store.controls.override(*QUEUE, Numbers(rate=Rate(1, per=10)))
    await claim_one(store)
    worker = WorkerInfo(id=ALICE, host="h", pid=1, queues=("default",), topics=(), slots=1)
    await store.announce(worker)
    clock.advance(4)
    (state,) = await read_queues(store, {})
    assert (state.due, state.running, state.oldest) == (2, 1, 4.0)
    assert [taker.id for taker in state.takers] == [ALICE]
    assert state.next_start == clock.after(6)


# -- workers react at once ------------------------------------------------------------------------


async def test_a_resumed_queue_starts_without_waiting_for_a_poll(store):
    await store.controls.pause(*QUEUE)
    ids = await submit_many(store, "nothing", 3)
    async with working(store, nothing, poll=600.0):
        await store.controls.resume(*QUEUE)
        await all_finished(store, ids)


async def test_a_limited_queue_is_drained_without_polls(store):
    await store.controls.override(*QUEUE, Numbers(running=2))
    ids = await submit_many(store, "nothing", 20)
    async with working(store, nothing, poll=600.0):
        await all_finished(store, ids)


async def test_a_rate_wakes_the_worker_when_it_permits_the_next(backend):
    store = backend.open(own_clock=False)
    await store.controls.override(*QUEUE, Numbers(rate=Rate(50, per=1, burst=1)))
    ids = await submit_many(store, "nothing", 8)
    async with working(store, nothing, poll=600.0):
        await all_finished(store, ids)
    await store.aclose()


# -- weights between queues -----------------------------------------------------------------------


async def test_queues_with_weights_get_their_shares(store):
    """Of 400 claims of one job each, the first queue gets about three quarters."""
    worker = a_worker(store, nothing, queues={"often": 3.0, "rarely": 1.0})
    worker._make_parts()
    first = Counter(worker._claimer._order()[0] for _ in range(400))
    assert 240 < first["often"] < 360


# -- why and doctor -------------------------------------------------------------------------------


async def served(store):
    policies = ("default",)
    worker = WorkerInfo(
        id=ALICE, host="h", pid=1, queues=policies, topics=(TOPIC,), slots=10, state="running"
    )
    await store.announce(worker)


async def test_why_names_the_pause_and_who_did_it(store, clock):
    await served(store)
    job = await row(store, await submitted(store))
    await store.controls.pause(*QUEUE, by=Operator("anna@desk"))
    await store.controls.pause(ControlScope.TOPIC, TOPIC)
    clock.advance(20)
    queue, topic = await why(store, job)
    assert queue.startswith("its queue 'default' was paused by ")
    assert queue.endswith("20 s ago: resume it with `pulsed queues resume default`")
    assert topic.startswith(f"its topic '{TOPIC}' was paused")
    assert topic.endswith(f"`pulsed topics resume {TOPIC}`")


async def test_why_names_the_jobs_that_hold_the_limit(store):
    await served(store)
    await store.controls.override(*QUEUE, Numbers(running=1))
    await store.submit([a_job(), a_job()])
    (run,) = await claim(store)
    (waiting,) = [each for each in await store.list_jobs(EVERYTHING) if each.id != run.job_id]
    (reason,) = await why(store, waiting)
    assert reason == f"its queue 'default' runs 1 job, and its limit is 1: {run.job_id}"


async def test_why_says_when_the_rate_permits_the_next(store, clock):
    await served(store)
    await store.controls.override(*QUEUE, Numbers(rate=Rate(1, per=60)))
    await store.submit([a_job(), a_job()])
    (run,) = await claim(store)
    clock.advance(15)
    await served(store)
    (waiting,) = [each for each in await store.list_jobs(EVERYTHING) if each.id != run.job_id]
    (reason,) = await why(store, waiting)
    assert reason == (
        "its queue 'default' has a rate 1 per 60 s, 1 at once: the next may start in 45 s"
    )


async def test_the_doctor_finds_a_pause_that_was_forgotten(store, clock):
    await submitted(store)
    await store.controls.pause(*QUEUE, by=Operator("anna@desk"))
    (fine,) = await pauses(store)
    assert fine.level == "ok"
    clock.advance(3 * 86_400)
    (found,) = await pauses(store)
    assert found.level == "warn"
    assert "queue 'default' was paused 3 d ago" in found.detail
    assert "1 due job of it waits" in found.detail
    assert found.advice == "resume it with `pulsed queues resume default`"


async def pauses(store):
    return [each for each in await examine(store, checks=["pauses"]) if each.check == "pauses"]


# -- the command ----------------------------------------------------------------------------------


def test_the_command_pauses_limits_and_lists(live, url):
    run_blocking(live.submit([a_job()]))
    (paused,) = lines_of(run("queues", "pause", "default", "--url", url))
    assert (paused["queue"], paused["paused"]) == ("default", True)
    (limited,) = lines_of(
        run("queues", "limit", "default", "--running", "4", "--rate", "60/1m", "--url", url)
    )
    assert limited["limits"] == {"running": 4, "rate": {"count": 60, "per": 60.0, "burst": None}}
    (limited,) = lines_of(
        run("queues", "limit", "default", "--running", "none", "--age", "5m", "--url", url)
    )
    assert limited["limits"]["age"] == 300.0
    assert "running" not in limited["limits"]
    for listing in (["queues"], ["queues", "list"]):
        (listed,) = lines_of(run(*listing, "--json", "--url", url))
        assert (listed["due"], listed["paused"]) == (1, True)
    table = run("queues", "--format", "table", "--url", url).stdout
    assert "paused by " in table
    assert "; rate 60 per 60 s, 1 at once, age 300 s (" in table
    misplaced = run("queues", "--url", url, "resume", "default")
    assert (misplaced.exit_code, "after 'resume'" in misplaced.stderr) == (2, True)
    (resumed,) = lines_of(run("queues", "resume", "default", "--url", url))
    assert not resumed["paused"]
    (cleared,) = lines_of(run("queues", "clear", "default", "--url", url))
    assert cleared["limits"] == {}


def test_the_command_pauses_topics(live, url):
    run_blocking(live.now())
    assert lines_of(run("topics", "pause", "email", "--url", url))[0]["topic"] == "email"
    assert [each["topic"] for each in lines_of(run("topics", "paused", "--url", url))] == ["email"]
    assert not lines_of(run("topics", "resume", "email", "--url", url))[0]["paused"]
    assert lines_of(run("topics", "paused", "--url", url)) == []
    said = run("topics", "pause", "email", "--format", "table", "--url", url).stdout
    assert said.startswith("topic email: paused by ")


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--running", "many"],
        ["--running", "0"],
        ["--rate", "60"],
        ["--rate", "60/soon"],
        ["--rate", "x/1m"],
        ["--burst", "5"],
        ["--age", "old"],
    ],
)
def test_wrong_limits_are_refused_with_a_sentence(live, url, options):
    run_blocking(live.now())
    result = run("queues", "limit", "default", *options, "--url", url)
    assert result.exit_code in (1, 2)
    assert result.stderr
    assert run_blocking(live.controls.list_page()) == []
