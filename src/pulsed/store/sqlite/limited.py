"""The claim of jobs with a limit on SQLite: in two statements, pick, then claim."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pulsed.store.sql.claiming import is_unpaused
from pulsed.store.sql.columns import ASSIGNED, ASSIGNED_TYPES, assigned_columns
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.leases import LeaseStatements
from pulsed.store.sql.limited import GRANT, LimitedStatements
from pulsed.store.sql.prepared import prepared
from pulsed.store.sql.statement import Row, Statement
from pulsed.store.sqlite.claim import by_age, claim_params, lease
from pulsed.store.sqlite.statements import SqliteClaimStatements, picked_columns
from pulsed.store.verbs.engine import Claim, KeyGrant, by_time
from pulsed.store.verbs.script import Script

_PICKED = (*ASSIGNED_TYPES, str, int)
_decode = msgspec.json.Decoder(list[tuple[_PICKED]]).decode  # type: ignore[valid-type]
_id = assigned_columns("id")
_KEY, _PLACE = len(ASSIGNED), len(ASSIGNED) + 1


class SqliteLimitedStatements(LimitedStatements):
    """The pick; ``SqliteClaimStatements.claim`` leases what was picked."""

    leases_first = "lease_until DESC"

    @property
    def own_topics(self) -> str:  # type: ignore[override]
        d = self.dialect
        return f"SELECT e.value FROM {d.elements(':names')} WHERE {is_unpaused(d, 'e.value')}"

    @prepared(GRANT, unpack=_decode)
    def pick_limited(self, d: Dialect) -> str:
        """Read due jobs of keys, up to ``most`` of each priority, as one JSON text."""
        return self._pick(d, suspects=False)

    @prepared(GRANT, unpack=_decode)
    def pick_limited_suspect(self, d: Dialect) -> str:
        """Read due suspects of keys in the same form."""
        return self._pick(d, suspects=True)

    def _pick(self, d: Dialect, *, suspects: bool) -> str:
        ids = self.granted("id", suspects=suspects, most=":most")
        row = f"json_array({picked_columns(d)}, limit_key, g_place)"
        return f"""SELECT json_group_array({row}) FROM {d.rows_of(GRANT)}
            CROSS JOIN {self.jobs} ON j.id IN ({ids})"""


def claim_granted(
    s: SqliteLimitedStatements,
    claims: SqliteClaimStatements,
    leases: LeaseStatements,
    claim: Claim,
    grants: Sequence[KeyGrant],
    *,
    suspects: bool,
) -> Script[list[Row]]:
    """Claim what was granted. LIMIT takes no column, so equal grants are picked together."""
    params = claim_params(claim) | {"governed": claim.is_governed}
    order = _by_place if claim.ageing is None or suspects else by_age(claim.ageing, s.dialect)
    by_most = defaultdict[int, list[KeyGrant]](list)
    for grant in grants:
        by_most[grant.most].append(grant)
    picked: list[Row] = []
    for most, some in by_most.items():
        sql = s.pick_limited_suspect if suspects else s.pick_limited
        found = yield Statement(sql, params | {"most": most}, some)
        picked += _best(found, most, order)
    key_of = {_id(row): row[_KEY] for row in picked}
    rows = yield from lease(claims, leases, [row[:_KEY] for row in picked], params, claim.topics)
    return [(*row, key_of[_id(row)]) for row in rows]


def _by_place(row: Row) -> Any:
    return row[_PLACE], by_time(row)


def _best(rows: Sequence[Row], most: int, order: Callable[[Row], Any]) -> list[Row]:
    """Return the first ``most`` jobs of each key."""
    taken: Counter[str] = Counter()
    best = []
    for row in sorted(rows, key=order):
        taken[row[_KEY]] += 1
        if taken[row[_KEY]] <= most:
            best.append(row)
    return best
