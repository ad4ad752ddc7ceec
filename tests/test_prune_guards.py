"""The conditions of a prune and of its count, tested by removal: without one, a check must fail.

Each keeps a job that ended before another one, which is to go. A batch has one place: a prune that
lacks the condition removes the wrong job, or picks it without effect and leaves the other one.
"""

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from pulsed.model.job import Status
from pulsed.model.outcome import Cancelled, Failed, Succeeded
from tests.support.backends import Backend
from tests.support.checkpoints import a_family, children_of
from tests.support.guards import check
from tests.support.jobs import running, settle
from tests.test_store_prune import HOUR, ended

pytestmark = pytest.mark.embedded("takes guards out of the statements")

YEAR = 366 * 86_400.0
NEVER, ALWAYS = "1 = 0", "1 = 1"

SUCCEEDED, DEAD_LETTERED = Status.SUCCEEDED, Status.DEAD_LETTERED


async def a_child_of_a_running_parent(store) -> UUID:
    _, (child,) = await a_family(store, 1, parent={"lease": YEAR})
    await settle(store, child, Succeeded())
    return child.job_id


async def a_child_of_a_dead_letter(store) -> UUID:
    parent, (child,) = await a_family(store, 1)
    await settle(store, child, Succeeded())
    await settle(store, parent, Failed("no", final=True))
    return child.job_id


async def what_a_running_job_waits_for(store) -> UUID:
    waiter, target = await running(store, lease=YEAR), await running(store)
    assert await store.workflows.watch(waiter.lease, target.job_id)
    await settle(store, target, Succeeded())
    return target.job_id


async def what_a_dead_letter_waited_for(store) -> UUID:
    waiter, target = await running(store), await running(store)
    assert await store.workflows.watch(waiter.lease, target.job_id)
    await settle(store, target, Succeeded())
    await settle(store, waiter, Failed("no", final=True))
    return target.job_id


async def a_parent_whose_children_were_not_told(store) -> UUID:
    async def dies() -> None:
        pass

    parent = await running(store)
    await store.workflows.add_children(parent.lease, children_of(parent.job_id, 1))
    store.tell_children = dies
    await settle(store, parent, Failed("no", final=True))
    return parent.job_id


async def a_cancelled_job(store) -> UUID:
    run = await running(store)
    await settle(store, run, Cancelled())
    return run.job_id


@pytest.mark.parametrize("statement", ["prune", "prunable"])
@pytest.mark.parametrize(
    "make, status, guard, instead",
    [
        (a_child_of_a_running_parent, SUCCEEDED, "p.status <> 'SUCCEEDED'", NEVER),
        (a_child_of_a_dead_letter, SUCCEEDED, "p.status <> 'SUCCEEDED'", NEVER),
        (what_a_running_job_waits_for, SUCCEEDED, "w.status <> 'SUCCEEDED'", NEVER),
        (what_a_dead_letter_waited_for, SUCCEEDED, "w.status <> 'SUCCEEDED'", NEVER),
        (a_parent_whose_children_were_not_told, DEAD_LETTERED, "cascades IS NULL", ALWAYS),
        (a_cancelled_job, SUCCEEDED, "WHERE status = {status}", "WHERE {status} IS NOT NULL"),
    ],
)
async def test_each_condition_keeps_a_job(
    backend: Backend,
    clock,
    statement: str,
    make: Callable[[object], Awaitable[UUID]],
    status: Status,
    guard: str,
    instead: str,
):
    async def scenario(store, backend):
        kept = await make(store)
        clock.advance(1)
        (gone,) = await ended(store, status)
        clock.advance(HOUR + 1)
        ages = {status: HOUR}
        if statement == "prunable":
            assert await store.prunable(ages) == {status: 1}
        else:
            assert (await store.prune(ages, limit=1)).total == 1
            assert set(await store.get([kept, gone])) == {kept}

    named = {"status": {"sqlite": ":status", "postgres": "$1::text"}[backend.engine]}
    guard, instead = guard.format(**named), instead.format(**named)
    await check(backend, scenario, statement, guard, instead=instead)


async def test_only_jobs_whose_time_is_up_are_counted(backend: Backend, clock):
    async def scenario(store, backend):
        await ended(store)
        clock.advance(60)
        assert await store.prunable({SUCCEEDED: HOUR}) == {SUCCEEDED: 0}

    await check(backend, scenario, "prunable", "AND completed_at <", instead="AND completed_at <>")
