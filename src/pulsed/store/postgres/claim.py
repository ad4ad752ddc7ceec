"""A claim on PostgreSQL: all priorities of a queue in one statement."""

from __future__ import annotations

from pulsed.store.postgres.statements import PostgresClaimStatements
from pulsed.store.sql.statement import Sql, Statement
from pulsed.store.verbs.engine import Claim, Claimed, by_priority, by_time
from pulsed.store.verbs.floors import Walk
from pulsed.store.verbs.script import Script

HIGHEST, LOWEST = 100, -100
"""The range of priorities."""


def _statement(s: PostgresClaimStatements, claim: Claim, *, suspects: bool) -> Sql:
    if not claim.is_governed:
        return s.claim_suspect if suspects else s.claim
    if suspects:
        return s.claim_governed_suspect
    return s.claim_governed if claim.ageing is None else s.claim_aged


def claim_due(
    s: PostgresClaimStatements, claim: Claim, limit: int, walk: Walk, *, suspects: bool
) -> Script[Claimed]:
    """Claim from the known priorities at their floors, and from those in the gaps between them."""
    levels = walk.levels()
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
