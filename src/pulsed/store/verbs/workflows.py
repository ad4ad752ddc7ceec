"""The verbs of workflows: children, waiting for other jobs, signals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pulsed.errors import LeaseLost
from pulsed.model.job import Lease, NewJob, Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.step import Checkpoint, StepState
from pulsed.model.workflow import JobOutcome, Signal
from pulsed.store.sql import rows as decode
from pulsed.store.sql.statement import Row, Rows, Statement, one_column
from pulsed.store.verbs.checkpoints import checkpoint_values
from pulsed.store.verbs.effects import Effects, effects, wake
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, VerbKind, verb
from pulsed.store.verbs.submit import store_children
from pulsed.store.workflows import Signalled


class Cascaded(NamedTuple):
    """The numbers of parents handled and of children cancelled, and the effects on other jobs."""

    parents: int
    told: int
    effects: Effects


# -- children -------------------------------------------------------------------------------------


@verb(VerbKind.TRANSACTION)
def add_children(engine: Engine, lease: Lease, jobs: Sequence[NewJob]) -> Script[int]:
    """Insert the children of a run.

    The parent is locked last, and so for a short time: every batch of children that ends waits for
    that lock. Children are stored in the order in which they will be claimed, so that those of one
    claim are adjacent.
    """
    in_order = sorted(jobs, key=lambda job: job.id.int)
    count = yield from store_children(engine, in_order)
    yield from _hold(engine, lease)
    return count


@verb(VerbKind.READ)
def outcomes(engine: Engine, ids: Sequence[UUID]) -> Script[dict[UUID, JobOutcome]]:
    """Read the status and the outcome of jobs."""
    found = yield Statement(engine.waiting.outcomes, {}, one_column(ids))
    jobs = decode.job_outcome.all(engine.dialect, found)
    return {job.id: job for job in jobs}


@verb(VerbKind.TRANSACTION, looks_for_work=True)
def cascade(engine: Engine, limit: int) -> Script[Cascaded]:
    """Cancel the children of a batch of parents that ended without success."""
    parents = yield Statement(engine.families.pick_cascades, {"most": limit})
    told: list[Row] = []
    left = limit
    for (parent,) in parents:
        if left <= 0:
            break
        found = yield Statement(engine.families.untold_children, {"parent": parent, "most": left})
        left -= len(found)
        told += found
    locked = yield from engine.lock_free(job_id for (job_id,) in told)
    told = [row for row in told if locked.isdisjoint(row)]
    if told:
        told = list((yield Statement(engine.operators.cancel, {}, [tuple(row) for row in told])))
    done = 0
    if parents:
        [(done,)] = yield Statement(
            engine.families.unmark_cascades, {}, [tuple(row) for row in parents]
        )
    handled = len(parents) if told or done else 0  # 0: other sessions have them locked
    return Cascaded(handled, len(told), (yield from effects(engine, told)))


# -- waiting for another job ----------------------------------------------------------------------


@verb(VerbKind.SINGLE)
def about_to_wait(engine: Engine, lease: Lease, target: UUID) -> Script[None]:
    """Store which job a run is about to wait for."""
    if not (yield Statement(engine.waiting.about_to_wait, {"target": target}, [lease])):
        raise LeaseLost.of(lease.job_id)


@verb(VerbKind.SINGLE)
def watch(engine: Engine, target: UUID) -> Script[JobOutcome | None]:
    """Mark a job so that its end wakes its waiters; returns its status and outcome."""
    found = yield Statement(engine.waiting.watch, {"target": target})
    if not found:
        found = yield Statement(engine.waiting.outcomes, {}, [(target,)])
    return decode.job_outcome(engine.dialect, found[0]) if found else None


# -- signals --------------------------------------------------------------------------------------


@verb(VerbKind.TRANSACTION)
def signal(engine: Engine, sent: Signal) -> Script[tuple[Signalled, frozenset[str]]]:
    """Store a signal, and wake its job if it waits for it."""
    params = {"id": sent.id, "job": sent.job_id, "name": sent.name, "payload": sent.payload}
    found = yield Statement(engine.signals.lock_status, params)
    status = Status(found[0][0]) if found else None
    if status is None or status in TERMINAL:
        before = yield Statement(engine.signals.sent, params)  # by an unacknowledged try
        return Signalled(bool(before), status), frozenset()
    yield Statement(engine.signals.send, params)
    woken = frozenset[str]()
    if status is Status.WAITING:
        woken = yield from wake(engine, [sent.job_id])
    return Signalled(stored=True, status=status), woken


@verb(VerbKind.TRANSACTION)
def take_signal(
    engine: Engine, lease: Lease, name: str, checkpoint: Checkpoint
) -> Script[Checkpoint | None]:
    """Consume a signal as the value of a checkpoint, or time out; None if the wait goes on."""
    job = {"job": lease.job_id}
    key = job | {"name": checkpoint.name, "nth": checkpoint.nth}
    yield from _hold(engine, lease)
    stored, is_over = yield from _stored(engine, key)
    if stored is not None and stored.state is not StepState.OPEN:
        return stored
    values = checkpoint_values(lease, checkpoint)
    signals = yield Statement(engine.signals.oldest_signal, job | {"name": name})
    if signals:
        ((signal_id, payload),) = signals
        yield Statement(engine.signals.consume, job | {"name": name, "id": signal_id})
        values = _decided(values, StepState.DONE, payload)
    elif is_over or (yield from _is_past(engine, checkpoint.until)):
        values = _decided(values, StepState.TIMED_OUT, None)
    else:
        return None
    yield Statement(engine.checkpoints.record, {}, [values])
    written, _ = yield from _stored(engine, key)
    return written


def _stored(engine: Engine, key: dict[str, Any]) -> Script[tuple[Checkpoint | None, bool]]:
    """Read a checkpoint, and whether the deadline of its wait has passed."""
    found = yield Statement(engine.checkpoints.read_checkpoint, key)
    if not found:
        return None, False
    *columns, is_over = found[0]
    return decode.checkpoint(engine.dialect, columns), bool(is_over)


def _is_past(engine: Engine, instant: datetime | None) -> Script[bool]:
    if instant is None:
        return False
    return bool((yield Statement(engine.signals.is_past, {"instant": instant}))[0][0])


def _decided(values: tuple[Any, ...], state: StepState, value: str | None) -> tuple[Any, ...]:
    """Return the values of a checkpoint with another state and value."""
    return (*values[:7], state.value, values[8], value, *values[10:])


def _hold(engine: Engine, lease: Lease) -> Script[None]:
    held: Rows = yield Statement(engine.families.hold, {}, [lease])
    if not held:
        raise LeaseLost.of(lease.job_id)
