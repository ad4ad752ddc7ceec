"""The verbs of workflows: checkpoints, suspending, signals, children."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from pulsed.errors import LeaseLost
from pulsed.handler import clean_text
from pulsed.model.job import Lease, NewJob, Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.outcome import Report, Waiting
from pulsed.model.step import Checkpoint, StepKey, StepKind, StepState
from pulsed.model.workflow import Ended, History, Record, Signal
from pulsed.store.sql import rows as decode
from pulsed.store.sql.insertion import insertion
from pulsed.store.sql.jobs import Statements
from pulsed.store.sql.statement import ANY_NUMBER, Row, Rows, Statement, one_column
from pulsed.store.sql.workflows import WorkflowStatements
from pulsed.store.verbs.effects import Effects, Settled, effects, lock_free, wake
from pulsed.store.verbs.heartbeat import lease_of
from pulsed.store.verbs.reads import clock
from pulsed.store.verbs.script import Kind, Script, Verb
from pulsed.store.verbs.settle import settled_before, storable
from pulsed.store.workflows import Signalled


class Cascaded(NamedTuple):
    """How many parents were looked after, how many children told, and what that did to others."""

    parents: int
    told: int
    effects: Effects


# -- checkpoints ----------------------------------------------------------------------------------


def history(
    s: Statements, w: WorkflowStatements, job_id: UUID, skip: int = 0, limit: int | None = None
) -> Verb[History]:
    """Read what a job has done so far, or a page of it."""
    wanted = Statement(w.read_checkpoints, {"job": job_id})
    if skip or limit is not None:
        page = {"job": job_id, "skip": skip, "most": ANY_NUMBER if limit is None else limit}
        wanted = Statement(w.read_some_checkpoints, page)

    def script() -> Script[History]:
        now = yield from clock(s)
        generation = yield Statement(w.read_generation, {"job": job_id})
        found = yield wanted
        checkpoints = decode.checkpoint.all(s.dialect, found)
        return History(checkpoints, generation[0][0] if generation else 0, now)

    return Verb("history", Kind.READ, script)


def record(s: Statements, w: WorkflowStatements, records: Sequence[Record]) -> Verb[set[Lease]]:
    """Write checkpoints; the answer has the leases that were held."""

    def script() -> Script[set[Lease]]:
        leases = {record.lease for record in records}
        [(count,)] = yield Statement(w.record, {}, [_values(*record) for record in records])
        if count == len(records):
            return leases
        # Stored before, by a try whose answer was lost; or not ours any more.
        return {lease_of(s, row) for row in (yield Statement(s.still_held, {}, list(leases)))}

    return Verb("record", Kind.SINGLE, script, splits=True)


def recording(w: WorkflowStatements, lease: Lease, checkpoint: Checkpoint) -> Statement:
    """Return the statement that writes one checkpoint, for a transaction that ends with it."""
    return Statement(w.record, {}, [_values(lease, checkpoint)])


def was_recorded(w: WorkflowStatements, lease: Lease, key: StepKey) -> Verb[bool]:
    """Whether a run has written a checkpoint; waits for a transaction that may just be doing so."""
    params = {"job": lease.job_id, "name": key.name, "nth": key.nth}

    def script() -> Script[bool]:
        yield Statement(w.lock_status, params)
        found = yield Statement(w.recorded, params)
        return bool(found) and found[0][0] == lease.token

    return Verb("was_recorded", Kind.TRANSACTION, script)


def _values(lease: Lease, checkpoint: Checkpoint) -> tuple[Any, ...]:
    return (
        *lease,
        checkpoint.name,
        checkpoint.nth,
        checkpoint.seq,
        checkpoint.kind.value,
        checkpoint.state.value,
        checkpoint.input_hash,
        checkpoint.value,
        None if checkpoint.error is None else clean_text(checkpoint.error),
        checkpoint.tries,
        float(checkpoint.took),
    )


# -- suspending -----------------------------------------------------------------------------------


def suspend(s: Statements, w: WorkflowStatements, reports: Sequence[Report]) -> Verb[Settled]:
    """Let runs wait without a slot. What has come meanwhile wakes them at once.

    The answer has the accepted ones; those that were asked to stop are for ``settle``.
    """
    waits = {
        report.lease: report.outcome for report in reports if isinstance(report.outcome, Waiting)
    }

    def script() -> Script[Settled]:
        values = [_suspension(lease, outcome) for lease, outcome in waits.items()]
        suspended = yield Statement(w.suspend, {}, values)
        under = {(s.dialect.uuid(job_id), token) for job_id, token in suspended}
        accepted = {lease for lease in waits if lease[:2] in under}
        queues: frozenset[str] = frozenset()
        begun = [(lease, outcome) for lease, outcome in waits.items() if lease in accepted]
        if begun:
            opened = [_values(lease, outcome.checkpoint) for lease, outcome in begun]
            yield Statement(w.open_waits, {}, opened)
            wakeable = {lease.job_id for lease, o in begun if o.wait.kind is not StepKind.SLEEP}
            queues = yield from wake(w, wakeable, locked=True)
        missing = [report for report in reports if report.lease not in accepted]
        if missing:
            accepted |= yield from settled_before(s, missing)
        return Settled(accepted, Effects(queues))

    return Verb("suspend", Kind.TRANSACTION, script, splits=True)


def _suspension(lease: Lease, outcome: Waiting) -> tuple[Any, ...]:
    wait = outcome.wait
    awaited = UUID(wait.key) if wait.kind is StepKind.JOB else None
    return (
        *lease,
        wait.kind.value,
        None if awaited else wait.key,
        awaited,
        wait.enough,
        wait.too_many,
        storable(wait.delay),
        wait.until,
    )


# -- children -------------------------------------------------------------------------------------


def add_children(
    s: Statements, w: WorkflowStatements, lease: Lease, jobs: Sequence[NewJob]
) -> Verb[int]:
    """Insert the children of a run.

    The parent is locked last, and so for a short time: each batch of children that ends waits for
    it. Children are stored in the order in which they will be claimed, so that those of one claim
    lie side by side.
    """

    def script() -> Script[int]:
        [(count,)] = yield insertion(s, sorted(jobs, key=lambda job: job.id.int))
        yield from _hold(w, lease)
        return int(count)

    return Verb("add_children", Kind.TRANSACTION, script)


def outcomes(w: WorkflowStatements, ids: Sequence[UUID]) -> Verb[dict[UUID, Ended]]:
    """Read how far jobs are."""

    def script() -> Script[dict[UUID, Ended]]:
        found = yield Statement(w.outcomes, {}, one_column(ids))
        jobs = decode.ended.all(w.dialect, found)
        return {job.id: job for job in jobs}

    return Verb("outcomes", Kind.READ, script)


def cascade(s: Statements, w: WorkflowStatements, limit: int) -> Verb[Cascaded]:
    """Tell the children of some parents that ended without success."""

    def script() -> Script[Cascaded]:
        parents = yield Statement(w.pick_cascades, {"most": limit})
        told: list[Row] = []
        left = limit
        for (parent,) in parents:
            if left <= 0:
                break
            found = yield Statement(w.untold_children, {"parent": parent, "most": left})
            left -= len(found)
            told += found
        locked = yield from lock_free(w, [row[0] for row in told])
        told = [row for row in told if row[0] not in locked]
        if told:
            told = list((yield Statement(s.cancel, {}, [tuple(row) for row in told])))
        done = 0
        if parents:
            [(done,)] = yield Statement(w.unmark_cascades, {}, [tuple(row) for row in parents])
        looked_after = len(parents) if told or done else 0  # else all is held by somebody else
        return Cascaded(looked_after, len(told), (yield from effects(w, told)))

    return Verb("cascade", Kind.TRANSACTION, script)


# -- waiting for another job ----------------------------------------------------------------------


def about_to_wait(w: WorkflowStatements, lease: Lease, target: UUID) -> Verb[None]:
    """Say whose end a run is going to wait for."""

    def script() -> Script[None]:
        if not (yield Statement(w.about_to_wait, {"target": target}, [lease])):
            raise LeaseLost.of(lease.job_id)

    return Verb("about_to_wait", Kind.SINGLE, script)


def watch(w: WorkflowStatements, target: UUID) -> Verb[Ended | None]:
    """Have the end of a job wake those who wait for it, and read how far it is."""

    def script() -> Script[Ended | None]:
        found = yield Statement(w.watch, {"target": target})
        if not found:
            found = yield Statement(w.outcomes, {}, [(target,)])
        return decode.ended(w.dialect, found[0]) if found else None

    return Verb("watch", Kind.SINGLE, script)


# -- signals --------------------------------------------------------------------------------------


def signal(w: WorkflowStatements, sent: Signal) -> Verb[tuple[Signalled, frozenset[str]]]:
    """Store a signal, and wake its job if it waits for it."""
    params = {"id": sent.id, "job": sent.job_id, "name": sent.name, "payload": sent.payload}

    def script() -> Script[tuple[Signalled, frozenset[str]]]:
        found = yield Statement(w.lock_status, params)
        status = Status(found[0][0]) if found else None
        if status is None or status in TERMINAL:
            before = yield Statement(w.sent, params)  # its answer may have been lost
            return Signalled(bool(before), status), frozenset()
        yield Statement(w.send, params)
        woken = frozenset[str]()
        if status is Status.WAITING:
            woken = yield from wake(w, [sent.job_id])
        return Signalled(stored=True, status=status), woken

    return Verb("signal", Kind.TRANSACTION, script)


def take_signal(
    w: WorkflowStatements, lease: Lease, name: str, checkpoint: Checkpoint
) -> Verb[Checkpoint | None]:
    """Consume a signal as the value of a checkpoint, or let the wait for it end."""
    job = {"job": lease.job_id}
    key = job | {"name": checkpoint.name, "nth": checkpoint.nth}

    def script() -> Script[Checkpoint | None]:
        yield from _hold(w, lease)
        stored, is_over = yield from _stored(w, key)
        if stored is not None and stored.state is not StepState.OPEN:
            return stored
        values = _values(lease, checkpoint)
        signals = yield Statement(w.oldest_signal, job | {"name": name})
        if signals:
            ((signal_id, payload),) = signals
            yield Statement(w.consume, job | {"name": name, "id": signal_id})
            values = _decided(values, StepState.DONE, payload)
        elif is_over or (yield from _is_past(w, checkpoint.until)):
            values = _decided(values, StepState.TIMED_OUT, None)
        else:
            return None
        yield Statement(w.record, {}, [values])
        written, _ = yield from _stored(w, key)
        return written

    return Verb("take_signal", Kind.TRANSACTION, script)


def _stored(w: WorkflowStatements, key: dict[str, Any]) -> Script[tuple[Checkpoint | None, bool]]:
    """Read a checkpoint, and whether the time of its wait is over."""
    found = yield Statement(w.read_checkpoint, key)
    if not found:
        return None, False
    *columns, is_over = found[0]
    return decode.checkpoint(w.dialect, columns), bool(is_over)


def _is_past(w: WorkflowStatements, instant: datetime | None) -> Script[bool]:
    if instant is None:
        return False
    return bool((yield Statement(w.is_past, {"instant": instant}))[0][0])


def _decided(values: tuple[Any, ...], state: StepState, value: str | None) -> tuple[Any, ...]:
    """Return the values of a checkpoint with another state and value."""
    return (*values[:7], state.value, values[8], value, *values[10:])


def _hold(w: WorkflowStatements, lease: Lease) -> Script[None]:
    held: Rows = yield Statement(w.hold, {}, [lease])
    if not held:
        raise LeaseLost.of(lease.job_id)
