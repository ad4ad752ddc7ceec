"""The guards of workflow statements, tested by removal: without one, a check must fail."""

from collections.abc import Awaitable
from functools import partial

import pytest

from pulsed.errors import LeaseLost, StorageError
from pulsed.model.job import Lease, Status
from pulsed.model.outcome import Failed, Released, Report, Succeeded
from pulsed.model.step import StepKind, StepState
from pulsed.model.workflow import Record
from pulsed.store.sql.waiting import IS_WAITING
from pulsed.store.sql_store.store import SqlStore
from tests.support import guards
from tests.support.checkpoints import (
    CHILDREN_ONLY,
    a_family,
    a_step,
    a_wait,
    children_of,
    recorded,
    send,
    statuses,
    suspended,
    take,
)
from tests.support.guards import a_self_zombie, somebody_with_anothers_token, without
from tests.support.jobs import ALICE, BOB, claim, claim_one, row, running, settle

pytestmark = pytest.mark.embedded("takes guards out of the statements")

STATUS = "j.status = 'RUNNING'"
OWNER = "j.locked_by = r.worker"
TOKEN = "j.lease_token = r.token"
ALWAYS = "1 = 1"

check = partial(guards.check, fails=(AssertionError, StorageError))


# -- the fence of every write of a workflow -------------------------------------------------------


async def record_is_refused(store: SqlStore, lease: Lease) -> None:
    assert await store.workflows.record([Record(lease, a_step())]) == set()
    assert (await store.workflows.history(lease.job_id)).checkpoints == []


async def suspension_is_refused(store: SqlStore, lease: Lease) -> None:
    before = await row(store, lease.job_id)
    assert await store.settle([Report(lease, a_wait(StepKind.SLEEP, delay=60))]) == set()
    assert await row(store, lease.job_id) == before


async def refused(write: Awaitable[object]) -> None:
    try:
        await write
    except LeaseLost:
        return
    raise AssertionError("it went through")


async def children_are_refused(store: SqlStore, lease: Lease) -> None:
    children = children_of(lease.job_id, 1)
    await refused(store.workflows.add_children(lease, children))
    assert await store.get([children[0].id]) == {}


async def watching_is_refused(store: SqlStore, lease: Lease) -> None:
    await refused(store.workflows.watch(lease, lease.job_id))


WRITES = {
    "record": record_is_refused,
    "suspend": suspension_is_refused,
    "hold": children_are_refused,
    "about_to_wait": watching_is_refused,
}
STALE = {TOKEN: a_self_zombie, OWNER: somebody_with_anothers_token}


@pytest.mark.parametrize("write", list(WRITES))
@pytest.mark.parametrize("guard", [TOKEN, OWNER], ids=["token", "owner"])
async def test_every_write_of_a_workflow_is_fenced(backend, write, guard):
    async def scenario(store, backend):
        await WRITES[write](store, await STALE[guard](store))

    await check(backend, scenario, write, guard, instead=ALWAYS)


@pytest.mark.parametrize("write", list(WRITES))
async def test_the_status_fences_what_the_lease_was_left_on(backend, write):
    """A row that ends keeps its token, and loses its owner; here the owner's guard is gone too."""

    async def refuses(*removed: str) -> bool:
        store = backend.open()
        await store.now()
        backend.empty()
        without(store, write, *removed, instead=ALWAYS)
        run = await running(store)
        await settle(store, run, Failed("later", delay=60))
        try:
            await WRITES[write](store, run.lease)
        except (AssertionError, StorageError):
            return False
        finally:
            await store.aclose()
        return True

    assert await refuses(STATUS)
    assert await refuses(OWNER)
    assert not await refuses(STATUS, OWNER)


async def a_child_zombie(store: SqlStore) -> Lease:
    _, (zombie,) = await a_family(store, 1)
    await settle(store, zombie, Released())
    await claim(store, ALICE, topics=CHILDREN_ONLY)
    return zombie.lease


async def a_child_with_anothers_token(store: SqlStore) -> Lease:
    _, (run,) = await a_family(store, 1)
    return run.lease._replace(worker_id=BOB)


@pytest.mark.parametrize("guard", [TOKEN, OWNER], ids=["token", "owner"])
async def test_the_success_of_a_child_is_fenced(backend, guard):
    stale = a_child_zombie if guard == TOKEN else a_child_with_anothers_token

    async def scenario(store, backend):
        report = Report(await stale(store), Succeeded("7"), is_child=True)
        assert not await store.settle([report])

    await check(backend, scenario, "settle_children", guard, instead=ALWAYS)


