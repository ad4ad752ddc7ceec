"""Claims of both engines."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from pulsed.model.job import TopicPolicy
from pulsed.model.timetable import EPOCH
from pulsed.store.sql.insertion import as_json
from pulsed.store.sql.jobs import LOWEST_ID
from pulsed.store.sql.statement import Rows
from pulsed.store.verbs.topics import Topics
from tests.support.guard_cases.rows import (
    DUE,
    ENDED,
    GOVERNED,
    LIMITED_JOB,
    OTHERS_CONTROLS,
    RUNNING,
    UNOWNED,
)
from tests.support.jobs import ALICE, TOPIC
from tests.support.lone_statements import JOB, Case, Change

TOPICS = Topics([TopicPolicy(topic=TOPIC)])
LEVEL: dict[str, Any] = {
    "l_at": EPOCH, "l_id": LOWEST_ID, "l_claimed": 60.0, "l_walked": 60.0,
}  # fmt: skip
CLAIM: dict[str, Any] = {
    "worker": ALICE, "queue": "default", "names": TOPICS.names, "topics": TOPICS.as_json, "most": 9,
    **TOPICS.policies[0],
}  # fmt: skip
NOT_DUE: dict[str, Change] = {
    "another queue": "queue = 'other'",
    "ended": ENDED,
    "another topic": "topic = 'other'",
    "not yet": "next_run_at = {future}",
    "expired": "expires_at = {past}",
    "paused topic": [
        "UPDATE pulse_controls SET paused = {true} WHERE scope = 'topic' AND name = 'email'"
    ],
}
EARLIER = "next_run_at = {old}"
A_LITTLE_EARLIER = "next_run_at = {past} - interval '9 seconds'"
"""Above the floor of a claim; on PostgreSQL."""
UNLIMITED: dict[str, Change] = {"limited": "limit_key = 'k'", "another priority": "priority = 7"}
SUSPECT: dict[str, Change] = {
    "no suspect": "crashes = 1",
    "over": "completed_at = {past}",
    "runs one": ("other", f"{RUNNING}, crashes = 2, completed_at = NULL"),
}
BESIDE = {
    "other": f"{RUNNING}, crashes = 0",
    "third": "crashes = 2, completed_at = {past}, status = 'SUCCEEDED', locked_by = {alice}",
}
"""Jobs of the same worker that are no reason not to claim a suspect."""

PICKS = [
    Case("claiming.pick", {"job": DUE}, NOT_DUE | UNLIMITED | {
            "suspect": "crashes = 2",
            "before the floor": {"l_at": timedelta(0), "l_claimed": 0.0},
         }, CLAIM | LEVEL | {"l_priority": 0}, also=OTHERS_CONTROLS),
    Case("claiming.pick_suspect", {"job": f"{DUE}, crashes = 2", **BESIDE},
         NOT_DUE | UNLIMITED | SUSPECT | {
            "before the floor": {"l_at": timedelta(0), "l_claimed": 0.0},
         }, CLAIM | LEVEL | {"l_priority": 0}, also=OTHERS_CONTROLS),
    Case("claiming.long_texts", {"job": ""}, {}, batch=[(JOB,)]),
    Case("claiming.claim", {"job": DUE}, {"ended": ENDED, "runs": RUNNING}, CLAIM, [(JOB,)]),
]  # fmt: skip

GRANT = [("k", 0, 0, 9, False)]
GRANTED: dict[str, Change] = NOT_DUE | {
    "another key": "limit_key = 'l'",
    "another priority": "priority = 7",
    "governed queue": [GOVERNED],
}
OF_KEYS = CLAIM | {"governed": False, "age": 60.0, "highest": 100}
LIMITED_PICKS: list[tuple[str, dict[str, str], dict[str, Change], list[tuple[Any, ...]], str]] = [
    ("", {"job": LIMITED_JOB}, GRANTED | {"suspect": "crashes = 2"}, GRANT, ""),
    ("", {"job": f"{LIMITED_JOB}, started_at = {{past}}"}, {"not begun": "started_at = NULL"},
     [("k", 0, 0, 9, True)], "only begun ones"),
    ("_suspect", {"job": f"{LIMITED_JOB}, crashes = 2", **BESIDE}, GRANTED | SUSPECT, GRANT, ""),
    ("_suspect", {"job": f"{LIMITED_JOB}, crashes = 2, started_at = {{past}}"},
     {"not begun": "started_at = NULL"}, [("k", 0, 0, 9, True)], "only begun ones"),
    ("_suspect", {"job": f"{LIMITED_JOB}, crashes = 2", **BESIDE,
                  "fourth": f"{EARLIER}, limit_key = 'k', crashes = 2, {ENDED}"}, {},
     [("k", 0, 0, 1, False)], "behind an ended one"),
]  # fmt: skip


def limited_picks(statement: str, *, aged: bool = False) -> list[Case]:
    """Return the claims of jobs with a limit, by an engine's own statement."""
    said = list(LIMITED_PICKS)
    if aged:
        said += [("_aged", *each[1:]) for each in LIMITED_PICKS if each[0] == ""]
    return [
        Case(statement.format(name), rows, without, OF_KEYS, batch, OTHERS_CONTROLS, name=of)
        for name, rows, without, batch, of in said
    ]


