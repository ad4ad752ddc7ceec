"""Claims begin behind what is not for them, and yet miss nothing for long."""

import itertools
import random
from collections.abc import Container
from typing import Any
from uuid import UUID

import pytest

from pulsed.model.outcome import Released
from pulsed.store.results import Assignments
from pulsed.store.sql.columns import ASSIGNED
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.verbs import claim as claim_verb
from pulsed.store.verbs.engine import Claim
from pulsed.store.verbs.floors import (
    BELIEVED,
    FULL_SCAN_INTERVAL,
    FULL_SCAN_SHARE,
    NEVER,
    SLACK,
    Floors,
)
from pulsed.store.verbs.script import Verb, drive
from pulsed.store.verbs.topics import Topics
from tests.support.clock import Clock
from tests.support.jobs import ALICE, a_job, a_policy, claim, settle
from tests.support.statements import postgres_engine, sql_of

HERE = [a_policy("here")]
NO_TOPICS = Topics(())


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def after_a_look(time: Time, *priorities: int, took: float = 0.0) -> Floors:
    """Return floors after a full scan that found nothing."""
    floors = Floors(time)
    walk = floors.walk()
    walk.begin_full_scan()
    walk.reset_floors(priorities)
    time.now += took
    walk.claimed(priorities, None, full=False)
    walk.end_full_scan()
    return floors


def look_again(floors: Floors, time: Time, *, took: float) -> None:
    walk = floors.walk()
    walk.begin_full_scan()
    walk.reset_floors(())
    time.now += took
    walk.claimed((), None, full=False)
    walk.end_full_scan()


# -- the bookkeeping ------------------------------------------------------------------------------


def test_the_first_claim_looks():
    assert Floors(Time()).walk().must_scan_fully


def test_a_look_is_due_after_a_while():
    time = Time()
    floors = after_a_look(time, 0)
    assert not floors.walk().must_scan_fully
    time.now += FULL_SCAN_INTERVAL + 0.01
    assert floors.walk().must_scan_fully


def test_a_look_that_took_long_is_not_repeated_soon():
    time = Time()
    floors = after_a_look(time, 0, took=0.5)
    look_again(floors, time, took=0.5)
    time.now += FULL_SCAN_SHARE * 0.5 - 1
    assert not floors.walk().must_scan_fully
    assert not floors.walk().may_scan_fully
    time.now += 1
    assert floors.walk().must_scan_fully


def test_one_look_that_took_long_may_have_been_somebody_elses_fault():
    time = Time()
    floors = after_a_look(time, 0, took=5)
    time.now += FULL_SCAN_INTERVAL
    assert floors.walk().may_scan_fully


def test_a_first_look_that_took_long_for_a_reason_is_believed_for_a_while():
    time = Time()
    floors = Floors(time)
    walk = floors.walk()
    walk.begin_full_scan()
    walk.reset_floors([0])
    time.now += 2
    walk.claimed([0], None, full=False)
    walk.end_full_scan()
    assert walk.is_surprising
    walk.was_long()
    time.now += FULL_SCAN_SHARE * BELIEVED - 2.1
    assert not floors.walk().may_scan_fully
    time.now += 0.1
    assert floors.walk().must_scan_fully


def test_a_failed_claim_makes_the_next_one_look():
    floors = after_a_look(Time(), 0)
    floors.forget()
    assert floors.walk().must_scan_fully


def test_a_clock_that_went_back_makes_the_next_claim_look():
    time = Time()
    floors = after_a_look(time, 0)
    time.now -= 60
    assert floors.walk().must_scan_fully


def test_a_short_batch_has_seen_everything():
    time = Time()
    floors = after_a_look(time, 5, 0)
    time.now += 0.5
    five, zero = floors.walk().levels()
    assert (five.priority, zero.priority) == (5, 0)
    assert five.walked == zero.walked == 0.5 + SLACK
    assert five.claimed == zero.claimed == NEVER


def test_a_full_batch_has_seen_everything_above_its_last_job():
    time = Time()
    floors = Floors(time)
    walk = floors.walk()
    walk.reset_floors([5, 0, -5])
    walk.claimed([5, 0, -5], (0, "an instant", "an id"), full=True)
    high, middle, low = floors.walk().levels()
    assert high.walked == SLACK
    assert (middle.at, middle.id, middle.claimed) == ("an instant", "an id", SLACK)
    assert middle.walked == low.walked == low.claimed == NEVER


# -- what it is for -------------------------------------------------------------------------------


