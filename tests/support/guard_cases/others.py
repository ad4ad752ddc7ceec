"""Controls, schedules, bulk operations, reads; and what is stored twice."""

from __future__ import annotations

from datetime import timedelta

from pulsed.model.timetable import EPOCH
from pulsed.store.verbs.keys import _replacements
from tests.support.guard_cases.rows import ENDED, FAILED, GOVERNED, RATE
from tests.support.jobs import ALICE, a_job
from tests.support.lone_statements import JOB, OTHER, Case, Change

OF_CONTROL: dict[str, Change] = {
    "another scope": ["UPDATE pulse_controls SET scope = 'topic'"],
    "another name": ["UPDATE pulse_controls SET name = 'x'"],
}
OF_RATE: dict[str, Change] = {
    "another scope": ["UPDATE pulse_rates SET scope = 'limit'"],
    "another key": ["UPDATE pulse_rates SET key = 'x'"],
}
THIS_QUEUE = {"scope": "queue", "name": "default"}
SCHEDULE = (
    "INSERT INTO pulse_schedules (id, app, name, spec, declared, state, anchor, next_run_at, "
    "revision, created_at, updated_at) VALUES ({job}, 'a', 'n', '{{}}', {false}, 'ACTIVE', {past}, "
    "{now}, 3, {past}, {past})"
)
NEWER: dict[str, Change] = {
    "changed since": ["UPDATE pulse_schedules SET revision = 4"],
    "another": ["UPDATE pulse_schedules SET id = {other}"],
}
FAILURE = (
    "INSERT INTO pulse_failures (job_id, lease_token, attempt, worker_id, started_at, ended_at, "
    "error) VALUES ({job}, 5, 1, {alice}, {past}, {now}, 'e')"
)
BULK = (
    "INSERT INTO pulse_bulk (id, kind, arguments, filter, actor, role, claimed, state, "
    "cursor, total, is_at_least, started_at, updated_at) VALUES ({job}, 'cancel', '{{}}', '{{}}', "
    "'a', 'r', '', 'RUNNING', {other}, 1, {false}, {past}, {past})"
)
OTHERS = [
    *(
        Case(f"controls.{name}_control", {}, OF_CONTROL, THIS_QUEUE, also=[GOVERNED])
        for name in ("read", "lock", "remove")
    ),
    Case(
        "controls.prune_rates", {}, {"young": ["UPDATE pulse_rates SET tat = {past}"]}, {"most": 9},
        also=[RATE("queue", "young"), RATE("queue", "old").replace("{now}", "{old}")],
    ),
    Case("controls.queue_usage", {}, OF_RATE, {"name": "default", "most": 9},
         also=[RATE("queue", "default")], counts=lambda rows: int(rows[0][1] is not None)),
    Case("controls.read_rates", {}, OF_RATE, {"scope": "queue"}, [("default",)],
         [RATE("queue", "default")]),
    Case(
        "schedules.set_state", {}, NEWER,
        {"id": JOB, "revision": 3, "state": "PAUSED", "cursor": None}, also=[SCHEDULE],
    ),
    Case(
        "schedules.update_declared", {}, NEWER,
        batch=[(JOB, 3, "{}", "PAUSED", EPOCH, None)], also=[SCHEDULE],
    ),
    *(
        Case(
            f"schedules.{name}", {},
            {
                "another state": {"state": "PAUSED"},
                "not due": ["UPDATE pulse_schedules SET next_run_at = {future}"],
                "never due": [
                    "UPDATE pulse_schedules SET next_run_at = NULL, state = 'DONE'",
                ],
                "after it": {"after_name": "n"},
                **more,
            },
            {"app": "a", "after_app": "a", "after_name": "", "state": "ACTIVE", "most": 9,
             "due_before": timedelta(seconds=9)},
            also=[SCHEDULE],
        )
        for name, more in (
            ("list", {}),
            ("list_of_app", {"another app": {"app": "b", "after_app": "b"}}),
        )
    ),
    Case("reading.read_failures", {}, {"before": {"after": 5}, "another's": {"job": OTHER}},
         {"job": JOB, "after": 4, "most": 9}, also=[FAILURE]),
    Case(
        "reading.read_last_failures", {},
        {"before": {"after": 5}, "after": {"before": 5}, "another's": {"job": OTHER}},
        {"job": JOB, "after": 4, "before": 6, "most": 9}, also=[FAILURE],
    ),
    Case("bulk.count_running_bulk", {}, {"ended": ["UPDATE pulse_bulk SET state = 'DONE'"]},
         also=[BULK], counts=lambda rows: rows[0][0]),
    Case(
        "bulk.trim_bulk", {},
        {"young": {"age": 60.0}, "in progress": ["UPDATE pulse_bulk SET state = 'RUNNING'"]},
        {"age": 1.0, "kept": 9, "most": 9}, also=[BULK.replace("'RUNNING'", "'DONE'")],
    ),
    Case(
        "searching.count_claimable", {"job": ""}, {"ended": ENDED}, {"most": 9},
        counts=lambda rows: sum(row[-1] for row in rows),
    ),
    Case(
        "searching.count_claimable", {"job": "limit_key = 'k'"}, {"ended": ENDED}, {"most": 9},
        counts=lambda rows: sum(row[-1] for row in rows), name="limited",
    ),
    Case(
        "keys.replayed_keys",
        {"job": f"{FAILED}, key = 'k'"},
        {"held": "key_held = {true}", "no key": "key = NULL", "a period": "key_until = {future}"},
        batch=[(JOB,)],
    ),
    Case(
        "keys.replace",
        {"job": "key = 'k', key_held = {true}"},
        {"not held": "key_held = NULL", "started": "started_at = {past}",
         "ran": "status = 'RETRYING'"},
        batch=_replacements([(JOB, a_job(key="k"))]),
    ),
]  # fmt: skip

AGAIN = [
    Case(
        "bulk.insert_bulk", {}, {},
        {"id": JOB, "kind": "cancel", "arguments": "{}", "filter": "{}", "actor": "a", "role": "r",
         "claimed": "", "cursor": OTHER, "total": 1, "is_at_least": False},
        name="pulse_bulk",
    ),
    Case("bulk.insert_skips", {}, {}, {"id": JOB}, [(OTHER, "PENDING", "r", None)],
         name="pulse_bulk_skips"),
    Case("schedules.insert", {}, {},
         {"id": JOB, "app": "a", "name": "n", "spec": "{}", "declared": False, "state": "PAUSED",
          "anchor": EPOCH, "cursor": None}, name="pulse_schedules"),
    Case("schedules.insert_declared", {}, {}, {"app": "a"},
         [(JOB, "n", "{}", "PAUSED", EPOCH, None)], name="pulse_schedules"),
    Case("tokens.add_token", {}, {},
         {"name": "n", "digest": "d", "roles": "[]", "topics": "[]", "queues": "[]"},
         name="pulse_tokens"),
    Case("tags.insert_tags", {}, {}, batch=[(JOB, "t")], name="pulse_tags"),
    Case("settling.record_failures", {}, {}, batch=[(JOB, 1, 1, ALICE, EPOCH, "e", None)],
         name="pulse_failures"),
    Case("signals.send", {}, {}, {"id": JOB, "job": OTHER, "name": "n", "payload": "1"},
         name="pulse_signals"),
]  # fmt: skip
