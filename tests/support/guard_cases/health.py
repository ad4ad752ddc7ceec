"""Reads of the state of queues, and checks."""

from __future__ import annotations

from tests.support.guard_cases.rows import CHILD, FAILED, NOT_RUNNING, RUNNING, UNOWNED
from tests.support.guard_cases.waits import AUDIT
from tests.support.lone_statements import Case, Change, figure


def of_health(name: str, limit: str, change: str) -> list[Case]:
    """Return cases of the reads of a queue's jobs with a limit, or of those without."""
    due = {"job": f"next_run_at = {{past}}{limit}", "other": f"next_run_at = {{future}}{limit}"}
    out: dict[str, Change] = {
        "ended": "status = 'SUCCEEDED'",
        "not yet": "next_run_at = {future}",
        "another queue": "queue = 'other'",
        "limit": change,
    }
    return [
        Case(f"health.oldest_{name}due", due, out, {"queue": "default"},
             counts=lambda rows: int(rows[0][0] is not None)),
        Case(f"health.{name}backlog", due, out | {"another priority": "priority = 1"},
             AUDIT["params"]),
    ]  # fmt: skip


HEALTH = [
    *of_health("", "", "limit_key = 'k'"),
    *of_health("limited_", ", limit_key = 'k'", "limit_key = NULL"),
    Case(
        "health.limited_levels",
        {
            "job": "limit_key = 'k', priority = 1", "other": "limit_key = 'k'",
            "third": "priority = 2",
        },
        {
            "ended": "status = 'SUCCEEDED'", "lower ended": ("other", "status = 'SUCCEEDED'"),
            "unlimited": "limit_key = NULL", "lower unlimited": ("other", "limit_key = NULL"),
            "another queue": "queue = 'x'", "lower in another queue": ("other", "queue = 'x'"),
        },
        {"queue": "default"},
        expected=3,
    ),
    Case("health.running", {"job": RUNNING}, {"no lease": NOT_RUNNING}, {"most": 9}),
    *(
        Case("health.audit_leases", {"job": made}, {"not": change}, {"slack": 1.0, "most": 9},
             counts=figure(place), name=name)
        for place, name, made, change in (
            (0, "running", RUNNING, "status = 'WAITING', locked_by = NULL"),
            (2, "left behind", RUNNING.replace("{future}", "{past}"), "lease_until = {now}"),
            (2, "left behind 2", RUNNING.replace("{future}", "{past}"), UNOWNED),
        )
    ),
    Case(
        "health.audit_leases", {"job": RUNNING.replace("1000", "1"), "other": "lease_ms = 9, "
        "lease_until = {future}"}, {"not": UNOWNED}, {"slack": 1.0, "most": 9},
        counts=lambda rows: rows[0][3] or 0, name="longest",
    ),
    *(
        Case("health.audit_leases", {"job": RUNNING}, {}, {"slack": 1.0, "most": 9}, expected=0,
             counts=figure(place), name=f"a good one {place}")
        for place in (1, 2)
    ),
    Case("health.audit_leases", {"job": RUNNING}, {}, {"slack": 1.0, "most": 9}, expected=0,
         also=[f"UPDATE pulse_jobs SET {NOT_RUNNING}"], counts=lambda rows: rows[0][1],
         name="an owner without a lease"),
    Case("health.queues", {"job": "", "other": "queue = 'x', limit_key = 'k'",
                           "third": "queue = 'y'"},
         {"ended": "status = 'SUCCEEDED'", "next ended": ("other", "status = 'SUCCEEDED'"),
          "last ended": ("third", "status = 'SUCCEEDED'")},
         counts=lambda rows: sum(row[0] is not None for row in rows), expected=3),
    Case("health.queues", {"job": "limit_key = 'k'", "other": "queue = 'x'"},
         {"ended": "status = 'SUCCEEDED'", "next ended": ("other", "status = 'SUCCEEDED'")},
         counts=lambda rows: sum(row[0] is not None for row in rows), expected=2, name="limited"),
    Case("health.audit_newest", {"job": RUNNING, "other": ""}, {}, {"most": 9}, expected=0,
         counts=lambda rows: rows[0][0] + rows[0][1], name="a good one"),
    Case("health.audit_newest", {"job": "max_attempts = 1, attempts = 2"},
         {"no": "attempts = 1"}, {"most": 9}, counts=lambda rows: rows[0][1]),
    Case(
        "health.audit_cascades",
        {"job": f"{FAILED}, cascades = {{true}}", "other": CHILD},
        {
            "just now": "completed_at = {now}",
            "unmarked": "cascades = NULL",
            "child ended": ("other", "status = 'SUCCEEDED'"),
            "child outlives": ("other", "outlives = {true}"),
            "told": ("other", f"{RUNNING}, cancel_requested = {{true}}"),
            "another's child": ("other", "parent_id = {third}"),
        },
        {"slack": 1.0},
        counts=lambda rows: rows[0][0],
    ),
]  # fmt: skip
