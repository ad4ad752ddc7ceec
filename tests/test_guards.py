"""Guards are tested by removal: take one out of a statement, and a check must fail.

Each scenario passes on the statements as they are, and fails on a store whose statement lost one
guard. Where two defences cover for each other, each alone must do, and none must not.
"""

from collections.abc import Awaitable
from typing import Any

import pytest

from pulsed.errors import StorageError
from pulsed.model.job import Lease, Status
from pulsed.model.outcome import Beat, Failed, Snoozed, Succeeded
from pulsed.model.stream import Emission
from pulsed.store.sql.operators import WAITS_FOR_TIME
from pulsed.store.sql_store.store import SqlStore
from tests.support.guards import (
    STILL_CLAIMABLE,
    a_self_zombie,
    check,
    somebody_with_anothers_token,
    unguarded,
)
from tests.support.jobs import (
    ALICE,
    BOB,
    NO_WAIT,
    a_job,
    claim,
    claim_one,
    never_away,
    row,
    running,
    settle,
)

pytestmark = pytest.mark.embedded("takes guards out of the statements")


STATUS = "j.status = 'RUNNING' AND "
OWNER = "AND j.locked_by = r.worker"
TOKEN = "AND j.lease_token = r.token"

# -- the fence of every worker write --------------------------------------------------------------


async def beat_is_refused(store: SqlStore, lease: Lease) -> None:
    assert await store.beat([lease]) == {lease: Beat.LOST}


async def settle_is_refused(store: SqlStore, lease: Lease) -> None:
    before = await row(store, lease.job_id)
    assert not await settle(store, lease, Snoozed(7))
    assert await row(store, lease.job_id) == before


async def success_is_refused(store: SqlStore, lease: Lease) -> None:
    assert not await settle(store, lease, Succeeded("7"))


async def progress_is_refused(store: SqlStore, lease: Lease) -> None:
    assert not await store.set_progress(lease, "7")


async def emission_is_refused(store: SqlStore, lease: Lease) -> None:
    assert not await store.streams.emit([Emission(lease, 1, 1, ["7"])])


WRITES = {
    "beat": beat_is_refused,
    "settle": settle_is_refused,
    "settle_succeeded": success_is_refused,
    "set_progress": progress_is_refused,
    "emit": emission_is_refused,
}


every_write = pytest.mark.parametrize("statement", list(WRITES))


@every_write
async def test_the_token_fences_the_self_zombie(backend, statement):
    async def scenario(store, backend):
        await WRITES[statement](store, await a_self_zombie(store))

    await check(backend, scenario, statement, TOKEN)


@every_write
async def test_the_owner_fences_who_only_knows_the_token(backend, statement):
    async def scenario(store, backend):
        await WRITES[statement](store, await somebody_with_anothers_token(store))

    await check(backend, scenario, statement, OWNER)


@every_write
async def test_the_status_fences_a_row_that_kept_its_owner(backend, statement):
    """No statement of pulsed leaves an owner on an ended job; manual SQL might."""

    async def scenario(store, backend):
        run = await running(store, ALICE)
        await settle(store, run, Failed("x", final=True))
        backend.execute(f"UPDATE pulse_jobs SET locked_by = {backend.literal(ALICE)}")
        before = backend.row(run.job_id)
        await raises_nothing(WRITES[statement](store, run.lease))
        assert backend.row(run.job_id) == before

    await check(backend, scenario, statement, STATUS)


async def raises_nothing(verb: Awaitable[Any]) -> None:
    """Await; being stopped by a constraint of the table is a failed check as well."""
    try:
        await verb
    except StorageError as error:
        raise AssertionError("the guard was missing, the table refused") from error


@pytest.mark.parametrize("guard", [TOKEN, OWNER], ids=["token", "owner"])
async def test_a_lost_lease_is_not_taken_for_one_that_is_only_locked(backend, guard):
    async def scenario(store, backend):
        make = a_self_zombie if guard == TOKEN else somebody_with_anothers_token
        await beat_is_refused(store, await make(store))

    await check(backend, scenario, "still_held", guard)


@pytest.mark.parametrize(
    "guard",
    ["AND j.lease_token = r.token", "AND j.last_worker = r.worker", "AND j.last_outcome = r.kind"],
)
async def test_a_report_is_known_from_before_only_by_token_worker_and_outcome(backend, guard):
    async def scenario(store, backend):
        first = await running(store, ALICE, backoff=NO_WAIT, max_attempts=5)
        await settle(store, first, Failed("x"))
        second = await claim_one(store, ALICE)
        await settle(store, second, Failed("x"))
        assert not await settle(store, first, Failed("x"))
        assert not await settle(store, second.lease._replace(worker_id=BOB), Failed("x"))
        assert not await settle(store, second, Snoozed(1))
        assert await settle(store, second, Failed("x"))

    await check(backend, scenario, "settled_before", guard)


DELETABLE = (
    "status IN ('PENDING', 'RETRYING', 'WAITING', 'SUCCEEDED', 'DEAD_LETTERED', 'CANCELLED')\n"
    "              AND"
)

# -- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement, guard",
    [
        ("cancel", "AND (j.status = 'RUNNING' OR j.status IN ('PENDING', 'RETRYING', 'WAITING'))"),
        ("replay", "AND j.status IN ('DEAD_LETTERED', 'CANCELLED')"),
        ("delete", DELETABLE),
    ],
    ids=["cancel", "replay", "delete"],
)
async def test_an_act_is_refused_where_the_state_does_not_allow_it(backend, statement, guard):
    async def scenario(store, backend):
        await store.submit([a_job(), a_job()])
        done, live = await claim(store)
        await settle(store, done, Succeeded())
        before = [backend.row(run.job_id) for run in (done, live)]
        act = getattr(store, statement)
        touched = live if statement == "delete" else done
        await raises_nothing(act([touched.job_id]))
        rows = await store.get([done.job_id, live.job_id])
        assert set(rows) == {done.job_id, live.job_id}
        assert [backend.row(run.job_id) for run in (done, live)] == before

    await check(backend, scenario, statement, guard)


