"""The parts of both engines' claims: the due jobs of a priority, and the lease they get."""

from __future__ import annotations

from pulsed.store.sql.columns import ASSIGNED, filled_policy
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import (
    IS_CLAIMABLE,
    LIMITED,
    NOT_CLAIMABLE,
    SUSPECTED,
    UNLIMITED,
    UNSUSPECTED,
    is_startable,
)
from pulsed.store.sql.keys import released_at_start
from pulsed.store.sql.prepared import StatementGroup, prepared


class ClaimStatements(StatementGroup):
    """How a claim scans a queue. An engine adds the claim itself."""

    @prepared()
    def levels(self, d: Dialect) -> str:
        """Read the priorities in use, highest first, by a skip scan; the last row has none.

        Each row also says whether there are suspects among the queue's jobs, whether it has jobs
        with a limit, which are in another index, and whether a control governs the queue.
        """
        return f"""WITH RECURSIVE {levels(d)}
            SELECT priority, EXISTS (SELECT 1 FROM {d.jobs} {d.by_suspicion}
                    WHERE queue = :queue::text AND {SUSPECTED} AND {UNLIMITED}
                      AND status NOT IN {NOT_CLAIMABLE}),
                (SELECT limit_key FROM {d.jobs} WHERE queue = :queue::text AND {IS_CLAIMABLE}
                    AND {LIMITED} ORDER BY limit_key LIMIT 1) IS NOT NULL,
                NOT {is_free(d)}
            FROM levels"""

    @prepared()
    def others_first(self, d: Dialect) -> str:
        """Count the due jobs at the head of a queue whose topic is not in ``names``."""
        return f"""SELECT count(*) FROM (SELECT topic, next_run_at FROM {d.jobs}
                WHERE queue = :queue::text AND {IS_CLAIMABLE} AND {UNLIMITED}
                ORDER BY priority DESC, next_run_at, id LIMIT :most::int) AS head
            WHERE next_run_at <= {d.now}
              AND topic NOT IN (SELECT e.value FROM {d.elements(":names::json")})"""

    def due(
        self,
        columns: str,
        topics: str,
        priority: str,
        floor: str,
        last: str,
        *,
        suspects: bool,
        lock: bool = True,
        guard: str = "",
    ) -> str:
        """Return the due jobs of one priority, best first: one range of the claim index.

        A ``guard`` is a further condition, about the queue and not about a job.

        ``IS TRUE`` keeps the topics a subplan, which PostgreSQL hashes. A bare IN becomes a nested
        loop over all topics for each job, because sessions have hash joins off.
        """
        d = self.dialect
        table, claimable = self._candidates(suspects=suspects)
        return f"""SELECT {columns} FROM {table}
            WHERE queue = :queue::text AND {claimable} AND priority = {priority}
              AND (next_run_at, id) > ({floor}, {last})
              AND next_run_at <= {d.now} AND (topic IN ({topics})) IS TRUE
              AND {is_startable(d)} {f"AND {guard}" if guard else ""}
            ORDER BY next_run_at, id LIMIT :most::int {d.skip_locked if lock else ""}"""

    def _candidates(self, *, suspects: bool) -> tuple[str, str]:
        """Return where a claim finds its jobs: a table and a condition.

        The condition of suspects does not imply that of the claim index, or a planner may scan all
        due jobs for them. A worker that runs a suspect gets no other.
        """
        d = self.dialect
        if not suspects:
            return d.jobs, f"{IS_CLAIMABLE} AND {UNLIMITED} AND {UNSUSPECTED}"
        table = f"{d.jobs} {d.by_suspicion}"
        runs_one = f"SELECT 1 FROM {table} WHERE {SUSPECTED} AND locked_by = :worker::uuid"
        claimable = f"{SUSPECTED} AND {UNLIMITED} AND status NOT IN {NOT_CLAIMABLE}"
        return table, f"{claimable} AND NOT EXISTS ({runs_one})"

    def floor(self, at: str, claimed: str, walked: str) -> str:
        """Return the instant at which the scan of a priority begins; see ``floors.Level``."""
        d = self.dialect
        ago = f"{d.now} - {d.seconds(claimed)}", f"{d.now} - {d.seconds(walked)}"
        return f"{d.greatest}({d.least}({at}, {ago[0]}), {ago[1]})"


def is_free(d: Dialect) -> str:
    """Return whether no control governs the queue: one probe of an index that is mostly empty.

    It is part of the statement that claims. So a claim that has not seen a control is in flight
    when the control is stored, and ``pause`` can wait for it.
    """
    return f"""NOT EXISTS (SELECT 1 FROM {d.controls}
        WHERE scope = 'queue' AND name = :queue::text)"""


def is_unpaused(d: Dialect, topic: str) -> str:
    """Return whether a topic is not paused; there is a row only for those that are."""
    return f"{topic} NOT IN (SELECT name FROM {d.controls} WHERE scope = 'topic' AND paused)"


def levels(d: Dialect, which: str = UNLIMITED) -> str:
    """Return the priorities of a queue's claimable jobs as a recursive relation; the last is NULL.

    ``which`` is about jobs with a limit, or about those without.
    """
    next_level = f"""SELECT priority FROM {d.jobs}
            WHERE queue = :queue::text AND {IS_CLAIMABLE} AND {which} {{below}}
            ORDER BY priority DESC LIMIT 1"""
    below = "AND priority < levels.priority"
    return f"""levels(priority) AS (
            SELECT ({next_level.format(below="")})
            UNION ALL
            SELECT ({next_level.format(below=below)}) FROM levels WHERE priority IS NOT NULL)"""


def lease_grant(d: Dialect, given: str = "") -> str:
    """Return the SET list of a claim: it grants the lease, and fills in policy left unset.

    The topic's policy is in the columns of TOPIC or, if ``given`` is ":", in parameters.
    """
    filled = filled_policy(f"{given}t")
    values = {
        "status": "'RUNNING'",
        "attempts": "attempts + 1",
        "lease_token": d.next_token,
        "locked_by": ":worker::uuid",
        "lease_until": f"{d.clock} + {d.milliseconds(filled['lease_ms'])}",
        "started_at": d.clock,
        "updated_at": d.clock,
        "key_held": released_at_start(),
        **filled,
    }
    return ",\n        ".join(f"{name} = {value}" for name, value in values.items())


def assigned(d: Dialect, written: dict[str, str]) -> str:
    """Return the columns of a claim's answer; ``written`` overrides how some are selected.

    Decoding instants is half of the cost of reading an answer. So ``next_run_at`` is a number, and
    ``submitted_at`` is NULL if it is the same instant, which it is for most jobs.
    """
    numbers = {
        "next_run_at": d.number("next_run_at"),
        "submitted_at": d.number("nullif(submitted_at, next_run_at)"),
    }
    return ", ".join((ASSIGNED | numbers | written)[name] for name in ASSIGNED)
