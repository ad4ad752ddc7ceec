"""Limits: what a claim may have of each key, on every store."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from pulsed.errors import StorageError
from pulsed.model.control import ControlScope, Numbers
from pulsed.model.job import Assignment, Status
from pulsed.model.outcome import Failed, Released, Snoozed, Succeeded
from pulsed.model.rate import Rate
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs import limited as walk
from pulsed.store.verbs.script import VerbKind
from tests.support.jobs import (
    ALICE,
    BOB,
    EVERYTHING,
    NO_WAIT,
    a_job,
    a_policy,
    claim,
    ids,
    reap,
    row,
    settle,
    submitted,
)

MAIL = a_policy(limit_name="mail")
PER_TENANT = a_policy(limit_name="mail", limit_per="tenant")


async def govern(store: Any, name: str = "mail", **numbers: Any) -> None:
    """Write the numbers of a limit, as a worker declares them."""
    await store.controls.declare(ControlScope.LIMIT, {name: Numbers(**numbers)})


async def limited(store: Any, *keys: str, **options: Any) -> list[UUID]:
    """Submit a job for each key; returns their ids."""
    jobs = [
        a_job(
            limit_key=key,
            payload=json.dumps({"tenant": key.partition(",")[2]}),
            **options,
        )
        for key in keys
    ]
    await store.submit(jobs)
    return [job.id for job in jobs]


async def take(store: Any, worker: UUID = ALICE, limit: int = 10, **options: Any) -> Any:
    return await claim(store, worker, limit=limit, topics=[PER_TENANT], **options)


def per_key(assignments: list[Assignment]) -> Counter[str]:
    return Counter(json.loads(each.payload)["tenant"] for each in assignments)


async def test_no_more_jobs_run_at_once_than_the_limit_says(store, backend, clock):
    await govern(store, running=3)
    await limited(store, *["mail"] * 10)
    first = await take(store)
    assert len(first) == 3
    assert await take(store, BOB) == []
    await settle(store, first[0], Succeeded(None))
    assert len(await take(store, BOB)) == 1
    clock.advance(2)
    assert await take(store) == []


async def test_each_value_has_its_own_slots(store, backend):
    await govern(store, running=2)
    await limited(store, *["mail,a"] * 5, *["mail,b"] * 5, "mail,c")
    assert per_key(await take(store)) == {"a": 2, "b": 2, "c": 1}


async def test_a_limit_is_shared_by_queues_and_topics(store, backend):
    await govern(store, running=1)
    await limited(store, "mail", queue="one")
    await limited(store, "mail", queue="two", topic="other")
    both = [MAIL, a_policy("other", limit_name="mail")]
    assert len(await claim(store, queue="one", topics=both)) == 1
    assert await claim(store, queue="two", topics=both) == []


async def test_without_numbers_everything_runs(store):
    await limited(store, *["mail,a"] * 5, *["mail,b"] * 5)
    assert len(await take(store, limit=100)) == 10


async def test_the_better_priority_of_a_key_comes_first(store, backend, clock):
    await govern(store, running=3)
    low = await limited(store, "mail", "mail", priority=-1)
    later = await limited(store, "mail", priority=9, delay=60)
    high = await limited(store, "mail", "mail", priority=5)
    taken = await take(store)
    assert ids(taken) == [*high, low[0]]
    for each in taken:
        await settle(store, each, Succeeded(None))
    clock.advance(61)
    assert ids(await take(store)) == [*later, low[1]]


async def test_sequential_jobs_run_one_at_a_time_in_order_through_retries(store, backend, clock):
    await govern(store, sequential=True)
    first, second = await limited(store, "mail,a", "mail,a", max_attempts=2)
    (taken,) = await take(store)
    assert taken.job_id == first
    await settle(store, taken, Failed("no", delay=60))
    clock.advance(2)
    assert await take(store) == [], "the first has not ended: it waits for its retry"
    clock.advance(60)
    (again,) = await take(store)
    assert again.job_id == first
    await settle(store, again, Succeeded(None))
    (after,) = await take(store)
    assert after.job_id == second


async def test_a_rate_allows_its_burst_and_then_one_by_one(store, backend, clock):
    await govern(store, rate=Rate(10, per=1, burst=3))
    await limited(store, *["mail"] * 10)
    taken = await take(store)
    assert len(taken) == 3
    if not store.is_remote:
        assert taken.again_in == pytest.approx(0.1)
    for each in taken:
        await settle(store, each, Succeeded(None))
    assert await take(store) == []
    clock.advance(0.2)
    assert len(await take(store)) == 2
    clock.advance(10)
    assert len(await take(store)) == 3


async def test_a_throttled_job_uses_no_attempt(store, backend, clock):
    await govern(store, running=1)
    _, second = await limited(store, "mail", "mail", max_attempts=1)
    (taken,) = await take(store)
    for _ in range(5):
        clock.advance(2)
        assert await take(store, BOB) == []
    assert (await row(store, second)).attempts == 0
    await settle(store, taken, Succeeded(None))
    (last,) = await take(store)
    assert last.attempt == 1


async def test_a_slot_comes_back_with_the_lease_of_a_dead_worker(store, backend, clock):
    await govern(store, running=1)
    first, _ = await limited(store, "mail", "mail", backoff=NO_WAIT)
    await take(store)
    clock.advance(20)
    assert await take(store, BOB) == [], "its lease stands"
    clock.advance(11)
    assert await take(store, BOB) == [], "expired, but not yet reaped: it may still run"
    assert await reap(store) == [first]
    clock.advance(2)
    assert len(await take(store, BOB)) == 1
    assert await take(store, BOB) == []


@pytest.mark.parametrize("outcome", [Failed("no", delay=0), Snoozed(0), Released()])
async def test_however_a_run_ends_its_slot_is_free(store, backend, clock, outcome):
    await govern(store, running=1)
    await limited(store, "mail", "mail", max_attempts=9)
    for _ in range(4):
        (taken,) = await take(store)
        await settle(store, taken, outcome)


async def test_keys_take_turns_at_few_slots(store):
    await limited(store, *["mail,a"] * 20, *["mail,b"] * 20, *["mail,c"] * 20)
    taken = [each for _ in range(30) for each in await take(store, limit=1)]
    assert per_key(taken) == {"a": 10, "b": 10, "c": 10}


async def test_keys_share_many_slots_fairly_and_what_one_leaves_the_others_get(store):
    await limited(store, *["mail,a"] * 100, "mail,b", *["mail,c"] * 30)
    taken = per_key(await take(store, limit=31))
    assert taken.total() == 31
    assert taken["b"] == 1
    assert abs(taken["a"] - taken["c"]) <= 2
    taken += per_key(await take(store, limit=60))
    assert taken == {"a": 60, "b": 1, "c": 30}


@pytest.mark.parametrize("at_a_time", [1, 3, 20])
async def test_weights_decide_the_shares(store, backend, at_a_time):
    await govern(store, weights={"big": 3})
    await limited(store, *["mail,big"] * 60, *["mail,small"] * 60)
    taken: list[Any] = []
    while len(taken) < 40:
        taken += await take(store, limit=at_a_time)
    counted = per_key(taken)
    assert 2 <= counted["big"] / counted["small"] <= 4


async def test_jobs_that_lack_their_key_get_it_before_they_run(store, backend, clock):
    await govern(store, running=1)
    for tenant in "aab":
        await submitted(store, payload=json.dumps({"tenant": tenant}))
    assert per_key(await take(store)) == {"a": 1, "b": 1}
    clock.advance(2)
    assert await take(store) == []


async def test_limited_and_unlimited_jobs_take_turns(store):
    await limited(store, *["mail"] * 40)
    await store.submit([a_job(topic="plain") for _ in range(40)])
    both = [MAIL, a_policy("plain")]
    topics = Counter[str]()
    for _ in range(4):
        topics.update(each.topic for each in await claim(store, topics=both, limit=10))
    assert topics == {"email": 20, "plain": 20}


async def test_jobs_of_a_limit_that_the_code_no_longer_has_still_run_within_it(
    store, backend, clock
):
    await govern(store, running=2)
    await limited(store, *["mail"] * 5)
    assert len(await claim(store, topics=[a_policy()])) == 2
    clock.advance(2)
    assert await claim(store, topics=[a_policy()]) == []


async def test_a_paused_limit_starts_nothing(store, backend):
    await govern(store, running=2)
    await store.controls.pause(ControlScope.LIMIT, "mail")
    await limited(store, *["mail"] * 5)
    assert await take(store) == []


async def test_a_suspect_with_a_limit_runs_apart_and_within_it(store, backend, clock):
    await govern(store, running=1)
    (suspect,) = await limited(store, "mail", priority=1)
    (other,) = await limited(store, "mail")
    backend.execute("UPDATE pulse_jobs SET crashes = 2 WHERE priority = 1")
    (first,) = await take(store)
    assert first.job_id == suspect
    clock.advance(2)
    assert await take(store, BOB) == []
    await settle(store, first, Succeeded(None))
    assert ids(await take(store)) == [other]


@pytest.mark.parametrize("other", [{"queue": "elsewhere"}, {"topic": "unhandled"}])
async def test_a_suspect_that_a_worker_may_not_run_is_not_claimed_in_place_of_another(
    store, backend, clock, other
):
    await govern(store, running=5)
    await limited(store, "mail", **other)
    clock.advance(1)
    (due,) = await limited(store, "mail")
    backend.execute("UPDATE pulse_jobs SET crashes = 2")
    assert ids(await take(store)) == [due]
    clock.advance(2)
    assert await take(store) == []  # it runs one
    assert await take(store, BOB) == []


async def test_limited_jobs_are_counted_like_others(store, backend):
    await limited(store, *["mail,a"] * 3, "mail,b")
    await submitted(store, topic="plain")
    backlog = {(each.queue, each.topic): each.due for each in await store.backlog()}
    assert backlog == {("default", "email"): 4, ("default", "plain"): 1}
    counts = await store.counts(EVERYTHING)
    assert counts[Status.PENDING] == 5


async def test_a_paused_queue_and_a_paused_topic_start_no_limited_jobs(store, clock):
    await limited(store, *["mail"] * 3)
    await store.controls.pause(ControlScope.QUEUE, "default")
    assert await take(store) == []
    await store.controls.resume(ControlScope.QUEUE, "default")
    await store.controls.pause(ControlScope.TOPIC, "email")
    clock.advance(2)
    assert await take(store) == []
    await store.controls.resume(ControlScope.TOPIC, "email")
    clock.advance(2)
    assert len(await take(store)) == 3


async def test_a_limit_of_the_queue_counts_limited_jobs_as_well(store, clock):
    await store.controls.override(ControlScope.QUEUE, "default", Numbers(running=3))
    await limited(store, *["mail"] * 5)
    await store.submit([a_job(topic="plain") for _ in range(5)])
    both = [MAIL, a_policy("plain")]
    taken = [*await claim(store, topics=both), *await claim(store, topics=both)]
    clock.advance(2)
    taken += await claim(store, topics=both)
    assert len(taken) == 3


async def test_a_claim_that_finds_out_about_limited_jobs_loses_none_of_the_others(store):
    """A worker without limits learns at its first full scan that the queue has limited jobs."""
    await limited(store, *["mail"] * 2)
    plain = [await submitted(store) for _ in range(2)]
    taken = await claim(store, topics=[a_policy()])
    assert {*plain} < {*ids(taken)}
    assert len(taken) == 4


async def test_a_full_key_with_thousands_of_jobs_costs_the_others_no_claim(store, clock):
    await govern(store, running=10)
    await limited(store, *["mail,!full"] * 1_500)
    assert len(await take(store, BOB, limit=10)) == 10
    await limited(store, *[f"mail,{n % 5}" for n in range(50)])
    claims, done = 0, 0
    while done < 50:
        taken = await take(store)
        claims, done = claims + 1, done + len(taken)
        assert claims <= 6, "a key that is full took turns from the others"
        for each in taken:
            await settle(store, each, Succeeded(None))


async def test_small_tenants_are_done_when_their_shares_allow_it(store):
    await limited(store, *["mail,big"] * 1_000)
    await limited(store, *[f"mail,{n % 9}" for n in range(90)])
    claimed, small = 0, 0
    while small < 90:
        taken = per_key(await take(store))
        claimed, small = claimed + taken.total(), small + taken.total() - taken["big"]
    assert claimed <= 1.15 * 100


async def test_many_keys_are_all_visited(store):
    await govern(store, running=1)
    await limited(store, *[f"mail,{n}" for n in range(600)])
    assert len(await take(store, limit=1_000)) == 600


@pytest.mark.embedded("its claims fail one by one")
@pytest.mark.parametrize("is_paused", [False, True])
async def test_what_a_claim_has_leased_runs_even_if_the_next_part_of_it_fails(store, is_paused):
    """Limited jobs come first here; then those without a limit, or what a control permits."""
    await limited(store, "mail", "mail")
    await submitted(store, topic="plain")
    perform, claims = store.perform, 0

    async def failing(verb: Any) -> Any:
        nonlocal claims
        claims += verb.name == "claim"
        if verb.name == "claim" and claims == 2 and is_paused:
            await store.controls.pause(ControlScope.QUEUE, "default")
        elif verb.name == "claim" and claims > 1:
            raise StorageError("The disk is gone.")
        return await perform(verb)

    store.perform = failing
    taken = await claim(store, topics=[MAIL, a_policy(topic="plain")])
    assert len(taken) == 2
    assert store.doubtful_claims == claims - 1 - is_paused > 0


async def come_at_once(store: Any) -> tuple[list[Assignment], int]:
    """Claim again as long as a claim asks for that; returns the jobs, and the number of claims."""
    taken: list[Assignment] = []
    for claims in range(1, 50):
        found = await take(store)
        taken += found
        if found.again_in != 0.0:
            return taken, claims
    raise AssertionError("the claims go on without a pause")


async def test_a_key_with_many_priorities_is_scanned_to_the_last_of_them(store):
    await govern(store, running=1)
    for priority in range(1, walk.FEWEST_KEYS + 5):
        await limited(store, "mail,a", priority=priority, delay=60.0)
    due = await limited(store, "mail,a", priority=-1)
    assert ids(await take(store, limit=1)) == due


@pytest.mark.embedded("a server does not tell a worker when to come back")
async def test_more_keys_than_one_claim_visits_are_visited_by_the_next_ones(store, monkeypatch):
    """A due job behind thousands of keys that wait for their time starts, and claims then rest."""
    monkeypatch.setattr(walk, "KEYS", 4)
    monkeypatch.setattr(walk, "MOST_STEPS", 2)
    await govern(store, running=1)
    await limited(store, *[f"mail,{n:02}" for n in range(40)], delay=3600.0)
    await limited(store, "mail,z")
    taken, claims = await come_at_once(store)
    assert per_key(taken) == {"z": 1}
    assert claims <= 8
    for _ in range(3):
        taken, claims = await come_at_once(store)
        assert not taken
        assert claims <= 8, "keys that have nothing to start are walked again and again"


@pytest.mark.embedded("reads the locks of a claim")
async def test_only_keys_with_due_jobs_are_locked(store, backend):
    """A database has memory for some thousands of locks."""
    if backend.engine != "postgres":
        pytest.skip("SQLite has one writer, and no such locks")
    await limited(store, *[f"mail,{n}" for n in range(50)], delay=3600.0)
    await limited(store, "mail,a", "mail,b")
    perform, locks = store.perform, []
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"

    async def counting(verb: Any) -> Any:
        def script() -> Any:
            result = yield from verb.script()
            locks.extend((yield Statement(store.dialect.sql(held), {})))
            return result

        return await perform(replace(verb, script=script))

    store.perform = counting
    assert len(await take(store)) == 2
    assert [tuple(each) for each in locks] == [(2,)]


@pytest.mark.embedded("counts the transactions of the store")
async def test_without_limits_a_claim_is_the_one_that_it_was(store):
    await store.submit([a_job() for _ in range(30)])
    performed = []
    perform = store.perform

    async def counting(verb: Any) -> Any:
        performed.append(verb.kind)
        return await perform(verb)

    store.perform = counting
    for _ in range(4):
        await claim(store, limit=5)
    assert performed == [VerbKind.SINGLE] * 4
