"""The statements on keys: who holds one, and how it changes hands.

``key_held`` is true or NULL, and unique for a topic and a key where it is true. It is set by submit
and replay, and cleared where a job starts (``claiming.lease_grant``), where it ends
(``end_of_run``, cancel), or here, when its period is over.
"""

from __future__ import annotations

from pulsed.model.keys import UNTIL_START
from pulsed.store.sql.columns import EXPIRY, NEW_JOB, NEW_JSON, NOT_STORED, START
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import JOB
from pulsed.store.sql.prepared import StatementGroup, prepared
from pulsed.store.sql.submission import expiry, key_until, start

WANTED = "place int, job_id uuid, its_topic text, its_key text"

_KEPT = ("id", "topic", "key", "schedule_id", "occurrence", "parent_id", "parent_step", "outlives")
REPLACED = tuple(name for name in NEW_JOB if name not in (*_KEPT, "on_duplicate"))
"""The columns of a new job that replace those of the job which holds its key."""

REPLACEMENT = ", ".join(
    ["job_id uuid", "by_id uuid", *(f"new_{name} {NEW_JOB[name]}" for name in REPLACED)]
)

HOLDS = "key_held IS NOT NULL"

TAKES_KEY = "j.key IS NOT NULL AND j.key_until IS NULL"
"""Whether a job that is replayed holds its key again. A period counts from the submission."""


def holder_of(d: Dialect, topic: str, key: str) -> str:
    """Return the join with the job ``h`` that holds a key."""
    return f"""{d.jobs} AS h {d.by_holder} ON {d.same_id("h.topic", topic)}
                AND {d.same_id("h.key", key)} AND h.{HOLDS}"""


def released_at_start() -> str:
    """Return ``key_held`` of a job that starts."""
    return f"CASE WHEN key_for = '{UNTIL_START}' THEN NULL ELSE key_held END"


def released_at_end(has_ended: str) -> str:
    """Return ``key_held`` of a job that may have ended; a period goes on after the end."""
    return f"CASE WHEN {has_ended} AND key_until IS NULL THEN NULL ELSE key_held END"


class KeyStatements(StatementGroup):
    """Keys: conflicts of new jobs with the holders, and what resolves them."""

    @prepared(WANTED)
    def conflicts(self, d: Dialect) -> str:
        """Read why jobs were not stored: their id is in use, or another job holds their key.

        A holder can be replaced while it has not started; whose job replaced it last is returned,
        so that a retry recognises its own work.
        """
        return f"""SELECT r.place,
                EXISTS (SELECT 1 FROM {self.jobs} WHERE {self.this_job}),
                h.id, h.key_until <= {d.now}, h.status = 'PENDING' AND h.started_at IS NULL,
                CASE WHEN h.last_outcome = 'REPLACED' THEN h.last_worker END
            FROM {d.rows_of(WANTED)} LEFT JOIN {holder_of(d, "r.its_topic", "r.its_key")}"""

    @prepared(JOB, counted=True)
    def release_lapsed(self, d: Dialect) -> str:
        """Release the keys of jobs whose period is over."""
        return f"""UPDATE {self.jobs} SET key_held = NULL
            FROM {d.rows_of(JOB, lock="wait")}
            WHERE {self.this_job} AND j.{HOLDS} AND j.key_until <= {d.now}"""

    @prepared(REPLACEMENT)
    def replace(self, d: Dialect) -> str:
        """Replace payload, options and time of jobs that hold a key and have not started."""
        given = {name: f"r.new_{name}" for name in REPLACED}
        values = {
            name: f"{value}::json" if name in NEW_JSON else value
            for name, value in given.items()
            if name not in NOT_STORED
        }
        may_start = start(d, {name: given[name] for name in START})
        values |= {
            "next_run_at": may_start,
            "expires_at": expiry(d, may_start, {name: given[name] for name in EXPIRY}),
            "key_until": key_until(d, given["key_for"]),
            "last_worker": "r.by_id",
            "last_outcome": "'REPLACED'",
            "updated_at": d.now,
        }
        changes = ", ".join(f"{name} = {value}" for name, value in values.items())
        return f"""UPDATE {self.jobs} SET {changes}
            FROM {d.rows_of(REPLACEMENT, lock="wait")}
            WHERE {self.this_job} AND j.{HOLDS} AND j.status = 'PENDING' AND j.started_at IS NULL
            RETURNING id"""

    @prepared(JOB, counted=True)
    def withdraw(self, d: Dialect) -> str:
        """Remove jobs that the same transaction has stored."""
        return f"""DELETE FROM {d.jobs} AS j WHERE status = 'PENDING' AND
                {d.id_among("id", f"SELECT r.job_id FROM {d.rows_of(JOB)}")}"""

    @prepared(JOB)
    def replayed_keys(self, d: Dialect) -> str:
        """Read the keys that jobs need in order to be replayed, and the jobs that hold them."""
        return f"""SELECT j.id, j.topic, j.key, h.id FROM {d.rows_of(JOB, lock="wait")}
            JOIN {self.jobs} ON {self.this_job} AND {TAKES_KEY} AND j.key_held IS NULL
            LEFT JOIN {holder_of(d, "j.topic", "j.key")}"""