async def test_the_status_fences_the_success_of_a_child_that_kept_its_owner(backend):
    async def scenario(store, backend):
        _, (run,) = await a_family(store, 1)
        await settle(store, run, Failed("x", final=True))
        mine = f"WHERE id = {backend.literal(run.job_id)}"
        backend.execute(f"UPDATE pulse_jobs SET locked_by = {backend.literal(ALICE)} {mine}")
        before = backend.row(run.job_id)
        await settle(store, run, Succeeded("7"))
        assert backend.row(run.job_id) == before

    await check(backend, scenario, "settle_children", STATUS, instead=ALWAYS)


async def test_a_child_that_somebody_else_waits_for_wakes_that_one_too(backend):
    async def scenario(store, backend):
        waiter = await running(store)
        parent, (child,) = await a_family(store, 1)
        await store.workflows.watch(waiter.lease, child.job_id)
        await suspended(store, waiter, StepKind.JOB, key=str(child.job_id))
        await suspended(store, parent, StepKind.FAN_OUT)
        await settle(store, child, Succeeded())
        both = [parent.job_id, waiter.job_id]
        assert await statuses(store, both) == [Status.PENDING, Status.PENDING]

    await check(backend, scenario, "settle_children", "AND j.watched IS NULL")


async def test_a_child_that_was_asked_to_stop_does_not_wait_but_wakes_its_parent(backend):
    async def scenario(store, backend):
        parent, (child,) = await a_family(store, 1)
        await suspended(store, parent, StepKind.FAN_OUT)
        await store.cancel([child.job_id])
        assert await suspended(store, child, StepKind.SLEEP, delay=60)
        both = [parent.job_id, child.job_id]
        assert await statuses(store, both) == [Status.PENDING, Status.CANCELLED]

    await check(backend, scenario, "suspend", "AND NOT j.cancel_requested")


# -- decisions ------------------------------------------------------------------------------------


async def test_what_is_decided_is_kept_by_the_state_alone(backend):
    async def scenario(store, backend):
        run = await running(store)
        await recorded(store, run, a_step(value="1"))
        await recorded(store, run, a_step(value="2"))
        assert (await store.workflows.history(run.job_id)).checkpoints[0].value == "1"

    await check(backend, scenario, "record", "WHERE s.state = 'OPEN'")


async def test_a_wait_that_is_decided_is_not_opened_again(backend):
    async def scenario(store, backend):
        run = await running(store)
        done = a_step("sleep", kind=StepKind.SLEEP, value=None)
        await recorded(store, run, done)
        before = (await store.workflows.history(run.job_id)).checkpoints
        await suspended(store, run, StepKind.SLEEP, delay=60)
        assert (await store.workflows.history(run.job_id)).checkpoints == before

    await check(backend, scenario, "open_waits", "WHERE s.state = 'OPEN'")


async def test_only_who_waits_is_woken(backend):
    async def scenario(store, backend):
        parent, (first, second) = await a_family(store, 2)
        await suspended(store, parent, StepKind.FAN_OUT, too_many=1)
        await settle(store, first, Failed("no", final=True))
        run = await claim_one(store)
        await settle(store, second, Failed("no", final=True))
        found = await row(store, parent.job_id)
        assert (found.status, found.locked_by) == (Status.RUNNING, run.lease.worker_id)

    await check(backend, scenario, "wake", f"AND {IS_WAITING}")


async def test_a_signal_that_was_consumed_wakes_nobody(backend):
    async def scenario(store, backend):
        run = await running(store)
        await send(store, run.job_id)
        await take(store, run.lease)
        await suspended(store, run, StepKind.SIGNAL, key="go")
        assert await statuses(store, [run.job_id]) == [Status.WAITING]

    await check(backend, scenario, "wake", "AND s.consumed_at IS NULL")


async def test_a_signal_is_consumed_once(backend):
    async def scenario(store, backend):
        run = await running(store)
        await send(store, run.job_id)
        first = await take(store, run.lease)
        assert first is not None
        assert first.state is StepState.DONE
        assert await take(store, run.lease, nth=2, seq=2) is None

    await check(backend, scenario, "oldest_signal", "AND consumed_at IS NULL")