async def submit_late(store: SqlStore, clock: Clock, seconds: float, **options: Any) -> UUID:
    """Submit a job that became due some time ago, as in a long transaction."""
    clock.advance(-seconds)
    job = a_job(topic="here", **options)
    await store.submit([job])
    clock.advance(seconds)
    return job.id


async def foreign_jobs(store: SqlStore, clock: Clock, count: int, **options: Any) -> None:
    """Fill the head of the queue with due jobs of a foreign topic."""
    await store.submit([a_job(topic="elsewhere", **options) for _ in range(count)])
    clock.advance(10)


async def claim_here(store: SqlStore, limit: int = 10) -> Assignments:
    return await claim(store, ALICE, topics=HERE, limit=limit)


async def test_jobs_of_topics_without_a_handler_are_passed_once(store: SqlStore, clock: Clock):
    await foreign_jobs(store, clock, 200)
    await store.submit([a_job(topic="here")])
    assert len(await claim_here(store)) == 1
    (floors,) = store.claims.floors.values()
    (level,) = floors.walk().levels()
    assert level.walked == SLACK  # seconds ago: nothing older will be scanned


@pytest.mark.parametrize("others, believed", [(30, BELIEVED), (5, 0.0)])
async def test_a_long_first_look_is_believed_if_jobs_of_others_explain_it(
    store: SqlStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, others: int, believed: float
):
    monkeypatch.setattr(claim_verb, "MANY", 20)
    await foreign_jobs(store, clock, others)
    await store.submit([a_job(topic="here") for _ in range(15)])
    ticks = itertools.chain([1000.0, 1000.0], itertools.repeat(1002.0))  # begun, and scanned
    monkeypatch.setattr(SqlStore, "seconds", lambda _: next(ticks))
    assert len(await claim_here(store)) == 10
    (floors,) = store.claims.floors.values()
    assert floors.full_scan_took == believed


async def test_a_claim_begins_behind_the_last_job_of_a_full_one(store: SqlStore, clock: Clock):
    """What lies before it was claimed; an old snapshot may keep its entries in the index."""
    await store.submit([a_job(topic="here") for _ in range(300)])
    clock.advance(10)
    runs = await claim_here(store, limit=200)
    (floors,) = store.claims.floors.values()
    (level,) = floors.walk().levels()
    last = level.id if isinstance(level.id, UUID) else UUID(bytes=level.id)
    assert (last, level.claimed) == (runs[-1].job_id, SLACK)
    assert len(await claim_here(store, limit=200)) == 100


# -- and what it must not cost --------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 10], ids=["full", "short"])
async def test_a_job_that_commits_late_is_found_when_nothing_else_is_there(
    store: SqlStore, clock: Clock, limit: int
):
    await store.submit([a_job(topic="here")])
    clock.advance(60)
    assert len(await claim_here(store, limit)) == 1
    late = await submit_late(store, clock, 30)
    assert [run.job_id for run in await claim_here(store, limit)] == [late]


async def test_a_job_that_commits_late_is_found_in_time_though_there_is_always_something(
    store: SqlStore, clock: Clock
):
    await store.submit([a_job(topic="here")])
    clock.advance(60)
    await claim_here(store)
    late = await submit_late(store, clock, 30)
    found = []
    for _ in range(5):
        clock.advance(FULL_SCAN_INTERVAL / 4)
        await store.submit([a_job(topic="here")])
        found += [run.job_id for run in await claim_here(store, 1)]
    assert late in found


async def test_jobs_above_the_floors_come_before_a_full_scan_that_is_due(
    store: SqlStore, clock: Clock
):
    await store.submit([a_job(topic="here")])
    clock.advance(60)
    await claim_here(store)
    late = await submit_late(store, clock, 30)
    clock.advance(2 * FULL_SCAN_INTERVAL)
    soon = a_job(topic="here")
    await store.submit([soon])
    first = await claim_here(store)
    assert [run.job_id for run in first] == [soon.id]
    if not store.is_remote:  # a server comes back by itself
        assert first.again_in == 0
    second = await claim_here(store)
    assert [run.job_id for run in second] == [late]
    assert second.again_in is None


async def test_a_full_scan_that_is_due_is_put_off_once(store: SqlStore, clock: Clock):
    await store.submit([a_job(topic="here")])
    clock.advance(60)
    await claim_here(store)
    late = await submit_late(store, clock, 30)
    clock.advance(2 * FULL_SCAN_INTERVAL)
    found = []
    for _ in range(2):
        await store.submit([a_job(topic="here")])
        found.append([run.job_id for run in await claim_here(store)])
    assert [late in ids for ids in found] == [False, True]