POSTGRES_CLAIM = CLAIM | {"above": [101, 0], "below": [0, -101], "age": 60.0, "highest": 100}
AT_0, AFTER = (
    [(0, *LEVEL.values())],
    [(0, timedelta(0), LOWEST_ID, 0.0, 60.0)],
)
UNGOVERNED: dict[str, Change] = {"governed queue": [GOVERNED]}
LEASES_MS = {TOPIC: 30_000, "slow": 90_000}
TWO_TOPICS = {
    "topics": Topics([TopicPolicy(topic=name, lease=ms / 1000) for name, ms in LEASES_MS.items()])
    .as_json
}  # fmt: skip


def with_own_lease(rows: Rows) -> int:
    """Return how many claimed jobs have got the lease of their own topic."""
    return sum(row[8] == LEASES_MS[row[1]] for row in rows)


def postgres_claims() -> Iterable[Case]:
    """Yield the claims of PostgreSQL, each in one statement."""
    suspect = {"job": f"{DUE}, crashes = 2", **BESIDE}
    limited: dict[str, Change] = {"limited": "limit_key = 'k'"}
    for name, rows, without in (
        ("claim", {"job": DUE}, UNGOVERNED | {"suspect": "crashes = 2"}),
        ("claim_governed", {"job": DUE}, {"suspect": "crashes = 2"}),
        ("claim_aged", {"job": DUE}, {"suspect": "crashes = 2"}),
        ("claim_suspect", suspect, UNGOVERNED | SUSPECT),
        ("claim_governed_suspect", suspect, SUSPECT),
    ):
        case = f"claiming.{name}"
        out = NOT_DUE | limited | without
        yield Case(case, rows, out, POSTGRES_CLAIM, AT_0, OTHERS_CONTROLS)
        # A floor that has passed the job, and the same for a priority that claims do not know.
        yield Case(case, rows, {}, POSTGRES_CLAIM, AFTER, expected=0, name="before the floor")
        yield Case(
            case, rows | {"job": f"{rows['job']}, priority = 7"},
            {"another queue": "queue = 'other'", "ended": ENDED, "limited": "limit_key = 'k'"},
            POSTGRES_CLAIM, AFTER, name="a new priority",
        )  # fmt: skip
        # A new priority is above the known one, and its jobs are no reason to pass the floor.
        yield Case(case, rows | {"job": f"{rows['job']}, priority = 7", "fourth": rows["job"]}, {},
                   POSTGRES_CLAIM, AFTER, name="above a floor")  # fmt: skip
        # What cannot be claimed must not use up the batch.
        earlier = rows["job"].replace(DUE, A_LITTLE_EARLIER)
        for name_of_it, in_front in (("an ended one", ENDED), ("another topic", "topic = 'x'")):
            yield Case(case, rows | {"fourth": f"{earlier}, {in_front}"}, {},
                       POSTGRES_CLAIM | {"most": 1}, AT_0, name=f"behind {name_of_it}")  # fmt: skip
        yield Case(case, rows | {"fourth": f"{rows['job']}, topic = 'slow'"}, {},
                   POSTGRES_CLAIM | TWO_TOPICS, AT_0, counts=with_own_lease, expected=2,
                   name="of two topics")  # fmt: skip


