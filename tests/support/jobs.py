"""Short words for what nearly every store test does: make a job, claim it, end it."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID, uuid4

from pulsed.model.backoff import Backoff
from pulsed.model.ids import new_job_id
from pulsed.model.job import Assignment, JobFilter, JobRow, Lease, NewJob, Status, TopicPolicy
from pulsed.model.outcome import Outcome, Report
from pulsed.store.base import Store
from pulsed.store.blocking import is_blocking, run_blocking
from pulsed.store.results import Assignments
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.script import Script, Verb, VerbKind

TOPIC = "email"
ALICE = UUID(int=0xA11CE)
BOB = UUID(int=0xB0B)

EVERYTHING = JobFilter()
DEAD_LETTERS = JobFilter(status=(Status.DEAD_LETTERED,))


def a_job(**options: Any) -> NewJob:
    """Return a job of the usual topic, different from all others."""
    values: dict[str, Any] = {"id": new_job_id(), "topic": TOPIC, "payload": "{}"}
    return NewJob(**values | options)


def a_policy(topic: str = TOPIC, **options: Any) -> TopicPolicy:
    """Return what a worker says about its topic."""
    return TopicPolicy(topic=topic, **options)


POLICIES = [a_policy()]


async def submitted(store: Store, **options: Any) -> UUID:
    """Submit one job and return its id."""
    job = a_job(**options)
    assert (await store.submit([job])).new == 1
    return job.id


async def claim(
    store: Store,
    worker: UUID = ALICE,
    *,
    queue: str = "default",
    topics: Sequence[TopicPolicy] = POLICIES,
    limit: int = 10,
) -> Assignments:
    """Claim as a worker would."""
    return await store.claim(worker, queue, topics, limit)


async def claim_one(store: Store, worker: UUID = ALICE, **options: Any) -> Assignment:
    """Claim the only job there is to claim."""
    (assignment,) = await claim(store, worker, **options)
    return assignment


async def running(store: Store, worker: UUID = ALICE, **options: Any) -> Assignment:
    """Submit a job and have a worker claim it."""
    job_id = await submitted(store, **options)
    assignment = await claim_one(store, worker, topics=[a_policy(options.get("topic", TOPIC))])
    assert assignment.job_id == job_id
    return assignment


async def settle(store: Store, lease: Lease | Assignment, outcome: Outcome) -> bool:
    """Report how one run ended; True if the report was accepted."""
    report = Report.of(lease, outcome) if isinstance(lease, Assignment) else Report(lease, outcome)
    return report.lease in await store.settle([report])


async def row(store: Store, job_id: UUID) -> JobRow:
    """Read one job that must exist."""
    return (await store.get([job_id]))[job_id]


async def reap(store: Store, limit: int = 500) -> list[UUID]:
    """Let a watchdog scan that never had a gap; returns what it reaped."""
    await never_away(store)
    tick = await store.watchdog(limit=limit)
    assert not tick.in_grace
    return [reaped.job_id for reaped in tick.reaped]


async def never_away(store: Any) -> None:
    """Record that a watchdog has just scanned, and that there was never a gap."""
    d: Dialect = store.dialect

    def script() -> Script[None]:
        yield Statement(d.sql(f"DELETE FROM {d.ticks}"), {})
        insert = f"INSERT INTO {d.ticks} VALUES (:id::uuid, {d.now}, {d.now})"
        yield Statement(d.sql(insert), {"id": uuid4()})

    verb = Verb("never_away", VerbKind.TRANSACTION, script)
    behind = store.server.store if store.is_remote else store
    if store.is_remote and not is_blocking():  # its loop is another thread's
        await asyncio.to_thread(run_blocking, behind.run(verb))
    else:
        await behind.run(verb)


def a_worker_id() -> UUID:
    """Return the id of one more worker."""
    return uuid4()


def one_attempt(**options: Any) -> dict[str, Any]:
    """Return the options of a job whose first failure is its last."""
    return {"max_attempts": 1} | options


NO_WAIT = Backoff.fixed(0)


def ids(assignments: Iterable[Assignment]) -> list[UUID]:
    """Return the jobs of assignments, in their order."""
    return [assignment.job_id for assignment in assignments]
