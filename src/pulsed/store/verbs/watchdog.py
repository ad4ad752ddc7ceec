"""The watchdog: a failure report that the worker did not live to make."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from pulsed.model.job import Status
from pulsed.model.outcome import INTERRUPTED, LEASE_EXPIRED, LEASE_EXPIRED_TOGETHER
from pulsed.store.base import Reaped, WatchdogTick
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import Statements
from pulsed.store.sql.statement import Row, Rows, Statement, one_column
from pulsed.store.sql.workflows import WorkflowStatements
from pulsed.store.verbs.effects import Effects, lock_free, run_effects
from pulsed.store.verbs.script import Kind, Script, Verb
from pulsed.store.verbs.settle import record_failures
from pulsed.store.verbs.ticks import Tick, Ticks

SILENT_WORKERS_ARE_FORGOTTEN_AFTER = 86_400.0


def watchdog(
    s: Statements, w: WorkflowStatements, limit: int
) -> Verb[tuple[WatchdogTick, Effects]]:
    """Leave a tick, then end the runs of silent workers as failures."""

    def script() -> Script[tuple[WatchdogTick, Effects]]:
        ticks = yield from _look(s)
        yield Statement(s.forget_workers, {"age": SILENT_WORKERS_ARE_FORGOTTEN_AFTER})
        expiries = []
        in_grace = False
        for lease_ms, last in (yield Statement(s.expired, {})):
            before = ticks.reaped_before(timedelta(milliseconds=lease_ms))
            in_grace |= s.dialect.time(last) >= before
            expiries.append((lease_ms, before))
        if not expiries:
            return WatchdogTick([], in_grace=False), Effects()
        left_alone = yield from _with_locked_families(s, w, expiries)
        ended = yield Statement(s.reap, {"most": limit, "left_alone": left_alone}, expiries)
        yield from record_failures(s, map(_failure, ended))
        if ended:
            yield Statement(s.note_shared, {}, one_column(row[7] for row in ended))
        uid = s.dialect.uuid
        reaped = [Reaped(uid(row[0]), row[8], Status(row[1]), uid(row[7])) for row in ended]
        return WatchdogTick(reaped, in_grace=in_grace), (yield from run_effects(w, ended))

    return Verb("watchdog", Kind.TRANSACTION, script)


def _with_locked_families(
    s: Statements, w: WorkflowStatements, expiries: list[tuple[int, datetime]]
) -> Script[list[Any]]:
    """Return the expired jobs of which another session holds the parent, or who waits for it.

    They are left for a later tick, or one locked row would hold up the recovery of all others.
    """
    if not w.dialect.for_update:
        return []
    found = yield Statement(s.expired_in_families, {}, expiries)
    return list((yield from lock_free(w, [job_id for (job_id,) in found])))


def _failure(row: Row) -> tuple[Any, ...]:
    """Return what to keep of a run that the reap has just ended."""
    job_id, token, attempts, started_at, worker_id = row[0], *row[4:8]
    if row[9] == INTERRUPTED:  # its attempt has been given back
        return (job_id, token, attempts + 1, worker_id, started_at, LEASE_EXPIRED_TOGETHER, None)
    return (job_id, token, attempts, worker_id, started_at, LEASE_EXPIRED, None)


def _look(s: Statements) -> Script[Ticks]:
    """Add a tick to those of the others, and remove what it makes stale."""
    found, now, clock = read_ticks(s.dialect, (yield Statement(s.read_ticks, {})))
    ticks = Ticks.look(found, now, clock)
    own = ticks.own
    yield Statement(s.add_tick, {"id": own.id, "previous": own.previous, "at": own.at})
    if ticks.stale:
        yield Statement(s.remove_ticks, {}, one_column(ticks.stale))
    if ticks.set_back:
        yield Statement(s.shorten_leases, {})
    return ticks


def read_ticks(d: Dialect, rows: Rows) -> tuple[list[Tick], datetime, datetime]:
    """Read the ticks, the instant of the transaction and that of the reading."""
    found = [
        Tick(d.uuid(row[2]), None if row[3] is None else d.time(row[3]), d.time(row[4]))
        for row in rows
        if row[2] is not None
    ]
    return found, d.time(rows[0][0]), d.time(rows[0][1])
