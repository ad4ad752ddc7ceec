"""What a job waits for, as it is woken and as it is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.guard_cases.rows import CHILD, DONE, RUNNING, SIGNAL
from tests.support.lone_statements import JOB, Case, Change, figure

WAITS = "status = 'WAITING', next_run_at = {future}, wait_kind = "
FOR_CHILDREN = f"{WAITS} 'FAN_OUT', wait_key = 'f|0'"
OF_G = "parent_id = {job}, parent_step = 'g|0'"
TO_F = "parent_step = 'f|0'"


def waits(statement: str, more: str = "", **how: Any) -> list[Case]:
    """Return cases of a statement that asks whether what a job waits for has come."""
    limited = f", {more}" if more else ""
    living = {"other": "PENDING", "third": "RETRYING", "fourth": "WAITING"}
    said: list[tuple[str, dict[str, str], Mapping[str, Change]]] = [
        (
            "all have ended",
            {
                "job": FOR_CHILDREN,
                **{name: f"{OF_G}, status = '{status}'" for name, status in living.items()},
                "fifth": f"{OF_G}, {RUNNING}",
                "sixth": f"{CHILD}, {DONE}",
                **{
                    name: f"parent_id = {{sixth}}, {TO_F}, status = '{status}'"
                    for name, status in zip("abc", living.values(), strict=True)
                },
                "d": f"parent_id = {{sixth}}, {TO_F}, {RUNNING}",
            },
            {name: (name, TO_F) for name in (*living, "fifth")},
        ),
        (
            "enough",
            {
                "job": f"{FOR_CHILDREN}, wait_enough = 1",
                "other": f"{CHILD}, {DONE}",
                "third": CHILD,
            },
            {
                "another step": ("other", "parent_step = 'g|0'"),
                "another's": ("other", "parent_id = {third}"),
                "not yet": ("other", "status = 'PENDING', completed_at = NULL"),
            },
        ),
        *(
            (
                f"too many {status}",
                {
                    "job": f"{FOR_CHILDREN}, wait_too_many = 1",
                    "other": f"{CHILD}, status = '{status}', completed_at = {{past}}",
                    "third": CHILD,
                },
                {
                    "another step": ("other", "parent_step = 'g|0'"),
                    "another's": ("other", "parent_id = {third}"),
                    "not yet": ("other", "status = 'PENDING', completed_at = NULL"),
                },
            )
            for status in ("DEAD_LETTERED", "CANCELLED")
        ),
        (
            "a signal",
            {"job": f"{WAITS} 'SIGNAL', wait_key = 'a'"},
            {
                "consumed": ["UPDATE pulse_signals SET consumed_at = {past}"],
                "another name": ["UPDATE pulse_signals SET name = 'b'"],
                "another's": ["UPDATE pulse_signals SET job_id = {third}"],
            },
        ),
        (
            "a job",
            {"job": f"{WAITS} 'JOB', wait_job = {{other}}", "other": DONE, "third": ""},
            {"it lives": ("other", "status = 'RETRYING', completed_at = NULL")},
        ),
    ]
    return [
        Case(statement, rows | {"job": rows["job"] + limited}, without, also=[SIGNAL], name=name,
             **how)
        for name, rows, without in said
    ]  # fmt: skip


AUDIT: dict[str, Any] = {
    "params": {"queue": "default", "priority": 0, "most": 9},
    "counts": lambda rows: rows[0][1],
}
WAITING = [
    *waits("waiting.wake", batch=[(JOB,)]),
    *waits("health.audit_waits", **AUDIT),
    *waits("health.audit_limited_waits", "limit_key = 'k'", **AUDIT),
    *(
        Case(f"health.audit_{name}", {"job": f"{WAITS} {wait}{limit}"}, {}, AUDIT["params"],
             counts=figure(place), expected=0, name=f"no {place}")
        for name, limit in (("waits", ""), ("limited_waits", ", limit_key = 'k'"))
        for place, wait in ((0, "'SIGNAL', wait_key = 'a'"), (1, "'JOB'"))
    ),
    Case("waiting.wake", {"job": f"{WAITS} 'JOB'"}, {"does not wait": "status = 'PENDING'"},
         batch=[(JOB,)], name="nothing"),
    *(
        Case(f"health.audit_{name}", {"job": f"{WAITS} 'JOB'{limit}"},
             {"does not wait": "status = 'PENDING'", "is due": "next_run_at = {past}",
              "another queue": "queue = 'other'", "another priority": "priority = 1",
              "limit": change},
             AUDIT["params"], counts=lambda rows: rows[0][0], name="aimless")
        for name, limit, change in (
            ("waits", "", "limit_key = 'k'"),
            ("limited_waits", ", limit_key = 'k'", "limit_key = NULL"),
        )
    ),
    *(
        Case(f"health.audit_{name}",
             {"job": f"{WAITS} 'JOB'{limit}",
              "other": f"status = 'CANCELLED', next_run_at = {{later}}{limit}"},
             {}, AUDIT["params"] | {"most": 1}, counts=figure(0), name="behind an ended one")
        for name, limit in (("waits", ""), ("limited_waits", ", limit_key = 'k'"))
    ),
]  # fmt: skip
