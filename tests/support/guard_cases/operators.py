"""Operators, retention, expiry and keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pulsed.model.timetable import EPOCH
from tests.support.guard_cases.rows import DONE, FAILED, RUNNING
from tests.support.jobs import TOPIC
from tests.support.lone_statements import JOB, OTHER, Case, Change

PRUNE: dict[str, Any] = {"status": "SUCCEEDED", "age": 1.0, "since": EPOCH, "most": 9}
NEEDED: dict[str, Change] = {
    "status": "status = 'CANCELLED'",
    "young": "completed_at = {now}",
    "cascades": "cascades = {true}",
    "parent may be replayed": ("other", FAILED),
    "waited for": [
        "UPDATE pulse_jobs SET watched = {true} WHERE id = {job}",
        "UPDATE pulse_jobs SET wait_job = {job}, status = 'WAITING' WHERE id = {third}",
    ],
}
OPERATORS = [
    *(
        Case(
            f"retention.{name}",
            {"job": f"{DONE}, parent_id = {{other}}", "other": "status = 'SUCCEEDED'", "third": ""},
            NEEDED | more,
            PRUNE,
            counts=counts,
        )
        for name, more, counts in (
            ("prune", {"before": {"since": timedelta(0)}}, None),
            ("prunable", {}, lambda rows: rows[0][0]),
        )
    ),
    *(
        Case(
            f"retention.{name}",
            {"job": f"{DONE}, watched = {{true}}", "other": "wait_job = {third}",
             "third": "wait_job = {job}, status = 'SUCCEEDED'"},
            {"needed": ("other", "wait_job = {job}")},
            PRUNE,
            counts=counts,
            name="watched",
        )
        for name, counts in (("prune", None), ("prunable", lambda rows: rows[0][0]))
    ),
    Case(
        "operators.delete",
        {"job": f"{DONE}, parent_id = {{other}}", "other": DONE, "third": f"{DONE}, "
         "parent_id = {job}", "fourth": ""},
        {
            "runs": RUNNING,
            "parent lives": ("other", "status = 'WAITING'"),
            "child lives": ("third", "status = 'WAITING'"),
        },
        batch=[(JOB,)],
    ),
    Case(
        "expiry.pick_expired",
        {"job": "expires_at = {past}"},
        {
            "not yet": "expires_at = {future}",
            "started": "started_at = {past}",
            "ended": "completed_at = {past}",
        },
        {"most": 9},
    ),
    Case(
        "expiry.expire",
        {"job": "expires_at = {past}"},
        {"not yet": "expires_at = {future}", "never": "expires_at = NULL",
         "started": "started_at = {past}", "ended": "status = 'SUCCEEDED'"},
        batch=[(JOB,)],
    ),
    Case(
        "keys.withdraw",
        {"job": ""},
        {"started": "status = 'RETRYING'"},
        batch=[(JOB,)],
    ),
    Case(
        "keys.release_lapsed",
        {"job": "key_held = {true}, key_until = {past}"},
        {"not yet": "key_until = {future}", "for ever": "key_until = NULL",
         "released": "key_held = NULL"},
        batch=[(JOB,)],
    ),
    Case(
        "keys.conflicts",
        {"job": "key = 'k', key_held = {true}"},
        {"released": "key_held = NULL", "another key": "key = 'l'", "another topic": "topic = 'x'"},
        batch=[(0, OTHER, TOPIC, "k")],
        counts=lambda rows: sum(row[2] is not None for row in rows),
    ),
    Case("operators.edit_payload", {"job": FAILED}, {"runs": RUNNING}, {"payload": "1"}, [(JOB,)]),
    *(
        Case(name, {"job": ""}, {}, batch=[(JOB,)])
        for name in ("operators.dueness", "operators.standing", "reading.get", "reading.places")
    ),
]  # fmt: skip
