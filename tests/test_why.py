"""Every reason for which a job does not run: ``app.jobs.why`` names it, on every store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

import pytest

from pulsed import Pulse, Rate
from pulsed.model.audit import Operator
from pulsed.model.control import ControlScope, Numbers
from pulsed.model.job import WorkerInfo
from pulsed.model.outcome import Failed
from pulsed.store.base import Store
from tests.support.clock import Clock
from tests.support.jobs import (
    ALICE,
    EVERYTHING,
    TOPIC,
    a_job,
    claim,
    claim_one,
    settle,
    submitted,
)


class Case(NamedTuple):
    """A job that waits, and what has to be said of it, one part for each sentence."""

    job: UUID
    says: Sequence[str]


Situation = Callable[[Store, Clock], Awaitable[Case]]
SITUATIONS: dict[str, Situation] = {}


def situation(make: Situation) -> Situation:
    """Add a situation to the table."""
    SITUATIONS[make.__name__] = make
    return make


async def two(store: Store, **options: str) -> tuple[UUID, UUID]:
    """Return a job that a worker has claimed, and one that waits behind it."""
    waiting = {await submitted(store, **options), await submitted(store, **options)}
    (run,) = await claim(store)
    (behind,) = waiting - {run.job_id}
    return run.job_id, behind


@situation
async def its_queue_is_paused(store: Store, _: Clock) -> Case:
    await store.controls.pause(ControlScope.QUEUE, "default", by=Operator("ada"))
    return Case(await submitted(store), ["its queue 'default' was paused by "])


@situation
async def its_topic_is_paused(store: Store, _: Clock) -> Case:
    await store.controls.pause(ControlScope.TOPIC, TOPIC)
    return Case(await submitted(store), [f"`pulsed topics resume {TOPIC}`"])


@situation
async def its_limit_is_paused(store: Store, _: Clock) -> Case:
    await store.controls.pause(ControlScope.LIMIT, "api", by=Operator("ada"))
    return Case(await submitted(store, limit_key="api,acme"), ["its limit 'api' was paused by "])


@situation
async def others_hold_its_limit(store: Store, _: Clock) -> Case:
    await store.controls.declare(ControlScope.LIMIT, {"api": Numbers(running=1)})
    holder, waiting = await two(store, limit_key="api,acme")
    return Case(waiting, [f"its limit 'api,acme' allows 1 job at once, and these run: {holder}"])


@situation
async def the_one_before_it_runs(store: Store, _: Clock) -> Case:
    await store.controls.declare(ControlScope.LIMIT, {"api": Numbers(sequential=True)})
    holder, waiting = await two(store, limit_key="api")
    return Case(waiting, [f"its limit 'api' allows 1 job at once, and these run: {holder}"])


@situation
async def the_one_before_it_is_retried(store: Store, _: Clock) -> Case:
    await store.controls.declare(ControlScope.LIMIT, {"api": Numbers(sequential=True)})
    await store.submit([a_job(limit_key="api"), a_job(limit_key="api")])
    (run,) = await claim(store)
    await settle(store, run, Failed("boom"))
    (waiting,) = [each for each in await store.list_jobs(EVERYTHING) if each.id != run.job_id]
    return Case(
        waiting.id,
        [f"runs jobs in order, and {run.job_id} keeps its turn until it ends: it is RETRYING"],
    )


@situation
async def the_rate_of_its_limit_is_used_up(store: Store, clock: Clock) -> Case:
    await store.controls.declare(ControlScope.LIMIT, {"api": Numbers(rate=Rate(1, per=60))})
    _, waiting = await two(store, limit_key="api")
    clock.advance(15)
    return Case(
        waiting, ["its limit 'api' has a rate 1 per 60 s, 1 at once: the next may start in 45 s"]
    )


@situation
async def its_queue_runs_as_many_as_it_may(store: Store, _: Clock) -> Case:
    await store.controls.override(ControlScope.QUEUE, "default", Numbers(running=1))
    holder, waiting = await two(store)
    return Case(waiting, [f"its queue 'default' runs 1 job, and its limit is 1: {holder}"])


@situation
async def the_rate_of_its_queue_is_used_up(store: Store, clock: Clock) -> Case:
    await store.controls.override(ControlScope.QUEUE, "default", Numbers(rate=Rate(1, per=60)))
    _, waiting = await two(store)
    clock.advance(15)
    return Case(
        waiting,
        ["its queue 'default' has a rate 1 per 60 s, 1 at once: the next may start in 45 s"],
    )


@situation
async def it_is_paused_and_limited_in_several_ways(store: Store, _: Clock) -> Case:
    await store.controls.pause(ControlScope.QUEUE, "default")
    await store.controls.pause(ControlScope.TOPIC, TOPIC)
    await store.controls.pause(ControlScope.LIMIT, "api")
    job = await submitted(store, limit_key="api")
    return Case(
        job, ["its queue 'default' was paused", f"its topic '{TOPIC}' was", "its limit 'api'"]
    )


@situation
async def it_expires(store: Store, clock: Clock) -> Case:
    job = await submitted(store, expires_at=clock() + timedelta(seconds=60))
    clock.advance(20)
    return Case(job, ["it should start any moment", "it expires in 40 s unless it starts"])


@situation
async def it_has_expired_and_was_not_ended_yet(store: Store, clock: Clock) -> Case:
    job = await submitted(store, expires_at=clock() + timedelta(seconds=10))
    clock.advance(20)
    return Case(job, ["it has expired, so no worker starts it any more"])


@situation
async def it_has_expired(store: Store, clock: Clock) -> Case:
    job = await submitted(store, expires_at=clock() + timedelta(seconds=10))
    clock.advance(20)
    await store.expire()
    return Case(job, ["before any worker started it"])


@situation
async def it_is_due_later(store: Store, _: Clock) -> Case:
    await store.controls.pause(ControlScope.QUEUE, "default")
    return Case(await submitted(store, delay=3_600), ["it is due in 60 min"])


@situation
async def no_worker_takes_from_its_queue(store: Store, _: Clock) -> Case:
    return Case(
        await submitted(store, queue="other"), ["no live worker takes from the queue 'other'"]
    )


@situation
async def no_worker_has_its_handler(store: Store, _: Clock) -> Case:
    return Case(await submitted(store, topic="other"), ["has a handler for 'other'"])


@situation
async def another_job_has_taken_its_key(store: Store, _: Clock) -> Case:
    job = await submitted(store, key="invoice-7")
    await store.cancel([job])
    holder = await submitted(store, key="invoice-7")
    return Case(job, [f"job {holder}, which is PENDING, has taken its key 'invoice-7'"])


@situation
async def it_runs(store: Store, _: Clock) -> Case:
    await submitted(store)
    run = await claim_one(store)
    return Case(run.job_id, ["runs it; its lease ends in"])


@pytest.mark.parametrize("name", SITUATIONS)
async def test_why_names_the_reason(store: Store, clock: Clock, name: str):
    job, says = await SITUATIONS[name](store, clock)
    worker = WorkerInfo(
        id=ALICE, host="h", pid=1, queues=("default",), topics=(TOPIC,), slots=10, state="running"
    )
    await store.announce(worker)
    found = await Pulse.over(store, "sqlite://").jobs.awhy(job)
    assert len(found) == len(says), found
    assert all(part in sentence for part, sentence in zip(says, found, strict=True)), found
