"""Families, steps and signals."""

from __future__ import annotations

from tests.support.guard_cases.rows import CHECKPOINT, CHILD, FAILED, RUNNING, SIGNAL, STEP
from tests.support.lone_statements import JOB, OTHER, Case

FAMILIES = [
    Case(
        "families.mark_cascades",
        {"job": FAILED, "other": CHILD},
        {
            "child ended": ("other", "status = 'SUCCEEDED'"),
            "child outlives": ("other", "outlives = {true}"),
            "another's child": ("other", "parent_id = {third}"),
        },
        batch=[(JOB,)],
    ),
    Case(
        "families.unmark_cascades",
        {"job": f"{FAILED}, cascades = {{true}}", "other": f"{CHILD}, outlives = {{true}}"},
        {"child to cancel": ("other", "outlives = NULL")},
        batch=[(JOB,)],
    ),
    Case(
        "families.unmark_cascades",
        {"job": f"{FAILED}, cascades = {{true}}", "other": f"{CHILD}, {RUNNING}, "
         "cancel_requested = {true}"},
        {"child not told": ("other", "cancel_requested = {false}")},
        batch=[(JOB,)],
        name="asked to stop",
    ),
    Case(
        "families.untold_children",
        {"job": FAILED, "other": f"{CHILD}, {RUNNING}"},
        {
            "told": ("other", "cancel_requested = {true}"),
            "ended": ("other", "status = 'SUCCEEDED', locked_by = NULL, lease_until = NULL"),
            "outlives": ("other", "outlives = {true}"),
            "another's": ("other", "parent_id = {third}"),
        },
        {"parent": JOB, "most": 9},
    ),
    Case(
        "families.unsuccessful_children",
        {"job": FAILED, "other": f"{CHILD}, {FAILED}"},
        {
            "child succeeded": ("other", "status = 'SUCCEEDED'"),
            "decided": [
                "UPDATE pulse_checkpoints SET kind = 'FAN_OUT' WHERE job_id = {job} AND name = 'f'"
            ],
            "earlier": ("other", "parent_step = 'f|0|1'"),
        },
        batch=[(JOB,)],
        also=[
            STEP("g", 0, "FAN_OUT", "DONE", "past", "now"),
            STEP("f", 1, "STEP", "DONE", "past", "now"),
            STEP("f", 1, "FAN_OUT", "DONE", "past", "now").replace("{job}", "{third}"),
        ],
    ),
    *(
        Case(
            f"families.{name}",
            {
                "job": FAILED,
                "other": f"{CHILD}{ended}",
                "third": FAILED,
                "fourth": f"parent_id = {{third}}, parent_step = 'f|0'{ended}",
            },
            {},
            batch=[(JOB,)],
            name="another family",
        )
        for name, ended in (("mark_cascades", ""), ("unsuccessful_children", f", {FAILED}"))
    ),
    Case(
        "waiting.open_waits",
        {"job": "status = 'WAITING', lease_token = 1"},
        {"status": "status = 'PENDING'", "token": "lease_token = 2"},
        batch=[CHECKPOINT],
    ),
    Case(
        "waiting.waiters",
        {"job": "wait_job = {other}, status = 'WAITING'"},
        {"for another": "wait_job = {third}", "ended": "status = 'SUCCEEDED'"},
        batch=[(OTHER,)],
    ),
    Case("waiting.watch", {"job": RUNNING},
         {"ended": "status = 'SUCCEEDED', locked_by = NULL, lease_until = NULL"}, {"target": JOB}),
    Case(
        "signals.consume",
        {"job": ""},
        {"consumed": ["UPDATE pulse_signals SET consumed_at = {past}"],
         "other job": ["UPDATE pulse_signals SET job_id = {third}"],
         "other name": ["UPDATE pulse_signals SET name = 'b'"]},
        {"id": OTHER, "job": JOB, "name": "a"},
        also=[SIGNAL],
    ),
    Case(
        "checkpoints.recorded",
        {"job": ""},
        {"open": ["UPDATE pulse_checkpoints SET state = 'OPEN'"],
         "another": ["UPDATE pulse_checkpoints SET nth = 1"],
         "another name": ["UPDATE pulse_checkpoints SET name = 't'"],
         "another job": ["UPDATE pulse_checkpoints SET job_id = {other}"]},
        {"job": JOB, "name": "s", "nth": 0},
        also=[STEP("s", 0, "STEP", "DONE", "past", "now")],
    ),
    *(
        Case(
            f"checkpoints.{name}",
            {"job": ""},
            {
                "caught": ["UPDATE pulse_checkpoints SET started_at = {future} WHERE name = 't'"],
                "not failed": ["UPDATE pulse_checkpoints SET state = 'DONE' WHERE name = 's'"],
                "kind": [f"UPDATE pulse_checkpoints SET kind = '{other}' WHERE name = 's'"],
                "another's": ["UPDATE pulse_checkpoints SET job_id = {third} WHERE name = 's'"],
            },
            batch=[(JOB,)],
            also=[
                STEP("s", 0, kind, "FAILED", "past", "now"),
                STEP("t", 1, "STEP", "DONE", "past", "now"),
                STEP("v", 2, "VERSION", "DONE", "future", "future"),
                STEP("before", -1, "STEP", "DONE", "future", "future"),
                STEP("elsewhere", 3, "STEP", "DONE", "future", "future"),
                "UPDATE pulse_checkpoints SET job_id = {other} WHERE name = 'elsewhere'",
            ],
        )
        for name, kind, other in (
            ("reopen_fan_outs", "FAN_OUT", "STEP"),
            ("forget_failed_steps", "STEP", "FAN_OUT"),
        )
    ),
]  # fmt: skip
