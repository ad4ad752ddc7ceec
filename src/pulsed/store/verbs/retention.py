"""Removing jobs that ended long ago."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pulsed.model.bulk import KEPT_OPERATIONS, KEPT_SECONDS
from pulsed.model.job import Status
from pulsed.model.page import SEARCHED, Counts
from pulsed.model.timetable import EPOCH
from pulsed.store.results import Pruned
from pulsed.store.sql.statement import Statement, one_column
from pulsed.store.verbs.audit import REMOVED_AT_ONCE, trim
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, VerbKind, verb

MOST_RATES = 1_000
"""Rates that one prune removes."""


@verb(VerbKind.SINGLE)
def take_turn(engine: Engine, length: float) -> Script[bool]:
    """Take the turn at pruning, if it is free. A retry may lose it: the next turn is near."""
    return bool((yield Statement(engine.retention.take_turn, {"length": length})))


@verb(VerbKind.TRANSACTION, looks_for_work=True)
def prune(
    engine: Engine,
    ages: Mapping[Status, float],
    limit: int,
    since: Mapping[Status, datetime],
) -> Script[Pruned]:
    """Remove jobs that ended too long ago, with their failures, checkpoints and signals."""
    share = -(-limit // max(1, len(ages)))
    removed, reached = dict.fromkeys(ages, 0), dict(since)

    def remove(status: Status, most: int) -> Script[None]:
        params = {"status": status.value, "age": ages[status], "most": most}
        gone = yield Statement(
            engine.retention.prune, params | {"since": reached.get(status, EPOCH)}
        )
        if gone:
            yield from forget(engine, [job_id for job_id, _ in gone])
            removed[status] += len(gone)
            reached[status] = engine.dialect.time(max(ended for _, ended in gone))

    for status in ages:
        if left := min(share, limit - sum(removed.values())):
            yield from remove(status, left)
    for status in [each for each in ages if removed[each] == share]:
        if left := limit - sum(removed.values()):  # what other statuses left of their share
            yield from remove(status, left)
    if not since:
        yield from trim(engine)
        yield Statement(engine.controls.prune_rates, {"most": MOST_RATES})
        yield from trim_bulk(engine)
    return Pruned(removed, reached)


@verb(VerbKind.READ)
def prunable(engine: Engine, ages: Mapping[Status, float]) -> Script[Counts]:
    """Count the finished jobs that ended too long ago."""
    found = {}
    for status, age in ages.items():
        params = {"status": status.value, "age": age, "most": SEARCHED}
        [(found[status],)] = yield Statement(engine.retention.prunable, params)
    return Counts(found.items(), (each for each in found if found[each] == SEARCHED))


def trim_bulk(engine: Engine) -> Script[None]:
    """Remove a batch of the bulk operations that ended too long ago, or are too many."""
    bounds = {"age": KEPT_SECONDS, "kept": KEPT_OPERATIONS - 1, "most": REMOVED_AT_ONCE}
    gone = yield Statement(engine.bulk.trim_bulk, bounds)
    if gone:
        yield Statement(engine.bulk.forget_skips, {}, one_column(bulk_id for (bulk_id,) in gone))


def forget(engine: Engine, removed: list[Any]) -> Script[None]:
    """Remove the failures, checkpoints, signals, streams and tags of deleted jobs."""
    if removed:
        for statement in (
            engine.retention.delete_failures,
            engine.checkpoints.forget_steps,
            engine.signals.forget_signals,
            engine.streams.forget_stream,
            engine.tags.forget_tags,
        ):
            yield Statement(statement, {}, one_column(removed))
