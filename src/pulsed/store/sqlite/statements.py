"""The statements that differ on SQLite.

Each row of a RETURNING is a ``sqlite3_step``, which has to reacquire the GIL. So a batch write
returns only its row count, and another statement of the same transaction reads what else is
needed. The transaction holds the write lock over both, so no other write comes in between.
"""

from __future__ import annotations

import msgspec

from pulsed.store.sql.claiming import ClaimStatements, assigned, is_unpaused, lease_grant
from pulsed.store.sql.columns import (
    ASSIGNED,
    ASSIGNED_IDS,
    ASSIGNED_TYPES,
    FILLED_PLACES,
    LONG_COLUMNS,
)
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import JOB, LEASE, NOT_CLAIMABLE, SUCCESS
from pulsed.store.sql.keys import released_at_end
from pulsed.store.sql.leases import LeaseStatements
from pulsed.store.sql.prepared import prepared
from pulsed.store.sql.recovery import EXPIRY, RecoveryStatements
from pulsed.store.sql.settling import ON_FAST_PATH, SettleStatements
from pulsed.store.sql.submission import SubmitStatements
from pulsed.store.sqlite.dialect import BATCH_OF_IDS, in_parameters

LONG_TEXT = 4096
"""Characters of payload and headers above which a separate statement reads them."""

_decode_assignments = msgspec.json.Decoder(list[tuple[ASSIGNED_TYPES]]).decode  # type: ignore[valid-type]


class SqliteClaimStatements(ClaimStatements):
    """A claim of one priority in two statements, each of them a single step: pick, then claim.

    SQLite has no LATERAL for all priorities at once. And if a worker has a thousand topics, a join
    would compare each job with each of them. So the statements get only the topics' names, and the
    script fills in the topic's policy where a job sets no value: in the picked rows, and as
    parameters of the claim.
    """

    @prepared(unpack=_decode_assignments)
    def pick(self, d: Dialect) -> str:
        """Read the jobs to claim, as after the claim, without topic policies, as one JSON text."""
        return self._pick(d, suspects=False)

    @prepared(unpack=_decode_assignments)
    def pick_suspect(self, d: Dialect) -> str:
        """Read a suspect to claim, in the same form."""
        return self._pick(d, suspects=True)

    @prepared(JOB, counted=True)
    def claim(self, d: Dialect) -> str:
        """Claim picked jobs whose topics have the same policy.

        Not with FROM: that writes every new row into a temporary table first.
        """
        picked = d.id_among("j.id", BATCH_OF_IDS)
        return f"""UPDATE {self.jobs} SET {lease_grant(d, ":")}
            WHERE {picked} AND j.status NOT IN {NOT_CLAIMABLE}"""

    @prepared(JOB)
    def long_texts(self, d: Dialect) -> str:
        """Read the payloads and headers that are too long for the pick."""
        return f"""SELECT j.id, {", ".join(LONG_COLUMNS)}
            FROM {self.jobs}, {d.rows_of(JOB)} WHERE {self.this_job}"""

    def _pick(self, d: Dialect, *, suspects: bool) -> str:
        floor = self.floor(":l_at", ":l_claimed", ":l_walked")
        elements = d.elements(":names")
        own_topics = f"SELECT e.value FROM {elements} WHERE {is_unpaused(d, 'e.value')}"
        due = self.due(
            ", ".join(ASSIGNED), own_topics, ":l_priority", floor, ":l_id", suspects=suspects
        )
        return f"SELECT json_group_array(json_array({picked_columns(d)})) FROM ({due}) AS due"


def picked_columns(d: Dialect) -> str:
    """Return the columns of a picked job, as after the claim.

    Its topic's policy is filled in if that is given as parameters, which may be NULL.
    """
    length = " + ".join(f"coalesce(length({name}), 0)" for name in LONG_COLUMNS)
    short = f"{length} <= {LONG_TEXT}"
    written = {"lease_token": d.next_token, "attempts": "attempts + 1"}
    filled = (name.removeprefix("t_") for name in FILLED_PLACES)
    written |= {name: f"coalesce({name}, :t_{name})" for name in filled}
    written |= {name: f"nullif(hex({name}), '')" for name in ASSIGNED_IDS}
    written |= {name: f"CASE WHEN {short} THEN {name} END" for name in LONG_COLUMNS}
    return assigned(d, written)


class SqliteLeaseStatements(LeaseStatements):
    """Leases, with a heartbeat that returns a row count."""

    @prepared(LEASE, counted=True)
    def beat(self, d: Dialect) -> str:
        """Extend the leases still held; ``still_held`` then reads which these are."""
        return self.extension(d)


class SqliteSubmitStatements(SubmitStatements):
    """New jobs, and which of a batch were new."""

    @prepared()
    def last_inserted(self, d: Dialect) -> str:
        """Read the ids of the rows that this transaction has just inserted.

        Each new row gets the highest row id, and no other connection writes meanwhile.
        """
        return f"SELECT id FROM {d.jobs} NOT INDEXED ORDER BY rowid DESC LIMIT :inserted"


class SqliteRecoveryStatements(RecoveryStatements):
    """Recovery, with a reap of all expired leases: no row is ever locked."""

    @prepared(EXPIRY)
    def reap(self, d: Dialect) -> str:
        """End the runs of silent workers."""
        return self.reaping(d)


class SqliteSettleStatements(SettleStatements):
    """Ends of runs; the statement for children returns a row count."""

    @prepared(JOB, counted=True)
    def settle_alike(self, d: Dialect) -> str:
        """Do what ``settle_succeeded`` does, for runs that share a token and a result.

        Not with FROM: that writes every new row into a temporary table first.
        """
        ended = d.id_among("j.id", BATCH_OF_IDS)
        return in_parameters(f"""UPDATE {self.jobs} SET {self.end_of_success(d)}
            WHERE {ended} AND {ON_FAST_PATH} AND j.parent_id IS NULL""")

    @prepared(SUCCESS, counted=True)
    def settle_children(self, d: Dialect) -> str:
        """End runs of one worker that succeeded, of children that have never waited."""
        return self.success(d)

    def end_of_success(self, d: Dialect) -> str:
        """Return the same as in the base class, without what stays as it is for a success.

        SQLite would compare the constants of each CASE again for each job.
        """
        return f"""status = 'SUCCEEDED', completed_at = {d.now}, result = r.outcome_result,
            last_error = NULL, last_worker = locked_by, last_outcome = 'SUCCEEDED',
            locked_by = NULL, lease_until = NULL, key_held = {released_at_end("true")},
            updated_at = {d.now}"""
