"""Recording statistics, folding them into longer spans, and reading them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pulsed.model.buckets import BUCKETS
from pulsed.model.rollup import (
    COUNTS,
    FOLD_AFTER,
    KEPT,
    LATEST,
    MOST_LANES,
    RECORDED,
    SPANS,
    By,
    ErrorRollup,
    Errors,
    Histogram,
    R,
    Range,
    Rollup,
    RollupFilter,
    SeriesRows,
    Stats,
    Totals,
    folded,
    range_of,
    range_of_total,
)
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.statement import Row, Statement
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.reads import clock
from pulsed.store.verbs.script import Script, Verb, VerbKind, verb

FOLDED = UUID(int=0)
"""The recorder of rows that are sums of several recorders'."""

MOST_ROWS = 20_000
"""Rows in the answer of a series."""


def _params(where: RollupFilter, found: Range, most: int) -> dict[str, Any]:
    """Return the parameters of a statement that reads rows."""
    return {
        "since": found.since,
        "until": found.until,
        "span": found.span,
        "queue": where.queue,
        "topic": where.topic,
        "most": most,
    }


def record(
    engine: Engine, recorder: UUID, rollups: Sequence[Rollup], errors: Sequence[ErrorRollup]
) -> Verb[datetime]:
    """Write a recorder's totals of its minutes."""
    params = {"recorder": recorder, "latest": LATEST}

    def script() -> Script[datetime]:
        if rollups:
            values = [(RECORDED, *_values(each)) for each in _each_once(rollups)]
            yield Statement(engine.rollups.record_rollups, params, values)
        if errors:
            values = [(RECORDED, *_error_values(each)) for each in _each_once(errors)]
            yield Statement(engine.rollups.record_errors, params, values)
        return (yield from clock(engine))

    kind = VerbKind.TRANSACTION if rollups and errors else VerbKind.SINGLE
    return Verb("record_rollups", kind, script)


@verb(VerbKind.TRANSACTION, name="fold_rollups", looks_for_work=True)
def fold(engine: Engine, keep: float | None, limit: int) -> Script[int]:
    """Move the minutes of recorders into rows of longer spans, and remove what is too old.

    Rows are taken and added in one transaction, so a row counts once whatever happens in between.
    They are added in the order of their keys, so that two folds do not deadlock.
    """
    d, statements = engine.dialect, engine.rollups
    due = {"span": RECORDED, "age": FOLD_AFTER, "most": limit}
    taken = yield Statement(statements.take_rollups, due)
    sums = folded(_rollup(d, row) for row in taken)
    values = [(span, *_values(each)) for span, each in sums]
    yield Statement(statements.add_rollups, {"recorder": FOLDED}, values)
    taken_errors = yield Statement(statements.take_errors, due)
    errors = folded(_error(d, row) for row in taken_errors)
    values = [(span, *_error_values(each)) for span, each in errors]
    yield Statement(statements.add_errors, {"recorder": FOLDED}, values)
    done = [len(taken), len(taken_errors)]
    for span, age in _ages(keep).items():
        old = {"span": span, "age": age, "most": limit}
        for drop in (statements.drop_rollups, statements.drop_errors):
            [(gone,)] = yield Statement(drop, old)
            done.append(gone)
    return max(done)


@verb(VerbKind.READ, name="read_rollups")
def series(
    engine: Engine, where: RollupFilter, step: int | None, by: Collection[By]
) -> Script[SeriesRows]:
    """Read sums by steps, and perhaps by queue and topic."""
    now = yield from clock(engine)
    found = range_of(where.since, where.until, step, now)
    params = _params(where, found, MOST_ROWS + 1)
    params |= {"step": found.step}
    if by:
        params |= {"by_queue": "queue" in by, "by_topic": "topic" in by}
        rows = yield Statement(engine.rollups.read_series_by, params)
    else:
        rows = yield Statement(engine.rollups.read_series, params)
    rollups = [_summed(found, row) for row in rows[:MOST_ROWS]]
    return SeriesRows(found, rollups[::-1], len(rows) > MOST_ROWS)


@verb(VerbKind.READ, name="read_rollups")
def totals(engine: Engine, where: RollupFilter) -> Script[Totals]:
    """Read sums by queue and topic."""
    now = yield from clock(engine)
    found = range_of_total(where.since, where.until, now)
    params = _params(where, found, MOST_LANES + 1)
    params |= {"step": found.step, "by_queue": True, "by_topic": True}
    rows = yield Statement(engine.rollups.read_totals, params)
    rollups = [_summed(found, row) for row in rows[:MOST_LANES]]
    return Totals(rollups, is_cut=len(rows) > MOST_LANES)


@verb(VerbKind.READ, name="read_errors")
def errors(engine: Engine, where: RollupFilter, limit: int) -> Script[Errors]:
    """Read sums by kind of error."""
    now = yield from clock(engine)
    found = range_of_total(where.since, where.until, now)
    rows = yield Statement(engine.rollups.read_errors, _params(where, found, limit + 1))
    kinds = [_error(engine.dialect, row) for row in rows[:limit]]
    return Errors(kinds, is_cut=len(rows) > limit)


def _each_once(rows: Sequence[R]) -> Iterable[R]:
    """Return the last row of each key: a statement may not write one twice."""
    return {each.key: each for each in rows}.values()


def _ages(keep: float | None) -> dict[int, float]:
    """Return the seconds for which rows of each span are kept."""
    ages = {span: KEPT.get(span, keep) for span in SPANS}
    limit = math.inf if keep is None else keep
    return {span: min(age, limit) for span, age in ages.items() if age is not None}


def _values(rollup: Rollup) -> tuple[Any, ...]:
    stats = rollup.stats
    counts = (getattr(stats, name) for name in COUNTS)
    wait, run = stats.wait, stats.run
    return (*rollup.key, *counts, wait.seconds, *wait.counts, run.seconds, *run.counts)


def _error_values(error: ErrorRollup) -> tuple[Any, ...]:
    return (*error.key, error.count, error.dead_lettered, error.last_at, error.message)


def _rollup(d: Dialect, row: Row) -> Rollup:
    at, queue, topic, *figures = row
    return Rollup(d.time(at), queue, topic, _stats(figures))


def _summed(found: Range, row: Row) -> Rollup:
    step, queue, topic, *figures = row
    at = found.since + timedelta(seconds=found.step * step)
    return Rollup(at, queue, topic, _stats(figures))


def _stats(figures: Sequence[Any]) -> Stats:
    counts = dict(zip(COUNTS, figures, strict=False))
    wait, run = figures[-2 * (BUCKETS + 1) : -(BUCKETS + 1)], figures[-(BUCKETS + 1) :]
    return Stats(**counts, wait=_histogram(wait), run=_histogram(run))


def _histogram(columns: Sequence[Any]) -> Histogram:
    seconds, *counts = columns
    return Histogram(tuple(counts), seconds)


def _error(d: Dialect, row: Row) -> ErrorRollup:
    at, queue, topic, error, count, dead_lettered, last_at, message = row
    return ErrorRollup(
        d.time(at), queue, topic, error, count, dead_lettered, d.time(last_at), message
    )