async def test_only_a_job_that_ended_without_success_is_edited(backend):
    async def scenario(store, backend):
        await store.submit([a_job(), a_job()])
        done, live = await claim(store)
        await settle(store, done, Succeeded())
        before = [backend.row(run.job_id) for run in (done, live)]
        for run in (done, live):
            assert not (await store.edit_and_replay(run.job_id, '{"n": 2}'))[run.job_id][0]
        assert [backend.row(run.job_id) for run in (done, live)] == before

    guard = "AND j.status IN ('DEAD_LETTERED', 'CANCELLED')"
    await check(backend, scenario, "edit_payload", guard)


@pytest.mark.parametrize(
    "guard, instead",
    [(f"AND {WAITS_FOR_TIME}", ""), ("AND j.next_run_at > ", "AND j.next_run_at <> ")],
    ids=["waits for time", "not due"],
)
async def test_only_what_waits_for_its_time_and_is_not_due_is_made_due(backend, guard, instead):
    async def scenario(store, backend):
        signal, ended, due = a_job(delay=60), a_job(delay=60), a_job()
        await store.submit([signal, ended, due])
        for job, status in ((signal, "WAITING"), (ended, "SUCCEEDED")):
            backend.execute(
                f"UPDATE pulse_jobs SET status = '{status}', wait_kind = 'SIGNAL' "
                f"WHERE id = {backend.literal(job.id)}"
            )
        backend.clock.advance(1)
        before = [backend.row(job.id) for job in (signal, ended, due)]
        answers = await store.expedite([signal.id, ended.id, due.id])
        assert [answers[job.id][0] for job in (signal, ended, due)] == [False, False, True]
        assert [backend.row(job.id) for job in (signal, ended, due)] == before

    await check(backend, scenario, "expedite", guard, instead=instead)


# -- claim and reap -------------------------------------------------------------------------------


PICKED_CLAIMABLE = "status IN ('PENDING', 'RETRYING', 'WAITING') AND"


async def test_only_claimable_jobs_take_a_place_in_the_batch(backend):
    async def scenario(store, backend):
        await running(store, ALICE)
        job = a_job()
        await store.submit([job])
        assert [run.job_id for run in await claim(store, BOB, limit=1)] == [job.id]

    await check(backend, scenario, "claim", PICKED_CLAIMABLE)


async def test_a_running_job_is_claimed_by_nobody_else(backend):
    async def scenario(store, backend):
        await running(store, ALICE)
        await store.submit([a_job(delay=60)])  # so that the priority has a waiting job
        assert await claim(store, BOB) == []

    await check(backend, scenario, "claim", PICKED_CLAIMABLE, STILL_CLAIMABLE)


async def test_only_expired_leases_are_reaped(backend, clock):
    """Even if something of that length has expired, and whatever was read before."""
    now = {"sqlite": ":now", "postgres": "$1::timestamptz"}[backend.engine]

    async def scenario(store, backend):
        expired, over = store.engine.recovery.expired, f"lease_until < {now}"
        store.engine.recovery.expired = unguarded(expired, over, f"(status = 'RUNNING' OR {over})")
        run = await running(store)
        clock.advance(20)
        await never_away(store)
        assert (await store.watchdog()).reaped == []
        assert (await row(store, run.job_id)).status is Status.RUNNING

    first = (f"AND e.lease_until < {now}", "AND e.lease_until < r.before")
    again = f"AND coalesce(j.lease_until, {now}) < r.before"
    await check(backend, scenario, "reap", *first, again)


async def test_only_jobs_that_have_ended_are_pruned(backend, clock):
    """No statement of pulsed sets the end of an unfinished job; manual SQL might."""

    async def scenario(store, backend):
        run = await running(store)
        past = {"sqlite": "1", "postgres": "to_timestamp(1)"}[backend.engine]
        backend.execute(f"UPDATE pulse_jobs SET completed_at = {past}")
        clock.advance(60)
        pruned = await store.prune({Status.RUNNING: 1.0}, limit=10)
        assert pruned.total == 0
        assert (await row(store, run.job_id)).status is Status.RUNNING

    ended = "AND status IN ('SUCCEEDED', 'DEAD_LETTERED', 'CANCELLED')"
    await check(backend, scenario, "prune", ended)


async def test_only_jobs_whose_time_is_up_are_pruned(backend, clock):
    """Two guards check the time of the end; here each of them alone, and then neither."""

    async def removes_a_young_job(*looks: str) -> bool:
        store = backend.open()
        sql = store.engine.retention.prune
        for look in looks:
            assert sql.text.count(f"{look} <") == 1
            sql = unguarded(sql, f"{look} <", f"{look} <>")
        store.engine.retention.prune = sql
        run = await running(store)
        await settle(store, run, Succeeded())
        clock.advance(60)
        pruned = await store.prune({Status.SUCCEEDED: 3600.0}, limit=10)
        await store.aclose()
        backend.empty()
        return bool(pruned.total)

    text = backend.open().engine.retention.prune.text
    picked = "AND completed_at"
    again = text[text.index("AND coalesce(completed_at") : text.rindex(") <") + 1]
    assert not await removes_a_young_job()
    assert not await removes_a_young_job(picked)
    assert not await removes_a_young_job(again)
    assert await removes_a_young_job(picked, again)