async def test_a_full_scan_that_is_due_is_not_put_off_if_the_last_claim_found_nothing(
    store: SqlStore, clock: Clock
):
    await store.submit([a_job(topic="here")])
    clock.advance(60)
    await claim_here(store)
    assert not await claim_here(store)
    late = await submit_late(store, clock, 30)
    clock.advance(2 * FULL_SCAN_INTERVAL)
    soon = a_job(topic="here")
    await store.submit([soon])
    assert [run.job_id for run in await claim_here(store)] == [late, soon.id]


async def test_a_full_scan_that_is_due_is_not_put_off_while_claims_are_full(
    store: SqlStore, clock: Clock
):
    await store.submit([a_job(topic="here") for _ in range(3)])
    clock.advance(60)
    await claim_here(store, 1)
    late = await submit_late(store, clock, 90)
    clock.advance(2 * FULL_SCAN_INTERVAL)
    assert [run.job_id for run in await claim_here(store, 1)] == [late]


async def test_what_commits_within_the_slack_is_seen_at_once(store: SqlStore, clock: Clock):
    first = [a_job(topic="here") for _ in range(3)]
    await store.submit(first)
    await claim_here(store, 2)
    clock.advance(SLACK / 2)
    earlier = await submit_late(store, clock, SLACK)
    await store.submit([a_job(topic="here")])
    assert (await claim_here(store, 1))[0].job_id == earlier


async def test_a_job_of_a_new_priority_goes_first_at_once(store: SqlStore):
    await store.submit([a_job(topic="here", priority=0) for _ in range(4)])
    assert len(await claim_here(store, 1)) == 1
    for priority in (7, -7, 3, 100, -100):
        urgent = a_job(topic="here", priority=priority)
        await store.submit([urgent])
        (run,) = await claim_here(store, 1)
        assert (run.job_id == urgent.id) == (priority > 0)


async def test_a_job_that_was_handed_back_is_found_again(store: SqlStore, clock: Clock):
    await store.submit([a_job(topic="here") for _ in range(3)])
    clock.advance(60)
    runs = await claim_here(store, 3)
    clock.advance(SLACK)
    assert await settle(store, runs[0], Released())
    assert [run.job_id for run in await claim_here(store, 3)] == [runs[0].job_id]


async def test_a_retry_is_found_when_it_is_due(store: SqlStore, clock: Clock):
    later = a_job(topic="here", delay=FULL_SCAN_INTERVAL / 2)
    await store.submit([a_job(topic="here"), later])
    assert len(await claim_here(store)) == 1
    clock.advance(FULL_SCAN_INTERVAL / 2)
    assert [run.job_id for run in await claim_here(store)] == [later.id]


async def test_other_topics_and_queues_have_floors_of_their_own(store: SqlStore, clock: Clock):
    await store.submit([a_job(topic="there"), a_job(topic="here", queue="other")])
    clock.advance(60)
    assert await claim_here(store) == []
    assert len(await claim(store, ALICE, topics=[a_policy("there")])) == 1
    assert len(await claim(store, ALICE, queue="other", topics=HERE)) == 1


async def test_new_priorities_are_claimed_at_once_however_many_of_them_there_are(store):
    await store.submit([a_job(priority=0)])
    assert len(await claim(store, limit=10)) == 1
    jobs = [a_job(priority=priority) for priority in (-3, -2, 5, -1, 7)]
    await store.submit(jobs)
    claimed = [run.job_id for run in await claim(store, limit=10)]
    assert claimed == [job.id for job in sorted(jobs, key=lambda job: -job.priority)]


async def test_a_full_claim_takes_all_new_priorities_before_a_lower_one(store):
    await store.submit([a_job(priority=0) for _ in range(20)])
    assert len(await claim(store, limit=1)) == 1
    await store.submit([a_job(priority=priority) for priority in (50, 40, 40, 30, 40, -1)])
    claimed = [run.priority for run in await claim(store, limit=8)]
    assert claimed == [50, 40, 40, 40, 30, 0, 0, 0]


async def test_each_topic_has_its_own_policy_in_every_claim(store):
    often, once = a_policy("often", max_attempts=9), a_policy("once", max_attempts=1)
    await store.submit([a_job(topic=topic) for topic in ("once", "often", "once", "often")])
    first = await claim(store, topics=[often, once], limit=1)
    rest = await claim(store, topics=[often, once], limit=10)
    attempts = [(run.topic, run.max_attempts) for run in first + rest]
    assert attempts == [("once", 1), ("often", 9), ("once", 1), ("often", 9)]


