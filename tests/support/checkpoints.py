"""Short words for what tests of workflows do: checkpoints, waits, families."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pulsed.model.ids import new_job_id
from pulsed.model.job import Assignment, Lease, NewJob, Status
from pulsed.model.outcome import Report, Waiting
from pulsed.model.step import Checkpoint, StepKey, StepKind, StepState, Wait
from pulsed.model.workflow import Record, Signal, child_id, family
from pulsed.store.base import Store
from pulsed.store.workflows import Signalled
from tests.support.jobs import ALICE, a_policy, claim, running

CHILD = "child"
FAMILY = family(StepKey("fan_out", 1))

CHILDREN_ONLY = [a_policy(CHILD)]


def a_step(name: str = "charge", nth: int = 1, seq: int = 1, **says: Any) -> Checkpoint:
    """Return a step that came to its end."""
    values: dict[str, Any] = {"kind": StepKind.STEP, "value": "1"}
    return Checkpoint(name=name, nth=nth, seq=seq, **values | says)


def opened(kind: StepKind, seq: int = 1, **says: Any) -> Checkpoint:
    """Return the beginning of a wait."""
    values: dict[str, Any] = {"name": kind.value.lower(), "nth": 1, "state": StepState.OPEN}
    return Checkpoint(**values | {"seq": seq, "kind": kind} | says)


async def recorded(store: Store, run: Assignment, *checkpoints: Checkpoint) -> bool:
    """Write a run's checkpoints; False if its lease is lost."""
    records = [Record(run.lease, checkpoint) for checkpoint in checkpoints]
    return await store.workflows.record(records) == {run.lease}


async def suspended(store: Store, run: Assignment, kind: StepKind, **says: Any) -> bool:
    """Let a run wait; False if its lease is lost."""
    report = Report.of(run, a_wait(kind, **says))
    return run.lease in await store.settle([report])


def a_wait(kind: StepKind, **says: Any) -> Waiting:
    """Return the outcome of a run that waits."""
    if kind is StepKind.FAN_OUT:
        says = {"key": FAMILY} | says
    return Waiting(Wait(kind=kind, **says), opened(kind))


def children_of(parent: UUID, count: int, **options: Any) -> list[NewJob]:
    """Return the jobs of a parent's only fan-out."""
    values: dict[str, Any] = {"topic": CHILD, "payload": "{}", "parent_step": FAMILY}
    return [
        NewJob(id=child_id(parent, FAMILY, index), parent_id=parent, **values | options)
        for index in range(count)
    ]


async def a_family(
    store: Store, count: int, *, parent: dict[str, Any] | None = None, **options: Any
) -> tuple[Assignment, list[Assignment]]:
    """Return the run of a parent, and those of all of its children."""
    run = await running(store, **parent or {})
    await store.workflows.add_children(run.lease, children_of(run.job_id, count, **options))
    return run, await claimed_children(store, run.job_id, count)


async def claimed_children(store: Store, parent: UUID, count: int) -> list[Assignment]:
    """Claim all children of a parent, and return their runs in the order of the calls."""
    runs = await claim(store, ALICE, topics=CHILDREN_ONLY, limit=count)
    order = [child.id for child in children_of(parent, count)]
    assert sorted(order) == sorted(run.job_id for run in runs)
    return sorted(runs, key=lambda run: order.index(run.job_id))


async def statuses(store: Store, ids: Sequence[UUID]) -> list[Status]:
    """Return where jobs stand, in the order asked for."""
    found = await store.get(list(ids))
    return [found[job_id].status for job_id in ids]


async def send(
    store: Store, job_id: UUID, name: str = "go", payload: str = "true", **says: Any
) -> Signalled:
    """Send a signal."""
    values: dict[str, Any] = {"id": new_job_id()}
    return await store.workflows.signal(
        Signal(job_id=job_id, name=name, payload=payload, **values | says)
    )


async def take(
    store: Store, lease: Lease, name: str = "go", nth: int = 1, seq: int = 1
) -> Checkpoint | None:
    """Consume a signal."""
    asked = Checkpoint(name="signal", nth=nth, seq=seq, kind=StepKind.SIGNAL)
    return await store.workflows.take_signal(lease, name, asked)
