"""The claim: due jobs are leased, best first, from the floors that earlier claims have set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pulsed.store.sql.statement import Row, Statement
from pulsed.store.verbs.engine import Claim, Engine, by_priority, by_time
from pulsed.store.verbs.floors import LONG_FULL_SCAN, MANY, Floors, Walk
from pulsed.store.verbs.script import Script, Verb, VerbKind
from pulsed.store.verbs.topics import Topics


@dataclass(slots=True)
class LeasedRows:
    """The rows of the jobs that a claim has leased, best first.

    Its caller makes assignments of them: that needs no transaction, and takes long enough for
    SQLite's one writer to write something else meanwhile.
    """

    rows: list[Row]
    again_in: float | None = None
    """Of ``Assignments``; 0 if a full scan is due."""


def claim(
    engine: Engine, worker_id: UUID, queue: str, topics: Topics, limit: int, floors: Floors
) -> Verb[LeasedRows]:
    """Lease due jobs, best first.

    Nothing, if a control governs the queue: ``floors.is_governed`` says so then.
    """
    wanted = Claim(worker_id, queue, topics)
    tried = False

    def script() -> Script[LeasedRows]:
        nonlocal tried
        if tried:  # and rolled back: what it claimed lies below the floors again
            floors.forget()
        tried = True
        return (yield from claim_due(engine, wanted, limit, floors))

    return Verb("claim", VerbKind.SINGLE, script, claim_lane=True)


def claim_due(engine: Engine, wanted: Claim, limit: int, floors: Floors) -> Script[LeasedRows]:
    """Lease due jobs, best first, as part of a verb."""
    walk = floors.walk()
    claimed: list[Row] = []
    # Asked once: after a claim beside this one the answer may be another, and a scan would forget
    # the jobs that this one has leased.
    must_scan_fully = walk.must_scan_fully
    if not must_scan_fully or floors.found_few:
        claimed = yield from _visit(engine, wanted, limit, walk)
        if claimed and must_scan_fully:  # they start first: the next claim, at once, scans
            floors.found_few = False
            return LeasedRows(claimed, again_in=0.0)
    if not claimed and (must_scan_fully or walk.may_scan_fully):
        claimed = yield from _full_scan(engine, wanted, limit, floors, walk)
    floors.found_few = 0 < len(claimed) < limit
    if walk.is_surprising:
        head = {"queue": wanted.queue, "names": wanted.topics.names, "most": MANY}
        [(others,)] = yield Statement(engine.claiming.others_first, head)
        if others > MANY // 2:
            walk.was_long()
    return LeasedRows(claimed)


def _full_scan(
    engine: Engine, wanted: Claim, limit: int, floors: Floors, walk: Walk
) -> Script[list[Row]]:
    """Claim by a full scan, which ignores the floors; a suspect comes last."""
    walk.begin_full_scan()
    levels = yield Statement(engine.claiming.levels, {"queue": wanted.queue})
    walk.levels_are_read()
    found = [priority for priority, *_ in levels if priority is not None]
    floors.saw_limited = any(limited for _, _, limited, _ in levels)
    walk.reset_floors(found)
    if any(governed for *_, governed in levels) and not wanted.is_governed:
        floors.is_governed = True
        floors.forget()  # it has not seen the jobs, whatever the floors say
        return []
    claimed: list[Row] = []
    suspect: list[Row] = []
    if any(suspects for _, suspects, *_ in levels):
        suspect = yield from _claim_suspect(engine, wanted, found)
    if found and limit > len(suspect):
        claimed = yield from _visit(engine, wanted, limit - len(suspect), walk)
    elif not found:  # the queue is empty, as it mostly is for an idle worker: the scan is complete
        walk.claimed([level.priority for level in walk.levels()], None, full=False)
    round_trip = 0.0
    if walk.took > LONG_FULL_SCAN:  # which may be the latency of a remote database
        asked = floors.clock()
        yield Statement(engine.reading.read_clock, {})
        round_trip = floors.clock() - asked
    walk.end_full_scan(round_trip)
    return claimed + suspect


def _claim_suspect(engine: Engine, wanted: Claim, priorities: list[int]) -> Script[list[Row]]:
    """Claim one suspect, unless the worker runs one.

    There are few, so they need no floors. It is claimed before other jobs, because the next full
    scan may be far off. On PostgreSQL it commits by itself: if the rest then fails, it is a claim
    that was not acknowledged.
    """
    walk = Floors().walk()
    walk.reset_floors(priorities)
    return (yield from _visit(engine, wanted, 1, walk, suspects=True))


def _visit(
    engine: Engine, wanted: Claim, limit: int, walk: Walk, *, suspects: bool = False
) -> Script[list[Row]]:
    """Claim from all priorities, beginning at their floors, and raise the floors."""
    claimed, visited = yield from engine.claim_due(wanted, limit, walk, suspects=suspects)
    full = len(claimed) == limit
    if wanted.ageing is None or suspects:
        walk.claimed(visited, _place(engine, claimed[-1]) if claimed else None, full=full)
    else:
        last = {by_priority(row): row for row in sorted(claimed, key=by_time)}
        lasts = [_place(engine, row) for row in last.values()]
        walk.claimed_by_age(visited, lasts, full=full)
    return claimed


def _place(engine: Engine, row: Row) -> tuple[int, Any, Any]:
    """Return the place of a job in its queue: priority, due time and id."""
    next_run_at, job_id = by_time(row)
    return by_priority(row), engine.dialect.instant(next_run_at), job_id
