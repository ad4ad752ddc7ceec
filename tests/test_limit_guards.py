"""The guards of limits, each tested by its removal; and two claims that meet in every order."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pulsed.model.control import ControlScope, Numbers
from pulsed.model.job import JobFilter, Status
from pulsed.model.outcome import Failed, Succeeded
from pulsed.model.rate import Rate
from pulsed.store.blocking import run_blocking
from pulsed.store.sql_store.store import SqlStore
from tests.support.backends import PostgresBackend, only_postgres
from tests.support.guards import check, unguarded
from tests.support.interleaving import Act, Explorer, exploring
from tests.support.jobs import ALICE, BOB, a_policy, claim, settle, submitted
from tests.test_limits import govern, limited, take

pytestmark = pytest.mark.embedded("takes guards out of the statements")
postgres = only_postgres

PLAIN = [a_policy()]


async def an_unlimited_claim_leaves_limited_jobs_alone(store: SqlStore, _: Any) -> None:
    await govern(store, running=1)
    await limited(store, *["mail"] * 3)
    await submitted(store, topic="other")  # so that there is something to scan
    taken = await claim(store, topics=PLAIN)
    assert len(taken) == 1


async def a_suspect_does_not_go_around_its_limit(store: SqlStore, backend: Any) -> None:
    await govern(store, running=1)
    await limited(store, *["mail"] * 2)
    assert len(await take(store)) == 1
    await submitted(store, topic="other")  # so that there is something to scan
    backend.execute("UPDATE pulse_jobs SET crashes = 2 WHERE status = 'PENDING'")
    backend.clock.advance(2)
    assert await claim(store, BOB, topics=PLAIN) == []


async def what_has_ended_holds_no_slot(store: SqlStore, backend: Any) -> None:
    await govern(store, sequential=True)
    await limited(store, *["mail"] * 3)
    for _ in range(3):
        taken = await take(store)
        assert len(taken) == 1
        await settle(store, taken[0], Succeeded(None))
        backend.clock.advance(2)


async def keys_do_not_share_slots(store: SqlStore, _: Any) -> None:
    await govern(store, running=1)
    await limited(store, "mail,a", "mail,b")
    assert len(await take(store, limit=1)) == 1
    assert len(await take(store)) == 1


async def a_sequential_job_waits_for_the_retry_before_it(store: SqlStore, backend: Any) -> None:
    await govern(store, sequential=True)
    await limited(store, *["mail"] * 2, max_attempts=2)
    (run,) = await take(store)
    await settle(store, run, Failed("no", delay=60))
    backend.clock.advance(2)
    assert await take(store) == []


async def a_job_of_another_topic_is_left_alone(store: SqlStore, _: Any) -> None:
    await limited(store, "mail", topic="other")
    await limited(store, "mail")
    taken = await take(store)
    assert [each.topic for each in taken] == ["email"]


async def a_job_waits_for_its_time(store: SqlStore, _: Any) -> None:
    await limited(store, "mail", delay=60)
    await limited(store, "mail")
    assert len(await take(store)) == 1


async def only_the_jobs_of_a_key_are_claimed_for_it(store: SqlStore, _: Any) -> None:
    await govern(store, running=1)
    await limited(store, *["mail,a"] * 3, "mail,b")
    assert len(await take(store)) == 2


@pytest.mark.parametrize(
    "scenario, statement, guard",
    [
        (an_unlimited_claim_leaves_limited_jobs_alone, "claim", "AND limit_key IS NULL"),
        (a_suspect_does_not_go_around_its_limit, "claim_suspect", "AND limit_key IS NULL"),
        (what_has_ended_holds_no_slot, "limit_use", "AND completed_at IS NULL"),
        (what_has_ended_holds_no_slot, "limit_use", "AND started_at IS NOT NULL"),
        (keys_do_not_share_slots, "limit_use", "AND limit_key = r.its_key"),
        (
            a_sequential_job_waits_for_the_retry_before_it,
            "claim_limited",
            "AND (started_at IS NOT NULL OR NOT r.g_begun)",
        ),
        (only_the_jobs_of_a_key_are_claimed_for_it, "claim_limited", "AND limit_key = r.g_key"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
async def test_each_guard_is_needed(backend, scenario, statement, guard):
    names = {"claim_limited": "pick_limited", "claim_suspect": "pick_suspect"}
    if backend.engine == "sqlite":
        statement = names.get(statement, statement)
    await check(backend, scenario, statement, guard)


async def test_other_topics_and_times_are_respected(backend):
    for scenario in (a_job_of_another_topic_is_left_alone, a_job_waits_for_its_time):
        store = backend.open()
        await scenario(store, backend)
        await store.aclose()
        backend.empty()


# -- two claims that meet -------------------------------------------------------------------------

LOCK = re.compile(r"pg_try_advisory_xact_lock\([^()]*\([^()]*\)[^()]*\)")


def claiming(worker: Any) -> Act:
    return lambda store: take(store, worker)


def meeting(explorer: Explorer, **numbers: Any) -> list[str]:
    """Return the orders of two claims after which more than two jobs have started."""
    calm = explorer.calm

    def prepare() -> list[Act]:
        explorer.backend.clock.advance(10)
        run_blocking(calm.controls.declare(ControlScope.LIMIT, {"mail": Numbers(**numbers)}))
        run_blocking(limited(calm, *["mail"] * 6))
        return [claiming(ALICE), claiming(BOB)]

    bad = []
    for order in explorer.every_order(prepare, switches=2):
        for actor in explorer.actors:
            actor.result()
        running = run_blocking(calm.counts(JobFilter()))[Status.RUNNING]
        if running > 2:
            bad.append(order)
    assert explorer.orders > 10
    return bad


@pytest.mark.parametrize(
    "numbers", [{"running": 2}, {"rate": Rate(1, per=60, burst=2)}], ids=["running", "rate"]
)
@pytest.mark.parametrize("locked", [True, False], ids=["locked", "unlocked"])
def test_in_no_order_do_two_claims_exceed_a_limit(
    postgres: PostgresBackend, numbers: dict[str, Any], locked: bool
) -> None:
    with exploring(postgres) as explorer:
        for actor in explorer.actors:
            group: Any = actor.store.engine.limited
            (lock,) = set(LOCK.findall(group.limit_keys.text))
            if not locked:
                group.limit_keys = unguarded(group.limit_keys, lock, "true")
        assert bool(meeting(explorer, **numbers)) is not locked
