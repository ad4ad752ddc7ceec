"""What claims scan before they pick: priorities, keys, what is in use."""

from __future__ import annotations

from datetime import timedelta

from pulsed.model.timetable import EPOCH
from pulsed.store.sql.jobs import LOWEST_ID
from tests.support.guard_cases.claims import TOPICS
from tests.support.guard_cases.rows import (
    CONTROL,
    DUE,
    ENDED,
    GOVERNED,
    LIMITED_JOB,
    NOT_RUNNING,
    RATE,
    RUNNING,
)
from tests.support.lone_statements import JOB, Case, figure, told

SCANS = [
    Case(
        "claiming.levels",
        {"job": "priority = 2", "other": "priority = 1", "third": "limit_key = 'k', priority = 5"},
        {
            "ended": ENDED,
            "lower ended": ("other", ENDED),
            "limited": "limit_key = 'k'",
            "lower limited": ("other", "limit_key = 'k'"),
            "another queue": "queue = 'other'",
            "lower in another": ("other", "queue = 'other'"),
        },
        {"queue": "default"},
        counts=lambda rows: sum(row[0] is not None for row in rows),
        expected=2,
    ),
    Case(
        "claiming.levels",
        {"job": "crashes = 2", "other": ""},
        {
            "no suspect": "crashes = 1",
            "over": "completed_at = {past}",
            "ended": ENDED,
            "limited": "limit_key = 'k'",
            "another queue": "queue = 'other'",
        },
        {"queue": "default"},
        counts=lambda rows: int(bool(rows[0][1])),
        name="suspects",
    ),
    Case(
        "claiming.levels",
        {"job": "limit_key = 'k'", "other": ""},
        {"ended": ENDED, "unlimited": "limit_key = NULL", "another queue": "queue = 'other'"},
        {"queue": "default"},
        counts=lambda rows: int(bool(rows[0][2])),
        name="limits",
    ),
    *(
        Case(
            name,
            {"job": "limit_key = 'k'"},
            {
                "of a topic": ["UPDATE pulse_controls SET scope = 'topic' WHERE name = 'default'"],
                "of another": ["UPDATE pulse_controls SET name = 'x' WHERE scope = 'queue'"],
            },
            {"queue": "default", "after": "", "most": 9, "skipped": "[]"},
            also=[GOVERNED],
            counts=lambda rows: int(bool(rows[0][-1])),
            name="governed",
        )
        for name in ("claiming.levels", "limited.limit_keys")
    ),
    Case(
        "limited.limit_keys",
        {"job": "limit_key = 'k', priority = 1", "other": "limit_key = 'j', priority = 0"},
        {"ended": ENDED, "first ended": ("other", ENDED)},
        {"queue": "default", "after": "", "most": 9, "skipped": "[]"},
        expected=2,
        name="a lower priority of an earlier key",
    ),
    Case(
        "claiming.others_first",
        {"job": DUE},
        {
            "ended": ENDED,
            "not yet": "next_run_at = {future}",
            "limited": "limit_key = 'k'",
            "another queue": "queue = 'other'",
            "own": {"names": TOPICS.names},
        },
        {"queue": "default", "names": "[]", "most": 9},
        counts=lambda rows: rows[0][0],
    ),
    Case(
        "limited.limit_keys",
        {
            "job": "limit_key = 'k', priority = 1",
            "other": "limit_key = 'k', priority = 0",
            "third": "limit_key = 'l'",
        },
        {
            "first ended": ENDED,
            "next priority ended": ("other", ENDED),
            "next key ended": ("third", ENDED),
            "first unlimited": "limit_key = NULL",
            "in another queue": "queue = 'other'",
            "next in another queue": ("other", "queue = 'other'"),
            "next key in another queue": ("third", "queue = 'other'"),
            "most": {"most": 2},
            "after": {"after": "k"},
        },
        {"queue": "default", "after": "", "most": 9, "skipped": "[]"},
        counts=lambda rows: len(rows) if len(rows) != 1 else 2,
        expected=3,
    ),
    Case(
        "limited.limit_suspects",
        {"job": f"{LIMITED_JOB}, crashes = 2"},
        {
            "no suspect": "crashes = 1",
            "over": "completed_at = {past}",
            "ended": ENDED,
            "not yet": "next_run_at = {future}",
            "unlimited": "limit_key = NULL",
            "another queue": "queue = 'other'",
        },
        {"queue": "default", "most": 9},
    ),
    *(
        Case(
            "limited.limit_use",
            {"job": f"{RUNNING}, limit_key = 'k'"},
            {
                "not started": "started_at = NULL",
                "ended": "completed_at = {past}",
                "another key": "limit_key = 'l'",
            },
            {"most": 9},
            [("k", "n")],
            counts=figure(place),
            name=name,
        )
        for place, name in ((4, "running"), (5, "begun"))
    ),
    *(
        Case(
            "limited.limit_use",
            {},
            {
                "of a queue": [f"UPDATE {table} SET scope = 'queue'"],
                "of another": [f"UPDATE {table} SET {key} = 'x'"],
            },
            {"most": 9},
            [("k", "n")],
            [CONTROL("limit", "n", "true"), RATE("limit", "k")],
            counts=told(place),
            name=name,
        )
        for place, name, table, key in (
            (1, "paused", "pulse_controls", "name"),
            (2, "numbers", "pulse_controls", "name"),
            (3, "rate", "pulse_rates", "key"),
        )
    ),
    Case(
        "limited.limit_runs",
        {"job": f"{RUNNING}, limit_key = 'k'"},
        {
            "not started": "started_at = NULL",
            "ended": "completed_at = {past}",
            "no lease": NOT_RUNNING,
            "another key": "limit_key = 'l'",
            "an earlier key": "limit_key = 'j'",
            "a longer name": "limit_key = 'kk'",
            "a name between": "limit_key = 'k!'",
        },
        {"name": "k", "beyond": "k-", "most": 9},
    ),
    Case(
        "limited.limit_waits",
        {"job": "limit_key = 'k'"},
        {"ended": ENDED, "another key": "limit_key = 'l'", "an earlier key": "limit_key = 'j'",
         "a longer name": "limit_key = 'kk'",
            "a name between": "limit_key = 'k!'", "another queue": "queue = 'other'"},
        {"queue": "default", "name": "k", "beyond": "k-", "most": 9},
    ),
    Case(
        "limited.without_key",
        {"job": DUE},
        {
            "ended": ENDED,
            "limited": "limit_key = 'k'",
            "another queue": "queue = 'other'",
            "another priority": "priority = 1",
            "before": {"after": timedelta(0)},
        },
        {"queue": "default", "priority": 0, "after": EPOCH, "after_id": LOWEST_ID, "most": 9},
    ),
    Case(
        "limited.payloads_without_key",
        {"job": ""},
        {"ended": ENDED, "limited": "limit_key = 'k'", "runs": RUNNING},
        batch=[(JOB,)],
    ),
    Case(
        "limited.set_limit_keys",
        {"job": ""},
        {"ended": ENDED, "limited": "limit_key = 'l'", "runs": RUNNING},
        batch=[(JOB, "k")],
    ),
]  # fmt: skip
