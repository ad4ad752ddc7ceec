"""A claim on SQLite: one priority after the other, in two statements each.

The transaction holds the write lock throughout, so no other write comes in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from pulsed.model.control import Ageing
from pulsed.store.sql.columns import ASSIGNED_PLACES, FILLED_PLACES, LONG_COLUMNS, assigned_columns
from pulsed.store.sql.dialect import Dialect, column_names
from pulsed.store.sql.jobs import LEVEL
from pulsed.store.sql.leases import LeaseStatements
from pulsed.store.sql.statement import Row, Sql, Statement
from pulsed.store.sqlite.statements import SqliteClaimStatements
from pulsed.store.verbs.engine import Claim, Claimed, by_priority, by_time
from pulsed.store.verbs.floors import Walk
from pulsed.store.verbs.script import Script
from pulsed.store.verbs.topics import Topics

_id = assigned_columns("id")
_id_and_token = assigned_columns("id", "lease_token")
_payload = assigned_columns("payload")
_topic = assigned_columns("topic")
_LONG = [ASSIGNED_PLACES[name] for name in LONG_COLUMNS]
_LEVEL = column_names(LEVEL)


def claim_due(
    s: SqliteClaimStatements,
    leases: LeaseStatements,
    claim: Claim,
    limit: int,
    walk: Walk,
    *,
    suspects: bool,
) -> Script[Claimed]:
    """Claim from one priority after the other, until ``limit`` is reached.

    Nothing, if a control governs the queue and this claim has not asked it.
    """
    claimed = Claimed([], [])
    params = claim_params(claim)
    pick = s.pick_suspect if suspects else s.pick
    levels = yield Statement(s.levels, {"queue": claim.queue})
    if any(governed for *_, governed in levels) and not claim.is_governed:
        return claimed
    if claim.ageing is not None and not suspects:
        found = [priority for priority, *_ in levels if priority is not None]
        return (yield from _claim_aged(s, leases, claim, claim.ageing, found, limit, walk))
    for priority, *_ in levels:
        if priority is not None and len(claimed.rows) < limit:
            claimed.visited.append(priority)
            level = dict(zip(_LEVEL, walk.level(priority), strict=True))
            level["most"] = limit - len(claimed.rows)
            found = yield from _claim_level(s, leases, pick, params | level, claim.topics)
            claimed.rows.extend(found)
    return claimed


def _claim_aged(
    s: SqliteClaimStatements,
    leases: LeaseStatements,
    claim: Claim,
    ageing: Ageing,
    priorities: list[int],
    limit: int,
    walk: Walk,
) -> Script[Claimed]:
    """Claim the jobs whose priority has risen highest while they waited.

    Within one priority the oldest is the best. So the best of all are among the first of each.
    """
    params = claim_params(claim)
    order = by_age(ageing, s.dialect)
    picked: list[Row] = []
    for priority in priorities:
        level = dict(zip(_LEVEL, walk.level(priority), strict=True))
        picked += yield Statement(s.pick, params | level | {"most": limit})
    best = sorted(picked, key=order)[:limit]
    rows = yield from lease(s, leases, best, params, claim.topics)
    return Claimed(sorted(rows, key=order), priorities)


def claim_params(claim: Claim) -> dict[str, Any]:
    """Return what the statements of a claim share.

    If all topics have one policy, the pick fills it in. Of several it gets none: ``lease`` does.
    """
    topics = claim.topics
    fills = topics.policies[0] if len(topics.policies) == 1 else dict.fromkeys(FILLED_PLACES)
    return {"worker": claim.worker_id, "queue": claim.queue, "names": topics.names} | fills


def by_age(ageing: Ageing, d: Dialect) -> Callable[[Row], Any]:
    """Return the order of picked rows by their risen priorities, as a key of ``sorted``."""

    def order(row: Row) -> tuple[int, int, Any]:
        priority = by_priority(row)
        due_at, _ = at = by_time(row)
        return -ageing.priority(priority, d.instant(due_at)), -priority, at

    return order


def _claim_level(
    s: SqliteClaimStatements,
    leases: LeaseStatements,
    pick: Sql,
    params: dict[str, Any],
    topics: Topics,
) -> Script[list[Row]]:
    """Lease the due jobs of one priority: pick them, then claim what was picked."""
    return (yield from lease(s, leases, (yield Statement(pick, params)), params, topics))


def lease(
    s: SqliteClaimStatements,
    leases: LeaseStatements,
    rows: Sequence[Row],
    params: dict[str, Any],
    topics: Topics,
) -> Script[list[Row]]:
    """Lease jobs that were picked; returns their rows as they are then, in the same order."""
    if len(topics.policies) > 1:
        rows = [_filled(row, topics.policies[topics.policy_of[_topic(row)]]) for row in rows]
    count = 0
    for policy, ids in _by_policy(rows, topics):
        [(leased,)] = yield Statement(s.claim, params | policy, columns=[ids])
        count += leased
    uuid = s.dialect.uuid
    if count != len(rows):  # impossible under the write lock; but only leased jobs may run
        held = {(uuid(id_), token) for id_, token in (yield Statement(leases.held_by, params))}
        rows = [row for row in rows if _id_and_token(row) in held]
    if long := [(_id(row),) for row in rows if _payload(row) is None]:
        texts = {uuid(id_): its for id_, *its in (yield Statement(s.long_texts, {}, long))}
        rows = [_with_texts(row, texts[_id(row)]) if _id(row) in texts else row for row in rows]
    return list(rows)


def _by_policy(rows: Sequence[Row], topics: Topics) -> Iterable[tuple[dict[str, Any], list[UUID]]]:
    """Return the ids of rows by the policies of their topics, of which there is mostly one."""
    if len(topics.policies) == 1:
        return [(topics.policies[0], [*map(_id, rows)])] if rows else []
    found: dict[int, list[UUID]] = {}
    for row in rows:
        found.setdefault(topics.policy_of[_topic(row)], []).append(_id(row))
    return [(topics.policies[number], ids) for number, ids in found.items()]


def _filled(row: Row, policy: dict[str, Any]) -> Row:
    """Return a picked row, with its topic's policy where the job sets no value."""
    columns = list(row)
    for name, place in FILLED_PLACES.items():
        if columns[place] is None:
            columns[place] = policy[name]
    return columns


def _with_texts(row: Row, texts: list[str | None]) -> Row:
    """Return a picked row with its long texts, which another statement has read."""
    columns = list(row)
    for place, text in zip(_LONG, texts, strict=True):
        columns[place] = text
    return columns
