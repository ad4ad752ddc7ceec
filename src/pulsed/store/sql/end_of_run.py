"""The state of a job after its run: one SET list for settle, reap and suspend."""

from __future__ import annotations

from pulsed.model.lifecycle import TERMINAL
from pulsed.model.outcome import INTERRUPTED
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.jobs import words
from pulsed.store.sql.keys import released_at_end

# How a run ended, as settle reads it from its batch…
REPORTED = {
    "kind": "r.kind", "result": "r.outcome_result::json", "error": "r.error", "delay": "r.delay",
    "until": "NULL::timestamptz", "final": "r.final",
}  # fmt: skip

# …and when all of the batch succeeded. Constants, which both engines evaluate once.
SUCCEEDED = REPORTED | {
    "kind": "'SUCCEEDED'", "error": "NULL::text", "delay": "NULL::float8", "final": "1 = 0"
}  # fmt: skip


def end_of_run(d: Dialect, ended: dict[str, str]) -> str:
    """Return the SET list that settle and reap share: an expired lease is a failure like others.

    It is the only SQL that decides the status after a run; ``lifecycle.status_after`` is its twin.
    """
    kind, error, delay, final = ended["kind"], ended["error"], ended["delay"], ended["final"]
    given_back = f"{kind} IN ('RELEASED', 'SNOOZED', 'WAITING', '{INTERRUPTED}')"
    status_after = f"""CASE
        WHEN {kind} = 'SUCCEEDED' THEN 'SUCCEEDED'
        WHEN {kind} = 'CANCELLED' OR cancel_requested THEN 'CANCELLED'
        WHEN {kind} IN ('RELEASED', 'SNOOZED', '{INTERRUPTED}') THEN 'PENDING'
        WHEN {kind} = 'WAITING' THEN 'WAITING'
        WHEN attempts < max_attempts AND NOT {final} THEN 'RETRYING'
        ELSE 'DEAD_LETTERED' END"""
    return f"""
        status = {status_after},
        next_run_at = CASE {status_after}
            WHEN 'RETRYING' THEN {d.now} + {d.seconds(f"coalesce({delay}, {d.backoff})")}
            WHEN 'PENDING' THEN {d.now} + {d.seconds(f"coalesce({delay}, 0)")}
            WHEN 'WAITING' THEN {d.greatest}({d.now},
                coalesce({ended["until"]}, {d.now} + {d.seconds(delay)}, {d.forever}))
            ELSE next_run_at END,
        completed_at = CASE WHEN {status_after} IN {words(TERMINAL)} THEN {d.now} END,
        attempts = attempts - CASE WHEN {given_back} THEN 1 ELSE 0 END,
        crashes = CASE WHEN {kind} = '{INTERRUPTED}' THEN coalesce(crashes, 0) + 1
            WHEN {kind} IN ('FAILED', 'SNOOZED', 'WAITING') THEN NULL ELSE crashes END,
        result = {ended["result"]},
        last_error = CASE WHEN {kind} = 'SUCCEEDED' THEN NULL
            ELSE coalesce({error}, last_error) END,
        last_worker = locked_by,
        last_outcome = {kind},
        locked_by = NULL,
        lease_until = NULL,
        key_held = {released_at_end(f"{status_after} IN {words(TERMINAL)}")},
        updated_at = {d.now}"""