PLAIN: dict[str, Any] = CLAIM | {
    "names": as_json([TOPIC]), "priority": 0, "at": EPOCH, "last": LOWEST_ID, "claimed": 60.0,
    "walked": 60.0,
}  # fmt: skip
"""A claim of the only priority in use."""


def postgres_alone() -> Iterable[Case]:
    """Yield statements that only PostgreSQL has, and what it decides in one of them."""
    yield Case(
        "claiming.claim_plain",
        {"job": DUE, "other": "status = 'SUCCEEDED', priority = 3",
         "third": "queue = 'x', priority = 3", "fourth": "limit_key = 'k', priority = -3",
         "fifth": "status = 'SUCCEEDED', priority = -3", "sixth": "queue = 'x', priority = -3",
         "a": "limit_key = 'k', priority = 3"},
        NOT_DUE | UNLIMITED | UNGOVERNED | {
            "suspect": "crashes = 2",
            "before the floor": {"at": timedelta(0), "claimed": 0.0},
            "a higher priority": ("other", "status = 'PENDING'"),
            "a lower priority": ("fourth", "limit_key = NULL"),
        },
        PLAIN,
        also=OTHERS_CONTROLS,
    )  # fmt: skip
    yield Case("claiming.claim_plain", {"job": DUE, "fourth": f"{A_LITTLE_EARLIER}, {ENDED}"}, {},
               PLAIN | {"most": 1}, name="behind an ended one")  # fmt: skip
    yield Case("settling.settle_children", {"job": RUNNING, "other": "status = 'WAITING'"}, {},
               {"worker": ALICE}, [(JOB, 1, None)], name="beside a parent of none of them",
               counts=lambda rows: rows[0][0] + len(rows[0][1]))  # fmt: skip
    limited = {"claim_limited": 0, "claim_limited_aged": 0, "claim_limited_suspect": 2}
    for name, crashes in limited.items():
        job = f"{LIMITED_JOB}, crashes = {crashes}"
        yield Case(
            f"limited.{name}", {"job": f"{job}, priority = 1", "other": job}, {}, OF_KEYS,
            [("k", 1, 0, 1, False), ("k", 0, 1, 1, False)], name="of two priorities",
        )  # fmt: skip
        yield Case(
            f"limited.{name}", {"job": job, "other": f"{job}, topic = 'slow'"}, {},
            OF_KEYS | TWO_TOPICS, GRANT, counts=with_own_lease, expected=2, name="of two topics",
        )  # fmt: skip
        yield Case(
            f"limited.{name}", {"job": job, "other": f"{job.replace(DUE, EARLIER)}, topic = 'x'"},
            {}, OF_KEYS, [("k", 0, 0, 1, False)], name="behind another topic",
        )  # fmt: skip
    expired = RUNNING.replace("{future}", "{past}")
    yield Case(
        "recovery.expired_in_families",
        {"job": f"{expired}, parent_id = {{other}}"},
        {
            "status": UNOWNED,
            "not over": "lease_until = {now}",
            "length": "lease_ms = 2000",
            "no family": "parent_id = NULL",
        },
        batch=[(1000, timedelta(seconds=9))],
    )
    yield Case(
        "recovery.expired_in_families",
        {"job": f"{expired}, watched = {{true}}"},
        {},
        batch=[(1000, timedelta(seconds=-9))],
        expected=0,
        name="in grace",
    )
