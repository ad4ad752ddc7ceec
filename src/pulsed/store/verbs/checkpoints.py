"""Checkpoints: read, and written under the leases of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pulsed.handler import clean_text
from pulsed.model.job import Lease
from pulsed.model.step import Checkpoint, StepKey
from pulsed.model.workflow import History, Record
from pulsed.store.sql import rows as decode
from pulsed.store.sql.statement import ANY_NUMBER, Statement
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.reads import clock
from pulsed.store.verbs.script import Script, VerbKind, verb


@verb(VerbKind.READ)
def history(
    engine: Engine, job_id: UUID, skip: int = 0, limit: int | None = None
) -> Script[History]:
    """Read a job's checkpoints, or a page of them."""
    wanted = Statement(engine.checkpoints.read_checkpoints, {"job": job_id})
    if skip or limit is not None:
        page = {"job": job_id, "skip": skip, "most": ANY_NUMBER if limit is None else limit}
        wanted = Statement(engine.checkpoints.read_some_checkpoints, page)
    now = yield from clock(engine)
    generation = yield Statement(engine.checkpoints.read_generation, {"job": job_id})
    found = yield wanted
    checkpoints = decode.checkpoint.all(engine.dialect, found)
    return History(checkpoints, generation[0][0] if generation else 0, now)


@verb(VerbKind.SINGLE, short_lock_wait=True)
def record(engine: Engine, records: Sequence[Record]) -> Script[set[Lease]]:
    """Write checkpoints; returns the leases that were held."""
    leases = {record.lease for record in records}
    [(count,)] = yield Statement(
        engine.checkpoints.record, {}, [checkpoint_values(*record) for record in records]
    )
    if count == len(records):
        return leases
    # Stored before, by an unacknowledged try; or the lease is lost.
    return {
        decode.lease(engine.dialect, row)
        for row in (yield Statement(engine.leases.still_held, {}, list(leases)))
    }


def recording(engine: Engine, lease: Lease, checkpoint: Checkpoint) -> Statement:
    """Return the statement that writes one checkpoint, the last of a step's transaction."""
    return Statement(engine.checkpoints.record, {}, [checkpoint_values(lease, checkpoint)])


@verb(VerbKind.TRANSACTION)
def was_recorded(engine: Engine, lease: Lease, key: StepKey) -> Script[bool]:
    """Whether a run has written a checkpoint; waits for a transaction in flight that may do so."""
    params = {"job": lease.job_id, "name": key.name, "nth": key.nth}
    yield Statement(engine.signals.lock_status, params)
    found = yield Statement(engine.checkpoints.recorded, params)
    return bool(found) and found[0][0] == lease.token


def checkpoint_values(lease: Lease, checkpoint: Checkpoint) -> tuple[Any, ...]:
    """Return a row of CHECKPOINT."""
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
