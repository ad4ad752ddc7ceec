"""Bulk operations: which batch comes next, and acting on it.

The batch is found by a read, so that no long scan holds a lock. The transaction that acts on it
begins by moving the operation's cursor from where the read began. Whoever cannot do that has lost
the batch to another process; so each job is visited once, whichever processes die in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from pulsed.errors import InvalidOption
from pulsed.model.audit import LONGEST_DETAIL, LONGEST_NAME, Operator, of_filter, printable
from pulsed.model.bulk import (
    LONGEST_ERROR,
    MOST_RUNNING,
    MOST_SKIPS,
    BulkAct,
    BulkKind,
    BulkRow,
    BulkState,
    Skip,
    SkipReason,
    arguments_text,
    filter_text,
)
from pulsed.model.job import JobFilter, Status
from pulsed.model.lifecycle import is_cancelled
from pulsed.store.sql import rows as decode
from pulsed.store.sql.jobs import LOWEST_ID
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.verbs import operators
from pulsed.store.verbs.effects import Effects
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.operators import Answers
from pulsed.store.verbs.reads import clock, read_all
from pulsed.store.verbs.script import Script, Verb, VerbKind, verb
from pulsed.store.verbs.search import first_id_before, matching_ids

BATCH = 500
"""Jobs in one transaction: some milliseconds, in which other writers wait on SQLite."""
SCANNED = 10
"""Jobs that are scanned for each one of a batch, if they do not match."""


class Batch(NamedTuple):
    """The next jobs of an operation, and where those after them begin; None: there are none."""

    row: BulkRow
    where: JobFilter
    act: BulkAct
    ids: list[UUID]
    next: UUID | None


class Performed(NamedTuple):
    """How far an operation is after a batch, and what the batch has caused."""

    row: BulkRow
    queues: Collection[str]
    told: Effects
    has_asked: bool
    """Running jobs were asked to stop."""


# -- starting, reading, ending --------------------------------------------------------------------


@verb(VerbKind.TRANSACTION, name="start_bulk")
def start(
    engine: Engine,
    bulk_id: UUID,
    act: BulkAct,
    where: JobFilter,
    by: Operator,
    *,
    total: int,
    is_at_least: bool,
) -> Script[BulkRow]:
    """Store an operation that begins at the highest id there is, and its entry in the audit log."""
    if known := (yield Statement(engine.bulk.read_bulk, {"id": bulk_id})):
        return decode.bulk(engine.dialect, known[0])
    yield from _check_number(engine)
    if act.delay is not None:
        now = yield from clock(engine)
        act = replace(act, at=now + timedelta(seconds=act.delay), delay=None)
    values = {
        "id": bulk_id,
        "kind": act.kind.value,
        "arguments": arguments_text(act),
        "filter": filter_text(where),
        "cursor": (yield from _watermark(engine, where)),
        "total": total,
        "is_at_least": is_at_least,
    }
    who = {name: printable(getattr(by, name), LONGEST_NAME) for name in _WHO}
    yield Statement(engine.bulk.insert_bulk, values | who)
    detail = printable(by.detail or of_filter(where), LONGEST_DETAIL)
    entry = {"id": bulk_id, "act": audit_name(act.kind), "affected": 0, "detail": detail}
    yield Statement(engine.audit_log.write_entry, entry | who)
    [row] = yield Statement(engine.bulk.read_bulk, {"id": bulk_id})
    return decode.bulk(engine.dialect, row)


_WHO = ("actor", "role", "claimed")


def _check_number(engine: Engine) -> Script[None]:
    [(running,)] = yield Statement(engine.bulk.count_running_bulk, {})
    if running >= MOST_RUNNING:
        raise InvalidOption(
            f"{running} bulk operations are in progress, which is the most: wait for one to end, "
            "or stop one. Nothing was started."
        )


def _watermark(engine: Engine, where: JobFilter) -> Script[UUID]:
    """Return the first id above all jobs that there are, or above those that may match."""
    newest = yield Statement(engine.searching.newest_id, {})
    if not newest:
        return LOWEST_ID
    highest = engine.dialect.uuid(newest[0][0])
    above = UUID(int=min(highest.int + 1, 2**128 - 1))
    return (yield from first_id_before(engine, where, above))


def audit_name(kind: BulkKind) -> str:
    """Return what the audit log calls an act."""
    return "run jobs now" if kind is BulkKind.RUN_NOW else f"{kind.verb} jobs"


@verb(VerbKind.READ, name="read_bulk")
def get(engine: Engine, bulk_id: UUID) -> Script[BulkRow | None]:
    """Read an operation."""
    found = yield Statement(engine.bulk.read_bulk, {"id": bulk_id})
    return decode.bulk(engine.dialect, found[0]) if found else None


def newest(engine: Engine, limit: int) -> Verb[list[BulkRow]]:
    """Read the latest operations."""
    query = Statement(engine.bulk.newest_bulk, {"most": limit})
    return read_all("read_bulk", engine, query, decode.bulk)


def skips(engine: Engine, bulk_id: UUID) -> Verb[list[Skip]]:
    """Read the jobs that an operation left as they are."""
    query = Statement(engine.bulk.read_skips, {"id": bulk_id, "most": MOST_SKIPS})
    return read_all("read_bulk", engine, query, decode.skip)


@verb(VerbKind.TRANSACTION, name="end_bulk")
def end(
    engine: Engine, bulk_id: UUID, state: BulkState, error: str | None = None
) -> Script[tuple[bool, BulkRow | None]]:
    """End an operation that is in progress; returns whether it was, and how it is now."""
    error = None if error is None else printable(error, LONGEST_ERROR)
    params = {"id": bulk_id, "state": state.value, "error": error}
    ended = yield Statement(engine.bulk.end_bulk, params)
    found = ended or (yield Statement(engine.bulk.read_bulk, {"id": bulk_id}))
    return bool(ended), decode.bulk(engine.dialect, found[0]) if found else None


# -- a batch --------------------------------------------------------------------------------------


@verb(VerbKind.READ, name="perform_bulk")
def next_batch(
    engine: Engine, performer: UUID, bulk_id: UUID | None, limit: int
) -> Script[Batch | None]:
    """Find the next jobs of an operation that no other process performs."""
    if (first := (yield from _first(engine, performer, bulk_id))) is None:
        return None
    row, where, act = first
    ids, following = yield from matching_ids(engine, where, limit, row.cursor, SCANNED * limit)
    return Batch(row, where, act, ids, following)


@verb(VerbKind.READ, name="perform_bulk")
def first_in_line(engine: Engine, performer: UUID) -> Script[BulkRow | None]:
    """Find the operation whose next batch would be performed."""
    first = yield from _first(engine, performer, None)
    return None if first is None else first[0]


def _first(
    engine: Engine, performer: UUID, bulk_id: UUID | None
) -> Script[tuple[BulkRow, JobFilter, BulkAct] | None]:
    params = {"performer": performer, "most": MOST_RUNNING}
    found = yield Statement(engine.bulk.to_perform, params)
    for row in decode.bulk.all(engine.dialect, found):
        if bulk_id in (None, row.id) and (known := _understood(row)):
            return row, *known
    return None


def _understood(row: BulkRow) -> tuple[JobFilter, BulkAct] | None:
    """Return what an operation is about, unless a newer program started it.

    What was submitted after its start is not part of it, even with a lower id.
    """
    try:
        where, act = row.where, row.act
    except (InvalidOption, msgspec.MsgspecError):
        return None
    until = row.started_at + timedelta(microseconds=1)
    if where.until is not None:
        until = min(until, where.until)
    return replace(where, until=until), act


def perform(
    engine: Engine, batch: Batch, performer: UUID, *, around_locks: bool = False
) -> Verb[Performed | None]:
    """Act on the jobs of a batch; None if another process has, or the operation was ended.

    ``around_locks`` skips jobs that another session has locked, instead of waiting for it.
    """
    bulk_id = batch.row.id
    cursor = {
        "id": bulk_id,
        "cursor": batch.row.cursor,
        "next": batch.next or LOWEST_ID,
        "performer": performer,
    }

    def script() -> Script[Performed | None]:
        moved = yield Statement(engine.bulk.move_cursor, cursor)
        if not moved:
            return None
        locked: set[UUID] = set()
        if around_locks:
            locked = yield from engine.lock_free(batch.ids)
        acted = yield from _act(engine, batch, [each for each in batch.ids if each not in locked])
        left = _skipped(batch, acted, locked)
        if some := left[: max(0, MOST_SKIPS - moved[0][0])]:
            yield Statement(engine.bulk.insert_skips, {"id": bulk_id}, [*map(_skip_row, some)])
        rows = yield from _count(engine, batch, done=len(batch.ids) - len(left), skipped=len(left))
        asked = batch.act.kind is BulkKind.CANCEL and _has_running(acted.answers)
        row = decode.bulk(engine.dialect, rows[0])
        return Performed(row, acted.queues, acted.told, asked)

    return Verb("perform_bulk", VerbKind.TRANSACTION, script, short_lock_wait=True)


class _Acted(NamedTuple):
    answers: Answers
    queues: Collection[str] = ()
    holders: Mapping[UUID, UUID] = MappingProxyType({})
    told: Effects = Effects()


def _act(engine: Engine, batch: Batch, ids: Sequence[UUID]) -> Script[_Acted]:
    """Act on the jobs that still match."""
    if ids:
        found = yield engine.searching.filtered(batch.where).still_match(ids)
        matching = {engine.dialect.uuid(job_id) for (job_id,) in found}
        ids = [each for each in ids if each in matching]
    if not ids:
        return _Acted({})
    if batch.act.kind is BulkKind.CANCEL:
        standing, told = yield from operators.cancel(engine, ids).script()
        return _Acted({key: (is_cancelled(now), now) for key, now in standing.items()}, told=told)
    return _Acted(*(yield from _verb(engine, batch.act, ids).script()))


def _verb(engine: Engine, act: BulkAct, ids: Sequence[UUID]) -> Verb[operators.Acted]:
    if act.changes_jobs:
        return operators.change(engine, ids, act)
    if act.kind is BulkKind.RETRY:
        return operators.replay(engine, ids, fresh=act.fresh)
    if act.kind is BulkKind.RUN_NOW:
        return operators.expedite(engine, ids)
    return operators.delete(engine, ids)


def _count(engine: Engine, batch: Batch, *, done: int, skipped: int) -> Script[Rows]:
    """Store what a batch did, in the operation and in the audit log."""
    if done:
        yield Statement(engine.bulk.add_to_audit, {"id": batch.row.id, "done": done})
    state = BulkState.DONE if batch.next is None else BulkState.RUNNING
    counts = {"id": batch.row.id, "done": done, "skipped": skipped, "state": state.value}
    return (yield Statement(engine.bulk.count_batch, counts))


def _skipped(batch: Batch, acted: _Acted, locked: set[UUID]) -> list[Skip]:
    return [
        _skip(batch.act.kind, job_id, acted, is_locked=job_id in locked)
        for job_id in batch.ids
        if not acted.answers.get(job_id, (False,))[0]
    ]


def _skip(kind: BulkKind, job_id: UUID, acted: _Acted, *, is_locked: bool) -> Skip:
    if is_locked:
        return Skip(job_id=job_id, reason=SkipReason.LOCKED)
    if job_id not in acted.answers:
        return Skip(job_id=job_id, reason=SkipReason.CHANGED)
    _, status = acted.answers[job_id]
    if job_id in acted.holders:
        holder = acted.holders[job_id]
        return Skip(job_id=job_id, status=status, reason=SkipReason.KEY, holder=holder)
    is_family = kind.removes_jobs and status in kind.allowed
    reason = SkipReason.FAMILY if is_family else SkipReason.STATUS
    return Skip(job_id=job_id, status=status, reason=reason)


def _skip_row(skip: Skip) -> tuple[UUID, Status | None, SkipReason, UUID | None]:
    return skip.job_id, skip.status, skip.reason, skip.holder


def _has_running(answers: Answers) -> bool:
    return any(status is Status.RUNNING for _, status in answers.values())
