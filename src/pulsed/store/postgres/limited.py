"""The claim of jobs with a limit on PostgreSQL: all keys in one statement."""

from __future__ import annotations

from collections.abc import Sequence

from pulsed.store.postgres.claim import HIGHEST
from pulsed.store.postgres.statements import risen_priority
from pulsed.store.sql.claiming import assigned, is_unpaused, lease_grant
from pulsed.store.sql.columns import TOPIC
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import NOT_CLAIMABLE
from pulsed.store.sql.limited import GRANT, KEY, LimitedStatements
from pulsed.store.sql.prepared import prepared
from pulsed.store.sql.statement import Row, Statement
from pulsed.store.verbs.engine import Claim, KeyGrant
from pulsed.store.verbs.script import Script

LIMIT_LOCK = 0x706C696D
"""The first half of the advisory locks on keys of limits: ``plim`` in ASCII."""

LIMIT_LOCKS = 2_048
"""Advisory locks that all keys share. A database has memory for some thousands; two keys that share
one are only claimed one after the other."""


class PostgresLimitedStatements(LimitedStatements):
    """A claim in one statement: pick, then lease; see ``PostgresClaimStatements``."""

    own_topics = "SELECT t_topic FROM topics"

    def lock(self, key: str) -> str:
        return f"pg_try_advisory_xact_lock({LIMIT_LOCK}, hashtext({key}) % {LIMIT_LOCKS})"

    @prepared(KEY)
    def limit_use(self, d: Dialect) -> str:
        """Read what governs keys, and what is in use, each with one look-up for a key."""
        return f"""SELECT r.its_key, coalesce(c.paused, false), c.numbers,
                (SELECT tat FROM {d.rates} WHERE scope = 'limit' AND key = r.its_key),
                u.running, u.begun, {d.clock}
            FROM {d.rows_of(KEY)}
            LEFT JOIN LATERAL (SELECT paused, coalesce(override, declared)::text AS numbers
                FROM {d.controls} WHERE scope = 'limit' AND name = r.its_name) AS c ON true
            CROSS JOIN LATERAL (SELECT count(lease_until) AS running, count(*) AS begun
                FROM {self.in_use(d)}) AS u"""

    @prepared(GRANT)
    def claim_limited(self, d: Dialect) -> str:
        """Claim due jobs of keys, as many of each as were granted."""
        return self._claim(d, "r.g_place", suspects=False)

    @prepared(GRANT)
    def claim_limited_aged(self, d: Dialect) -> str:
        """Claim due jobs of keys; within a key, those whose priority has risen highest."""
        return self._claim(
            d, f"{risen_priority(d, 'r.g_priority')} DESC, r.g_place", suspects=False
        )

    @prepared(GRANT)
    def claim_limited_suspect(self, d: Dialect) -> str:
        """Claim due suspects of keys."""
        return self._claim(d, "r.g_place", suspects=True)

    def _claim(self, d: Dialect, order: str, *, suspects: bool) -> str:
        columns = "id AS picked_id, topic AS picked_topic, next_run_at AS due_at"
        due = self.granted(columns, suspects=suspects, most="r.g_most")
        best_first = f"PARTITION BY r.g_key ORDER BY {order}, due.due_at, due.picked_id"
        unpaused = f"{d.records(':topics', TOPIC)} WHERE {is_unpaused(d, 't_topic')}"
        return f"""WITH topics AS MATERIALIZED ({unpaused}),
                locked AS MATERIALIZED (SELECT due.picked_id, due.picked_topic, r.g_most,
                        row_number() OVER ({best_first}) AS nth
                    FROM {d.rows_of(GRANT)} CROSS JOIN LATERAL ({due} {d.skip_locked}) AS due),
                picked AS MATERIALIZED (SELECT * FROM locked WHERE nth <= g_most),
                policies AS MATERIALIZED (SELECT * FROM topics
                    WHERE (t_topic IN (SELECT picked_topic FROM picked)) IS TRUE)
            UPDATE {self.jobs} SET {lease_grant(d)}
            FROM picked, policies
            WHERE {d.same_id("j.id", "picked_id")} AND j.topic = t_topic
              AND j.status NOT IN {NOT_CLAIMABLE}
            RETURNING {assigned(d, {})}, limit_key"""


def claim_granted(
    s: PostgresLimitedStatements, claim: Claim, grants: Sequence[KeyGrant], *, suspects: bool
) -> Script[list[Row]]:
    """Claim what was granted."""
    params = {
        "worker": claim.worker_id,
        "queue": claim.queue,
        "governed": claim.is_governed,
        "topics": claim.topics.as_json,
    }
    if claim.ageing is not None and not suspects:
        params |= {"age": claim.ageing.seconds, "highest": HIGHEST}
        return list((yield Statement(s.claim_limited_aged, params, grants)))
    rows = yield Statement(s.claim_limited_suspect if suspects else s.claim_limited, params, grants)
    return list(rows)
