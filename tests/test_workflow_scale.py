"""Many children, and many sleepers: woken once, and held nowhere."""

import gc
import weakref
from typing import Any

import pytest

from pulsed.engine.context import Context
from pulsed.model.job import JobFilter, Status
from pulsed.model.outcome import Report, Succeeded
from pulsed.model.step import StepKind
from tests.support.checkpoints import CHILDREN_ONLY, children_of, statuses, suspended
from tests.support.clock import Clock
from tests.support.jobs import claim, claim_one, running, settle
from tests.support.workers import handler, submit_many, until, working

CHILDREN = 10_000
SLEEPERS = 1_000


@pytest.mark.embedded("counts what transactions did")
async def test_ten_thousand_children_wake_their_parent_once(backend):
    store = backend.open()
    woken: list[int] = []
    perform = store.perform

    async def counting(verb: Any) -> Any:
        answer = await perform(verb)
        if verb.name == "settle" and (effects := getattr(answer, "effects", None)):
            woken.append(len(effects.queues))
        return answer

    parent = await running(store)
    for some in chunks(children_of(parent.job_id, CHILDREN), 1_000):
        await store.workflows.add_children(parent.lease, some)
    await suspended(store, parent, StepKind.FAN_OUT, too_many=1)
    store.perform = counting
    ended = 0
    while runs := await claim(store, topics=CHILDREN_ONLY, limit=500):
        assert await statuses(store, [parent.job_id]) == [Status.WAITING]
        reports = [Report.of(run, Succeeded("1")) for run in runs]
        ended += len(await store.settle(reports))
    assert ended == CHILDREN
    assert (sum(woken), woken[-1]) == (1, 1)
    counts = await store.counts(JobFilter(parent=parent.job_id))
    assert counts[Status.SUCCEEDED] == CHILDREN
    again = await claim_one(store)
    assert (again.job_id, again.attempt) == (parent.job_id, 1)
    assert await settle(store, again, Succeeded())
    await store.aclose()


def chunks(jobs: list[Any], size: int) -> list[list[Any]]:
    return [jobs[start : start + size] for start in range(0, len(jobs), size)]


@pytest.mark.embedded("is about a worker, and the same behind a server")
async def test_a_thousand_sleepers_hold_no_slot_and_nothing_in_memory(store: Any, clock: Clock):
    contexts: weakref.WeakSet[Context] = weakref.WeakSet()

    async def sleeper(ctx: Context, n: int) -> int:
        contexts.add(ctx)
        await ctx.sleep(3600)
        return n

    ids = await submit_many(store, "sleeper", SLEEPERS)

    async def all_are(status: Status) -> bool:
        return bool((await store.counts(JobFilter()))[status] == SLEEPERS)

    async with working(store, handler(sleeper, max_attempts=1), concurrency=10) as it:
        await until(lambda: all_are(Status.WAITING))
        await until(lambda: not it.worker._runner.runs)
        await until(lambda: gc.collect() >= 0 and len(contexts) <= 10, what="all were let go")
        clock.advance(3600)
        await until(lambda: all_are(Status.SUCCEEDED))
    found = await store.get(ids)
    assert {found[job_id].attempts for job_id in ids} == {1}
