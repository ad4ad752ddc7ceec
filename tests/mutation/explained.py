"""Mutants that no test kills, and why that is right."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.mutation.mutants import Mutant


class Reason(NamedTuple):
    """Why mutants may survive: those whose names match."""

    pattern: str
    why: str
    engine: str = ""
    """The only one for which that is true; empty if it is for both."""

    def fits(self, mutant: Mutant) -> bool:
        """Whether it explains a mutant."""
        is_engine = self.engine in ("", mutant.engine)
        return is_engine and re.fullmatch(self.pattern, mutant.name) is not None


EXPLAINED: tuple[Reason, ...] = (
    # -- how plans are led ------------------------------------------------------------------------
    Reason(
        r".*: likelihood\(\w+ IS NOT NULL, 0\.0001\)( #\d+)?",
        "A hint for SQLite's planner, on a column that is never NULL (tests/test_sqlite_plans.py).",
    ),
    Reason(
        r".*: [bl] AS MATERIALIZED( #\d+)?",
        "The rows of a batch are the same however often they are computed; on SQLite it saves the "
        "JSON functions for each use, and on PostgreSQL a query that locks rows is never inlined.",
    ),
    Reason(
        r"(claiming\.\w+: picked|limited\.\w+: locked|recovery\.reap: expired"
        r"|settling\.\w+: parents) AS MATERIALIZED",
        "PostgreSQL inlines no WITH query that locks rows, whatever it is called; "
        "test_postgres_inlines_no_query_that_locks_rows reads the plans. On SQLite, where the reap "
        "has such a query, nothing else writes meanwhile.",
    ),
    Reason(
        r"(.*: (topics|levels|policies|shared)|limited\.\w+: picked) AS MATERIALIZED",
        "It reads the same rows, in the same order, however often it is computed: it only saves "
        "time. Rows are chosen and locked by another query of the statement.",
    ),
    Reason(
        r"health\.queues: (limit_key IS NULL|coalesce\(limit_key, ''\) <> '')( #\d+)?",
        "Worded as the conditions of two indexes; both halves together are all jobs.",
    ),
    Reason(
        r"health\.oldest_(limited_)?due: (queue = \S+"
        r"|status IN \('PENDING', 'RETRYING', 'WAITING'\)"
        r"|\(status = 'PENDING' OR status = 'RETRYING' OR status = 'WAITING'\)"
        r"|limit_key IS NULL|coalesce\(limit_key, ''\) <> '')( #2)?",
        "It only finds priorities to read; the read of each, the third, has the condition.",
    ),
    Reason(
        r"health\.oldest_(limited_)?due: (priority = levels\.priority|priority IS NOT NULL #2)",
        "The oldest of all priorities is the answer, under whichever of them it is found.",
    ),
    Reason(
        r"claiming\.levels: limit_key IS NOT NULL",
        "PostgreSQL sorts NULL last, so the first key is the same. SQLite sorts it first.",
        engine="postgres",
    ),
    Reason(
        r"claiming\.claim(?!_plain)\w*: (queue = \$\d+::text"
        r"|status IN \('PENDING', 'RETRYING', 'WAITING'\)|limit_key IS NULL)( #2)?",
        "It only finds priorities to scan; the pick from each, the third, has the condition.",
    ),
    Reason(
        r"limited\.(claim_limited\w*|pick_limited\w*|limit_(keys|runs|use|waits)): "
        r"limit_key IS NOT NULL( #\d+)?",
        "Worded as the condition of the index; a comparison of the key in the same WHERE implies "
        "it.",
    ),
    Reason(
        r"limited\.limit_(runs|waits): limit_key (>= :name|< :beyond|>= \$\d::text|< \$\d::text)",
        "A range for the index; the comparison with the limit's name in the same WHERE implies it.",
    ),
    Reason(
        r"claiming\.claim_plain: priority = \$\d+::int",
        "Worded for the index; the statement claims nothing if a job has another priority.",
    ),
    # -- what a constraint of the table implies ---------------------------------------------------
    Reason(
        r"schedules\.next_due: next_run_at IS NOT NULL",
        "Worded as the condition of the index; a CHECK gives every ACTIVE schedule a next run.",
    ),
    Reason(
        r"(recovery\.(note_shared|reap)|leases\.held_by): lease_until IS NOT NULL",
        "Worded as the condition of the index of leases; a CHECK gives every RUNNING job one.",
    ),
    Reason(
        r"(recovery\.(note_shared|reap)|leases\.held_by): status = 'RUNNING'",
        "A CHECK makes every job RUNNING that has an owner and the end of a lease, and the "
        "conditions beside it ask for both.",
    ),
    # -- what cannot be otherwise by then ---------------------------------------------------------
    Reason(
        r"recovery\.(note_shared|shorten_leases): status = 'RUNNING' #2"
        r"|recovery\.reap: (j\.status = 'RUNNING'|coalesce\(j\.lease_until, \S+\) < r\.before)"
        r"|retention\.prune: status = \S+ #2",
        "The row was picked with the same condition and is locked since, or nothing else writes. "
        "For a prune, test_a_dead_letter_that_is_just_replayed_is_not_pruned removes the lock too.",
    ),
    Reason(
        r"(claiming|limited)\.claim\w*: ([jb]\.status NOT IN "
        r"\('RUNNING', 'SUCCEEDED', 'DEAD_LETTERED', 'CANCELLED'\)"
        r"|\(j\.status <> 'RUNNING' AND [^()]+\))",
        "The row was picked with the same condition and is locked since; "
        "test_two_claims_that_saw_the_same_row_and_one_of_them_gets_it removes the lock too. An "
        "aged claim asks when it locks, and again when it writes: either is enough, as "
        "test_an_aged_claim_that_saw_a_row_which_another_gets shows.",
    ),
    Reason(
        r"recovery\.note_shared: coalesce\(shared_lease, 0\) <> lease_token",
        "It only saves a write that changes nothing.",
    ),
    Reason(
        r"recovery\.reap: \(locked_by IN \(SELECT e\.locked_by FROM expired AS e\)\) IS TRUE",
        "It only counts the leases of fewer workers; those of other workers are never asked for.",
    ),
    Reason(
        r"(claiming|limited)\.claim\w*: \(t_topic IN \(SELECT picked_topic FROM picked\)\) IS TRUE",
        "It leaves out policies of topics without a picked job, which then are not joined. "
        "`j.topic = t_topic` gives each job its own.",
    ),
    Reason(
        r"(operators\.(cancel|change_jobs|edit_payload|expedite|replay)|waiting\.(about_to_wait"
        r"|suspend)|expiry\.expire|keys\.(release_lapsed|replace)|schedules\.(advance"
        r"|update_declared)|settling\.settle|leases\.set_progress): FOR NO KEY UPDATE OF k",
        "The rows come sorted, and the UPDATE locks those that it changes in that order. The lock "
        "before it is for rows that it then leaves out.",
    ),
    Reason(
        r"claiming\.in_flight: l\.locktype = 'relation'",
        "Locks of rows, of pages and of an extension name their table as well, but no such lock "
        "has this mode.",
    ),
    Reason(
        r"settling\.settle_children: status = 'WAITING'",
        "It only names fewer parents to wake; the wake asks again whether they wait.",
    ),
    Reason(
        r"schedules\.fires: occurrence IS NOT NULL",
        "Worded as the condition of the index; the comparison beside it implies it.",
    ),
    Reason(
        r"schedules\.last_fires: occurrence IS NOT NULL",
        "A job without an occurrence has no moment there. It is left out of the text, and SQLite "
        "sorts it last. PostgreSQL sorts it first.",
        engine="sqlite",
    ),
    Reason(
        r"schedules\.(prune|unfinished): j\.schedule_id IS NOT NULL",
        "Worded as the condition of the index; the comparison beside it implies it.",
    ),
    Reason(
        r"settling\.settle_children: ORDER BY p\.id",
        "Sessions have no other plan left than a scan of the index of ids, which sorts them.",
    ),
)


def reason_for(mutant: Mutant) -> str | None:
    """Return why a mutant may survive; None if it may not."""
    for reason in EXPLAINED:
        if reason.fits(mutant):
            return reason.why
    return None