@pytest.mark.parametrize("guard", ["parent_id IS NULL", "watched IS NULL"])
async def test_the_short_way_to_success_leaves_out_whom_others_wait_for(backend, guard):
    async def scenario(store, backend):
        waiter, target = await running(store), await running(store)
        if guard == "watched IS NULL":
            await store.workflows.watch(waiter.lease, target.job_id)
            await suspended(store, waiter, StepKind.JOB, key=str(target.job_id))
        else:  # a child whose id is not one of a child
            await suspended(store, waiter, StepKind.FAN_OUT, key="f|1", delay=60)
            mark = f"parent_id = {backend.literal(waiter.job_id)}, parent_step = 'f|1'"
            where = f"id = {backend.literal(target.job_id)}"
            backend.execute(f"UPDATE pulse_jobs SET {mark} WHERE {where}")
            backend.execute(
                f"UPDATE pulse_jobs SET status = 'WAITING' "
                f"WHERE id = {backend.literal(waiter.job_id)}"
            )
        await settle(store, target, Succeeded())
        assert await statuses(store, [waiter.job_id]) == [Status.PENDING]

    await check(backend, scenario, "settle_succeeded", f"AND j.{guard}")


async def test_a_running_child_is_told_once(backend):
    """Otherwise upkeep would find it again and again, and never come to others."""

    async def scenario(store, backend):
        parent, _ = await a_family(store, 1)
        await settle(store, parent, Failed("no", final=True))
        assert backend.row(parent.job_id)["cascades"] is None

    told = "AND NOT (c.status = 'RUNNING' AND c.cancel_requested)"
    await check(backend, scenario, "unmark_cascades", told)


@pytest.mark.parametrize("statement", ["mark_cascades", "untold_children"])
async def test_whoever_outlives_its_parent_is_spared(backend, statement):
    async def scenario(store, backend):
        parent = await running(store)
        spared, *others = children_of(parent.job_id, 2)
        spared = children_of(parent.job_id, 1, outlives=True)[0]
        family = [spared] if statement == "mark_cascades" else [spared, *others]
        await store.workflows.add_children(parent.lease, family)
        if statement == "mark_cascades":
            marked = []
            tell = store.tell_children

            async def counted():
                marked.append(True)
                await tell()

            store.tell_children = counted
            await settle(store, parent, Failed("no", final=True))
            assert not marked
        await settle(store, parent, Failed("no", final=True))
        assert await statuses(store, [spared.id]) == [Status.PENDING]

    await check(backend, scenario, statement, "AND (j.status = 'CANCELLED' OR c.outlives IS NULL)")


async def test_living_parents_keep_their_children(backend, clock):
    """Two guards of a prune check this: here neither does."""

    async def scenario(store, backend):
        _, (run,) = await a_family(store, 1)
        await settle(store, run, Succeeded())
        clock.advance(60)
        await store.prune({Status.SUCCEEDED: 1.0}, limit=10)
        await store.delete([run.job_id])
        assert await store.get([run.job_id])

    for statement in ("prune", "delete"):  # both have this guard, in words of their own
        await check(
            backend, scenario, statement, "j.parent_id IS NOT NULL AND", instead="1 = 0 AND"
        )
        backend.empty()


@pytest.mark.parametrize(
    "column, value, guard, instead",
    [
        ("kind", "'SIGNAL'", "AND s.kind = 'SLEEP'", ""),
        ("state", "'DONE'", "AND s.state = 'OPEN'", ""),
        ("until", "until - 2 * (until - started_at)", "AND s.until > ", "AND s.until <> "),
    ],
    ids=["a sleep", "open", "not over"],
)
async def test_a_job_that_is_run_now_ends_only_open_sleeps_that_are_not_over(
    backend, column, value, guard, instead
):
    """A deadline of another wait stays, and so does what is decided: a replay reads both."""

    async def scenario(store, backend):
        run = await running(store)
        await suspended(store, run, StepKind.SLEEP, delay=60)
        backend.execute(f"UPDATE pulse_checkpoints SET {column} = {value}")
        read = "SELECT kind, state, until FROM pulse_checkpoints"
        before = backend.execute(read)
        backend.clock.advance(1)
        assert await store.expedite([run.job_id]) == {run.job_id: (True, Status.WAITING)}
        assert backend.execute(read) == before

    await check(backend, scenario, "end_sleeps", guard, instead=instead)


async def test_a_job_that_is_run_now_leaves_the_sleeps_of_others_alone(backend):
    async def scenario(store, backend):
        first, second = await running(store), await running(store)
        for run in (first, second):
            await suspended(store, run, StepKind.SLEEP, delay=60)
        (before,) = (await store.workflows.history(second.job_id)).checkpoints
        backend.clock.advance(1)
        await store.expedite([first.job_id])
        assert (await store.workflows.history(second.job_id)).checkpoints == [before]

    await check(
        backend, scenario, "end_sleeps", "WHERE job_id ", instead=f"WHERE {ALWAYS} OR job_id "
    )
