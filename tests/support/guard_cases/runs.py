"""Runs under a lease, and their recovery."""

from __future__ import annotations

from datetime import timedelta

from tests.support.guard_cases.rows import (
    CHECKPOINT,
    DONE,
    FENCE,
    LEASE,
    NOT_RUNNING,
    RUNNING,
    UNOWNED,
)
from tests.support.jobs import ALICE
from tests.support.lone_statements import JOB, OTHER, Case

ON_FAST_PATH = FENCE | {
    "watched": "watched = {true}",
    "waited": "wait_kind = 'SLEEP'",
    "suspect": "crashes = 2",
}
RUNS = [
    Case("checkpoints.record", {"job": RUNNING}, FENCE, batch=[CHECKPOINT]),
    Case("families.hold", {"job": RUNNING}, FENCE, batch=[LEASE]),
    Case("leases.set_progress", {"job": RUNNING}, FENCE, {"progress": "1"}, [LEASE]),
    Case("leases.beat", {"job": RUNNING}, FENCE, batch=[LEASE]),
    Case("leases.still_held", {"job": RUNNING}, FENCE, batch=[LEASE]),
    Case("waiting.about_to_wait", {"job": RUNNING}, FENCE, {"target": OTHER}, [LEASE]),
    Case(
        "waiting.suspend",
        {"job": RUNNING},
        FENCE | {"asked to stop": "cancel_requested = {true}"},
        batch=[(*LEASE, "SIGNAL", "x", None, None, None, None, None)],
    ),
    Case(
        "settling.settle",
        {"job": RUNNING},
        FENCE,
        batch=[(*LEASE, "SUCCEEDED", "1", None, None, False)],
    ),
    *(
        Case(
            f"settling.{name}",
            {"job": RUNNING},
            ON_FAST_PATH,
            {"worker": ALICE},
            [(JOB, 1, None)],
            counts=lambda rows: rows[0][0],
        )
        for name in ("settle_succeeded", "settle_children")
    ),
    Case(
        "settling.settled_before",
        {"job": f"{DONE}, lease_token = 1, last_worker = {{alice}}, last_outcome = 'SUCCEEDED'"},
        {
            "runs": RUNNING,
            "token": "lease_token = 2",
            "worker": "last_worker = {bob}",
            "outcome": "last_outcome = 'FAILED'",
        },
        batch=[(*LEASE, "SUCCEEDED", None, None, None, False)],
    ),
    Case(
        "leases.asked_to_stop",
        {"job": f"{RUNNING}, cancel_requested = {{true}}"},
        {"status": NOT_RUNNING, "owner": "locked_by = {bob}", "ask": "cancel_requested = {false}"},
        {"worker": ALICE},
    ),
    Case("leases.held_by", {"job": RUNNING}, {"owner": "locked_by = {bob}", "status": NOT_RUNNING},
         {"worker": ALICE}),
]  # fmt: skip

SQLITE_RUNS = [
    Case(
        "settling.settle_alike",
        {"job": RUNNING, "other": ""},
        ON_FAST_PATH | {"child": "parent_id = {other}, parent_step = 'f|0'"},
        {"worker": ALICE, "token": 1, "outcome_result": None},
        [(JOB,)],
        counts=lambda rows: rows[0][0],
    )
]

# -- recovery -------------------------------------------------------------------------------------

EXPIRED = RUNNING.replace("{future}", "{past}")
RECOVERY = [
    Case(
        "recovery.expired",
        {"job": EXPIRED},
        {"status": UNOWNED, "lease": "lease_until = {future}"},
    ),
    Case(
        "recovery.reap",
        {"job": EXPIRED},
        {
            "status": UNOWNED,
            "lease": "lease_until = {future}",
            "length": "lease_ms = 2000",
        },
        {"most": 9, "left_alone": []},
        [(1000, timedelta(seconds=-1))],
    ),
    Case(
        "recovery.reap",
        {"job": EXPIRED},
        {"not over": "lease_until = {future}"},
        {"most": 9, "left_alone": []},
        [(1000, timedelta(days=1))],
        name="an instant to come",
    ),
    Case(
        "recovery.reap",
        {"job": EXPIRED, "other": "status = 'WAITING', lease_until = {old}, lease_ms = 1000"},
        {},
        {"most": 1, "left_alone": []},
        [(1000, timedelta(seconds=-1))],
        name="behind one that does not run",
    ),
    Case(
        "recovery.reap",
        {"job": EXPIRED, "other": EXPIRED.replace("{past}", "{old}").replace("1000", "2000")},
        {},
        {"most": 1, "left_alone": []},
        [(1000, timedelta(seconds=-1)), (2000, timedelta(days=-2))],
        name="behind one in grace",
    ),
    Case(
        "recovery.reap",
        {"job": EXPIRED},
        {},
        {"most": 9, "left_alone": []},
        [(1000, timedelta(seconds=-9))],
        expected=0,
        name="in grace",
    ),
    Case(
        "recovery.reap",
        {"job": EXPIRED, "other": f"{NOT_RUNNING}, locked_by = {{alice}}"},
        {"the worker runs another": ("other", RUNNING)},
        {"most": 9, "left_alone": []},
        [(1000, timedelta(seconds=-1))],
        counts=lambda rows: int(rows[0][10] == "LEASE_EXPIRED"),
        name="of a worker with one job",
    ),
    Case(
        "recovery.note_shared",
        {"job": RUNNING},
        {"owner": "locked_by = {bob}", "status": NOT_RUNNING},
        batch=[(ALICE,)],
    ),
    Case(
        "recovery.shorten_leases",
        {"job": RUNNING},
        {"status": UNOWNED, "lease": "lease_until = {now}"},
    ),
]
