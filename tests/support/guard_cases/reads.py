"""Rows of one job, one token or one span of time: others' are neither read nor removed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pulsed.store.sql.rollups import FIGURES
from tests.support.guard_cases.rows import ENDED, FAILED, SIGNAL, STEP
from tests.support.lone_statements import IDS, JOB, OTHER, Case, Change


def others(text: str, mine: str = "{job}", theirs: str = "{other}") -> list[str]:
    """Return an INSERT for the job, after the same one for another."""
    return [text.replace(mine, theirs), text]


SKIPPED = (
    "INSERT INTO pulse_bulk_skips (bulk_id, job_id, status, reason) "
    "VALUES ({job}, {third}, 'PENDING', 'r')"
)
TAG = "INSERT INTO pulse_tags (job_id, tag) VALUES ({job}, 't')"
ITEM = (
    "INSERT INTO pulse_stream (job_id, position, run, value, size, emitted_at) "
    "VALUES ({job}, 1, 1, '1', 1, {past})"
)
TOKEN = (
    "INSERT INTO pulse_tokens (name, digest, roles, created_at) VALUES ('mine', 'd', '[]', {past})"
)
TOKENS = [TOKEN, TOKEN.replace("'mine', 'd'", "'theirs', 'e'")]
WORKER = (
    "INSERT INTO pulse_workers (id, host, pid, queues, topics, slots, running, stuck, state, "
    "version, started_at, last_beat) "
    "VALUES ({job}, 'h', 1, '[]', '[]', 1, 0, 0, 'RUNNING', '1', {past}, {past})"
)
ANOTHER_SIGNAL = SIGNAL.replace("{other}", "{third}")

SCHEDULE = (
    "INSERT INTO pulse_schedules (id, app, name, spec, declared, state, anchor, next_run_at, "
    "created_at, updated_at) VALUES ({third}, 'a', 'n', '{{}}', {false}, 'DONE', {old}, NULL, "
    "{old}, {old})"
)
ROLLUP = (
    f"INSERT INTO pulse_rollups (span, at, queue, topic, recorder, {', '.join(FIGURES)}) "
    f"VALUES (60, {{now}}, 'q', 't', {{alice}}, {', '.join('1' * len(FIGURES))})"
)
AN_ERROR = (
    "INSERT INTO pulse_error_rollups (span, at, queue, topic, error, recorder, count, "
    "dead_lettered, last_at, message) "
    "VALUES (60, {now}, 'q', 't', 'e', {alice}, 1, 0, {now}, 'm')"
)
SPAN: dict[str, Any] = {
    "span": 60, "since": timedelta(seconds=-60), "until": timedelta(seconds=60), "queue": "q",
    "topic": "t", "step": 60, "most": 9, "by_queue": True, "by_topic": True,
}  # fmt: skip
OUT_OF_SPAN: dict[str, Change] = {
    "another span": {"span": 61},
    "before": {"since": timedelta(seconds=1)},
    "after": {"until": timedelta(0)},
    "another queue": {"queue": "x"},
    "another topic": {"topic": "x"},
}
OLD = ("{now}", "{old}")


def theirs(*step: Any) -> str:
    """Return a checkpoint of the other job."""
    return STEP(*step).replace("{job}", "{other}")


READS = [
    Case("bulk.read_skips", {}, {}, {"id": JOB, "most": 9}, also=others(SKIPPED)),
    Case("bulk.forget_skips", {}, {}, batch=[(JOB,)], also=others(SKIPPED)),
    Case("tags.forget_tags", {}, {}, batch=[(JOB,)], also=others(TAG)),
    Case("streams.forget_stream", {}, {}, batch=[(JOB,)], also=others(ITEM)),
    Case("retention.delete_failures", {}, {}, batch=[(JOB,)], also=others(
        "INSERT INTO pulse_failures (job_id, lease_token, attempt, worker_id, started_at, "
        "ended_at, error) VALUES ({job}, 5, 1, {alice}, {past}, {now}, 'e')")),
    Case("streams.trim_stream", {}, {"fewer": {"kept": 2}}, {"job": JOB, "kept": 1, "bytes": 99},
         also=[*others(ITEM), ITEM.replace("1, 1, '1'", "2, 1, '1'"),
               ITEM.replace("{job}, 1", "{other}, 7")]),
    Case("tokens.find_token", {}, {"none": {"digest": "x"}}, {"digest": "d"}, also=TOKENS),
    Case("tokens.read_digest", {}, {"none": {"name": "x"}}, {"name": "mine"}, also=TOKENS),
    Case("tokens.remove_token", {}, {"none": {"name": "x"}}, {"name": "mine"}, also=TOKENS),
    Case("checkpoints.read_generation", {"job": "", "other": ""}, {}, {"job": JOB}),
    Case("checkpoints.read_checkpoint", {}, {"name": {"name": "t"}, "nth": {"nth": 1}},
         {"job": JOB, "name": "s", "nth": 0},
         also=others(STEP("s", 0, "STEP", "DONE", "past", "now"))),
    Case(
        "checkpoints.read_some_checkpoints", {}, {}, {"job": OTHER, "most": 1, "skip": 0},
        also=[
            *others(STEP("s", 0, "STEP", "DONE", "past", "now")),
            theirs("s", 1, "STEP", "DONE", "past", "now").replace("'s', 0", "'s', -1"),
            theirs("a", 1, "STEP", "DONE", "past", "now"),
            "UPDATE pulse_checkpoints SET value = '7' WHERE job_id = {other} AND seq = 0",
        ],
        counts=lambda rows: int(rows[0][6] == "7"),
    ),
    Case("presence.ask", {}, {}, {"request": "drain"}, [(JOB,)], others(WORKER)),
    Case("signals.sent", {}, {"name": {"name": "b"}, "job": {"job": OTHER}},
         {"id": OTHER, "job": JOB, "name": "a"}, also=[SIGNAL, ANOTHER_SIGNAL]),
    Case("signals.oldest_signal", {}, {"name": {"name": "b"}, "job": {"job": OTHER}},
         {"job": JOB, "name": "a"}, also=[SIGNAL]),
    Case("families.parents", {"job": "parent_id = {third}", "other": "parent_id = {fourth}"}, {},
         batch=[(JOB,)]),
    Case("families.with_parents", {"job": "parent_id = {third}", "third": ""},
         {"parent gone": "parent_id = {fourth}"}, batch=[(JOB,)],
         counts=lambda rows: sum(parent is not None for _, parent in rows)),
    Case("families.lock_families",
         {"job": "parent_id = {third}", "third": "", "other": "parent_id = {fourth}", "fourth": ""},
         {"parent gone": "parent_id = {fifth}"}, batch=[(JOB,)], expected=2),
    Case("keys.replayed_keys",
         {"job": f"{FAILED}, key = 'k'", "other": "key = 'k', key_held = {true}"},
         {"another topic": ("other", "topic = 'x'"), "another key": ("other", "key = 'l'"),
          "released": ("other", "key_held = NULL")},
         batch=[(JOB,)], counts=lambda rows: int(rows[0][3] is not None), name="holder"),
    Case("schedules.fires", {"job": "schedule_id = {third}, occurrence = {past}"},
         {"later": {"before": timedelta(days=-1)}, "another's": "schedule_id = {fourth}"},
         {"schedule": IDS["third"], "before": timedelta(0), "before_id": IDS["sixth"], "most": 9}),
    Case("schedules.fires", {"job": "schedule_id = {third}, submitted_at = {past}"},
         {"later": {"before": timedelta(days=-1)}, "another's": "schedule_id = {fourth}"},
         {"schedule": IDS["third"], "before": timedelta(0), "before_id": IDS["sixth"], "most": 9},
         name="out of turn"),
    *(
        Case("schedules.last_fires", {"job": f"schedule_id = {{third}}{moment}"},
             {"another's": "schedule_id = {fourth}"}, {"most": 1}, [(IDS["third"],)],
             [SCHEDULE, SCHEDULE.replace("{third}, 'a'", "{fourth}, 'b'")],
             counts=lambda rows: sum(len((row[1] or "").split()) for row in rows), name=name)
        for name, moment in (("in turn", ", occurrence = {past}"), ("out of turn", ""))
    ),
    Case("schedules.delete", {}, {"app": {"app": "b"}, "name": {"name": "m"}},
         {"app": "a", "name": "n"}, also=[SCHEDULE]),
    Case("schedules.read", {}, {"app": {"app": "b"}, "name": {"name": "m"}},
         {"app": "a", "name": "n"}, also=[SCHEDULE]),
    Case("schedules.prune", {"job": "schedule_id = {fourth}"},
         {"young": {"age": 1e6}, "has a job": "schedule_id = {third}",
          "declared": ["UPDATE pulse_schedules SET declared = {true}"],
          "paused": ["UPDATE pulse_schedules SET state = 'PAUSED'"]},
         {"age": 1.0, "most": 9}, also=[SCHEDULE]),
    Case("schedules.unfinished", {"other": "schedule_id = {job}", "third": "schedule_id = {other}"},
         {"ended": ("other", ENDED), "another's": ("other", "schedule_id = {third}")},
         batch=[(JOB,)]),
    *(
        Case(f"rollups.read_{name}", {}, OUT_OF_SPAN, SPAN, also=[ROLLUP, AN_ERROR])
        for name in ("series", "series_by", "totals", "errors")
    ),
    *(
        Case(f"rollups.{verb}_{name}", {}, {"span": {"span": 61}, "young": {"age": 1e6}},
             {"span": 60, "age": 1.0, "most": 9},
             also=[row, row.replace("'q'", "'p'").replace(*OLD)])
        for verb in ("take", "drop")
        for name, row in (("rollups", ROLLUP), ("errors", AN_ERROR))
    ),
]  # fmt: skip
