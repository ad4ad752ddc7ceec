"""Rows as SET lists and INSERTs: what the cases are made of."""

from __future__ import annotations

from tests.support.jobs import ALICE
from tests.support.lone_statements import JOB, Change

LEASE = (JOB, 1, ALICE)
RUNNING = (
    "status = 'RUNNING', locked_by = {alice}, lease_token = 1, lease_until = {future}, "
    "lease_ms = 1000, attempts = 1, started_at = {past}"
)
NOT_RUNNING = "status = 'WAITING', lease_until = NULL"
"""It keeps its owner, which no statement of pulsed does."""
UNOWNED = "status = 'WAITING', locked_by = NULL"
"""It keeps the end of its lease."""
FENCE: dict[str, Change] = {
    "status": NOT_RUNNING,
    "owner": "locked_by = {bob}",
    "token": "lease_token = 2",
}
CHECKPOINT = (*LEASE, "s", 0, 0, "STEP", "DONE", "", "1", None, 1, 0.0)
DONE = "status = 'SUCCEEDED', completed_at = {past}"
ENDED = "status = 'SUCCEEDED'"
DUE = "next_run_at = {past}"
LIMITED_JOB = f"{DUE}, limit_key = 'k'"
CHILD = "parent_id = {job}, parent_step = 'f|0'"
FAILED = "status = 'DEAD_LETTERED', completed_at = {past}"
STEP = (
    "INSERT INTO pulse_checkpoints (job_id, name, nth, seq, kind, state, input_hash, tries, "
    "started_at, ended_at, lease_token) VALUES ({{job}}, '{}', 0, {}, '{}', '{}', '', 1, "
    "{{{}}}, {{{}}}, 1)"
).format
"""A checkpoint: its name, number, kind and state, and when it began and ended."""
SIGNAL = (
    "INSERT INTO pulse_signals (id, job_id, name, payload, sent_at) "
    "VALUES ({other}, {job}, 'a', '1', {past})"
)
CONTROL = (
    "INSERT INTO pulse_controls (scope, name, paused, declared, updated_at) "
    "VALUES ('{}', '{}', {{{}}}, '{{{{}}}}', {{now}})"
).format
"""A control: its scope, its name, and whether it is paused."""
RATE = "INSERT INTO pulse_rates (scope, key, tat) VALUES ('{}', '{}', {{now}})".format
GOVERNED = CONTROL("queue", "default", "false")
OTHERS_CONTROLS = [
    CONTROL("topic", "email", "false"),
    CONTROL("limit", "email", "true"),
    CONTROL("topic", "default", "true"),
    CONTROL("queue", "other", "true"),
]
"""Controls that are none of the business of a claim of this topic from this queue."""
