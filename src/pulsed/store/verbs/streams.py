"""Streams: items appended under the leases of runs, read, and trimmed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from pulsed.batches import text_size
from pulsed.model.job import Lease, Status
from pulsed.model.stream import KEPT_BYTES, KEPT_ITEMS, Emission, StreamItem, StreamPage
from pulsed.store.sql import rows as decode
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, VerbKind, verb


@verb(VerbKind.SINGLE, short_lock_wait=True)
def emit(engine: Engine, emissions: Sequence[Emission]) -> Script[set[Lease]]:
    """Append items; returns the leases that were held."""
    leases = {emission.lease for emission in emissions}
    rows = [row for emission in emissions for row in _rows_of(emission)]
    [(count,)] = yield Statement(engine.streams.emit, {}, rows)
    if count == len(rows):
        return leases
    # Stored before, by an unacknowledged try; or the lease is lost.
    return {
        decode.lease(engine.dialect, row)
        for row in (yield Statement(engine.leases.still_held, {}, list(leases)))
    }


@verb(VerbKind.READ)
def read_stream(engine: Engine, job_id: UUID, after: int, limit: int) -> Script[StreamPage]:
    """Read a job's status, and then items: what a run emitted is stored before the run's end."""
    found = yield Statement(engine.streams.status_of, {"job": job_id})
    status = Status(found[0][0]) if found else None
    params = {"job": job_id, "after": after, "most": limit}
    items = yield Statement(engine.streams.read_items, params)
    return StreamPage(decode.stream_item.all(engine.dialect, items), status)


@verb(VerbKind.READ)
def newest_items(engine: Engine, job_id: UUID, limit: int) -> Script[list[StreamItem]]:
    """Read the newest items, oldest first."""
    rows = yield Statement(engine.streams.read_newest, {"job": job_id, "most": limit})
    return decode.stream_item.all(engine.dialect, rows)[::-1]


@verb(VerbKind.TRANSACTION)
def trim_streams(engine: Engine, jobs: Sequence[UUID]) -> Script[None]:
    """Remove the oldest items of jobs beyond what is kept."""
    for job_id in jobs:
        params = {"job": job_id, "kept": KEPT_ITEMS, "bytes": KEPT_BYTES}
        yield Statement(engine.streams.trim_stream, params)


def _rows_of(emission: Emission) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of EMITTED."""
    for position, value in enumerate(emission.values, emission.first):
        yield (*emission.lease, position, emission.run, value, text_size(value))
