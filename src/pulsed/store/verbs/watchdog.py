"""The watchdog: it ends the runs of dead workers, in place of their failure reports."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pulsed.model.job import Status
from pulsed.model.outcome import INTERRUPTED, LEASE_ERROR, LEASE_ERROR_TOGETHER
from pulsed.store.results import Reaped, WatchdogTick
from pulsed.store.sql.statement import Statement, one_column
from pulsed.store.verbs.effects import Effects, run_effects
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.reports import record_failures
from pulsed.store.verbs.script import Script, VerbKind, verb
from pulsed.store.verbs.ticks import Tick, Ticks

SILENT_WORKERS_ARE_FORGOTTEN_AFTER = 86_400.0


@verb(VerbKind.TRANSACTION)
def watchdog(engine: Engine, limit: int) -> Script[tuple[WatchdogTick, Effects]]:
    """Insert a tick, then end the runs of silent workers as failures."""
    ticks = yield from _add_tick(engine)
    yield Statement(engine.presence.forget_workers, {"age": SILENT_WORKERS_ARE_FORGOTTEN_AFTER})
    expiries = []
    in_grace = False
    for lease_ms, last in (yield Statement(engine.recovery.expired, {})):
        before = ticks.reaped_before(timedelta(milliseconds=lease_ms))
        in_grace |= engine.dialect.time(last) >= before
        expiries.append((lease_ms, before))
    if not expiries:
        return WatchdogTick([], in_grace=False), Effects()
    ended = yield from engine.reap(limit, expiries)
    runs = [_ReapedRun(*row) for row in ended]
    yield from record_failures(engine, map(_failure, runs))
    if runs:
        silent = one_column(run.worker_id for run in runs)
        yield Statement(engine.recovery.note_shared, {}, silent)
    uid = engine.dialect.uuid
    reaped = [
        Reaped(
            uid(run.job_id),
            run.topic,
            Status(run.status),
            uid(run.worker_id),
            run.queue,
            run.attempt,
        )
        for run in runs
    ]
    return WatchdogTick(reaped, in_grace=in_grace), (yield from run_effects(engine, ended))


class _ReapedRun(NamedTuple):
    """A row of the reap's answer, with the driver's values."""

    job_id: Any
    status: str
    parent_id: Any
    watched: Any
    token: int
    attempts: int
    started_at: Any
    worker_id: Any
    topic: str
    queue: str
    outcome: str
    due_again_in: str | None

    @property
    def attempt(self) -> int:
        """The run's attempt, which may have been given back."""
        return self.attempts + (self.outcome == INTERRUPTED)


def _failure(run: _ReapedRun) -> tuple[Any, ...]:
    """Return a row of FAILURE for a reaped run."""
    job_id, worker_id, began = run.job_id, run.worker_id, run.started_at
    error = LEASE_ERROR_TOGETHER if run.outcome == INTERRUPTED else LEASE_ERROR
    return job_id, run.token, run.attempt, worker_id, began, error, None


def _add_tick(engine: Engine) -> Script[Ticks]:
    """Read all ticks, insert one for this poll, and remove those that it makes stale."""
    found, now, clock = yield from read_ticks(engine)
    ticks = Ticks.with_new(found, now, clock)
    own = ticks.own
    yield Statement(
        engine.recovery.add_tick, {"id": own.id, "previous": own.previous, "at": own.at}
    )
    if ticks.stale:
        yield Statement(engine.recovery.remove_ticks, {}, one_column(ticks.stale))
    if ticks.set_back:
        yield Statement(engine.recovery.shorten_leases, {})
    return ticks


def read_ticks(engine: Engine) -> Script[tuple[list[Tick], datetime, datetime]]:
    """Read the ticks, the instant of the transaction and that of the read."""
    rows, d = (yield Statement(engine.recovery.read_ticks, {})), engine.dialect
    found = [
        Tick(d.uuid(tick_id), None if previous is None else d.time(previous), d.time(at))
        for _, _, tick_id, previous, at in rows
        if tick_id is not None
    ]
    now, clock, *_ = rows[0]
    return found, d.time(now), d.time(clock)