@pytest.mark.parametrize("seed", range(8))
async def test_a_claim_returns_the_best_of_what_is_due_whatever_priorities_arrive(
    store: SqlStore, clock: Clock, seed: int
):
    """Against a list that is sorted anew each time."""
    chance = random.Random(seed)
    waiting: dict[UUID, tuple[int, float, UUID]] = {}
    began = clock.now
    for _ in range(30):
        now = (clock.now - began).total_seconds()
        jobs = [
            a_job(priority=chance.randint(-100, 100), delay=chance.choice([0, 0, 0, 2.0]))
            for _ in range(chance.choice([0, 1, 3, 12]))
        ]
        await store.submit(jobs)
        waiting |= {job.id: (-job.priority, now + job.delay, job.id) for job in jobs}
        due = sorted(each for each in waiting.values() if each[1] <= now)
        limit = chance.randint(1, 8)
        claimed = [run.job_id for run in await claim(store, limit=limit)]
        assert claimed == [job_id for _, _, job_id in due[:limit]]
        for job_id in claimed:
            del waiting[job_id]
        clock.advance(chance.choice([0, 0.1, SLACK, FULL_SCAN_INTERVAL, 3]))


WALKS = ("levels", "claim")
"""The statements of a full scan that go through the queue's index."""


def far_away(
    claiming: Verb[Any], time: Time, trip: float, walk: float, slow: Container[str] = WALKS
) -> list[str]:
    """Run a claim that finds nothing; returns the statements it asked.

    Each takes a round trip, and the ``slow`` ones also ``walk`` seconds.
    """
    known = ("levels", "claim", "read_clock", "others_first")
    names = {sql_of(postgres_engine(), name).text: name for name in known}
    asked = []

    def execute(statement: Statement) -> Rows:
        asked.append(names[statement.sql.text])
        time.now += trip + (walk if asked[-1] in slow else 0)
        answers: dict[str, Rows] = {"levels": [(0, False, False, False)], "others_first": [(0,)]}
        return answers.get(asked[-1], [])

    drive(claiming.script(), execute)
    return asked


@pytest.mark.parametrize("trip, walk", [(0.3, 0.0), (0.3, 0.2), (0.0, 0.2)])
def test_a_round_trip_is_no_long_walk(trip, walk):
    time = Time()
    floors = Floors(time)
    for _ in range(2):
        floors.forget()
        claiming = claim_verb.claim(postgres_engine(), ALICE, "q", NO_TOPICS, 5, floors)
        far_away(claiming, time, trip, walk)
    assert floors.full_scan_took == pytest.approx(2 * walk)


@pytest.mark.parametrize("trip", [0.0, 0.3])
@pytest.mark.parametrize("slow, believed", [(WALKS, 0.2), (("levels",), 0.0), (("claim",), 0.0)])
def test_a_long_first_look_is_believed_if_both_of_its_statements_were_long(trip, slow, believed):
    """Entries that an old snapshot keeps are passed by both; a stall of the network hits one."""
    time = Time()
    floors = Floors(time)
    claiming = claim_verb.claim(postgres_engine(), ALICE, "q", NO_TOPICS, 5, floors)
    asked = far_away(claiming, time, trip, 0.1, slow)
    assert floors.full_scan_took == pytest.approx(believed)
    assert ("others_first" in asked) is (not believed)


def test_a_short_look_asks_nothing_more():
    time = Time()
    floors = Floors(time)
    claiming = claim_verb.claim(postgres_engine(), ALICE, "q", NO_TOPICS, 5, floors)
    assert far_away(claiming, time, 0.01, 0.0) == ["levels", "claim"]


def test_a_full_scan_beside_a_claim_does_not_make_it_forget_its_jobs():
    """They are leased: their worker would wait for their leases to expire."""
    time = Time()
    floors = after_a_look(time, 0)
    claiming = claim_verb.claim_due(postgres_engine(), Claim(ALICE, "q", NO_TOPICS), 1, floors)
    next(claiming)
    time.now += FULL_SCAN_INTERVAL
    look_again(floors, time, took=0.0)
    row = tuple({"next_run_at": 0.0, "priority": 0, "id": UUID(int=7)}.get(n) for n in ASSIGNED)
    with pytest.raises(StopIteration) as returned:
        claiming.send([row])
    assert returned.value.value.rows == [row]
