"""A claim on PostgreSQL: all priorities of a queue in one statement."""

from __future__ import annotations

from collections.abc import Sequence

from pulsed.store.postgres.statements import PostgresClaimStatements
from pulsed.store.sql.statement import Row, Sql, Statement
from pulsed.store.verbs.engine import Claim, Claimed, by_priority, by_time
from pulsed.store.verbs.floors import Level, Walk
from pulsed.store.verbs.script import Script

HIGHEST, LOWEST = 100, -100
"""The range of priorities."""


def _statement(s: PostgresClaimStatements, claim: Claim, *, suspects: bool) -> Sql:
    if not claim.is_governed:
        return s.claim_suspect if suspects else s.claim
    if suspects:
        return s.claim_governed_suspect
    return s.claim_governed if claim.ageing is None else s.claim_aged


def _is_plain(claim: Claim, levels: Sequence[Level]) -> bool:
    """Whether there is one priority, as far as known, and one policy, and no control."""
    return len(levels) == 1 and len(claim.topics.policies) == 1 and not claim.is_governed


def _claim_plain(
    s: PostgresClaimStatements, claim: Claim, limit: int, level: Level
) -> Script[list[Row]]:
    """Claim by the short statement: it takes two thirds of the time for a single job."""
    params = {
        "worker": claim.worker_id,
        "queue": claim.queue,
        "names": claim.topics.names,
        "priority": level.priority,
        "at": level.at,
        "last": level.id,
        "claimed": level.claimed,
        "walked": level.walked,
        "most": limit,
        **claim.topics.policies[0],
    }
    return sorted((yield Statement(s.claim_plain, params)), key=by_time)


def claim_due(
    s: PostgresClaimStatements, claim: Claim, limit: int, walk: Walk, *, suspects: bool
) -> Script[Claimed]:
    """Claim from the known priorities at their floors, and from those in the gaps between them."""
    levels = walk.levels()
    if not (suspects or walk.is_full_scan) and _is_plain(claim, levels):
        [level] = levels
        claimed = yield from _claim_plain(s, claim, limit, level)
        # An empty answer says nothing, and a full scan, which has to come then, says everything.
        if claimed or walk.may_scan_fully:
            return Claimed(claimed, [level.priority] if claimed else [])
    visited = [level[0] for level in levels]
    params = {
        "worker": claim.worker_id,
        "queue": claim.queue,
        "topics": claim.topics.as_json,
        "above": [HIGHEST + 1, *visited],
        "below": [*visited, LOWEST - 1],
        "most": limit,
    }
    if claim.ageing is not None and not suspects:
        params |= {"age": claim.ageing.seconds, "highest": HIGHEST}
    claimed = list((yield Statement(_statement(s, claim, suspects=suspects), params, levels)))
    claimed.sort(key=by_time)
    claimed.sort(key=by_priority, reverse=True)
    visited += set(map(by_priority, claimed)).difference(visited)
    return Claimed(claimed, visited)
