"""The hot statements are index look-ups whatever the planner believes about the table.

A generic plan is made once and kept until the next ANALYZE: one that was right for ten rows must
not be wrong for a million.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.sql import SQL, Literal

from pulsed.store.blocking import run_blocking
from pulsed.store.postgres.session import Lane, Sessions
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.sql.statement import Sql
from pulsed.store.verbs import reads, search
from pulsed.store.verbs.script import drive
from pulsed.store.verbs.topics import Topics
from tests.support.jobs import a_policy
from tests.support.statements import names_of, postgres_engine, sql_of
from tests.test_store_search import EVERY_FILTER, searches

SCHEMA = "pulsed_plans"
ENGINE = postgres_engine(SCHEMA)

BY_ID = ("pulse_jobs_pkey", "id = ANY")
BY_PLACE = (None, "ctid = ANY")  # without an index
DUE = ("pulse_jobs_unlimited", "queue")
CLAIMABLE = ("pulse_jobs_unlimited", "")
LIMITED = ("pulse_jobs_limited", "queue")
LIMITED_DUE = ("pulse_jobs_limited_due", "")
SLOTS = ("pulse_jobs_slots", "limit_key = ")
LEASES = ("pulse_jobs_lease", "lease_until <")
HELD = ("pulse_jobs_lease", "")  # all of it: it has the running jobs and nothing else
SUSPECTS = ("pulse_jobs_suspects", "queue")
FINISHED = ("pulse_jobs_finished", "AND (completed_at <")
PARENT = ("pulse_jobs_pkey", "id = ANY (ARRAY[j")
WAITERS = ("pulse_jobs_waiters", "wait_job = ")
CHILDREN = ("pulse_jobs_family", "parent_id = ")
PLANS = {
    "levels": [DUE, SUSPECTS, LIMITED],
    "others_first": [DUE],
    "claim": [DUE, DUE, DUE, BY_ID],
    "claim_plain": [DUE, DUE, DUE, BY_PLACE],
    "claim_suspect": [DUE, DUE, SUSPECTS, ("pulse_jobs_suspects", ""), BY_ID],
    "claim_governed": [DUE, DUE, DUE, BY_ID],
    "claim_aged": [DUE, DUE, DUE, BY_ID, BY_ID],
    "queue_usage": [HELD],
    "beat": [BY_ID, BY_ID],
    "still_held": [BY_ID],
    "settle": [BY_ID, BY_ID],
    "settle_succeeded": [BY_ID],
    "settled_before": [BY_ID],
    "reap": [LEASES, HELD, BY_ID],
    "note_shared": [HELD, BY_ID],
    "pick_expired": [("pulse_jobs_expiring", "expires_at <=")],
    "expire": [BY_ID, BY_ID],
    "held_by": [HELD],
    "asked_to_stop": [("pulse_jobs_cancelling", "locked_by = $")],
    "queues": [CLAIMABLE, LIMITED_DUE],
    "limit_keys": [LIMITED, LIMITED, LIMITED, BY_ID, BY_ID],
    "limit_suspects": [SUSPECTS],
    "limit_use": [SLOTS],
    "claim_limited": [("pulse_jobs_limited", "next_run_at <="), BY_ID],
    "claim_limited_suspect": [SUSPECTS, ("pulse_jobs_suspects", ""), BY_ID],
    "without_key": [DUE],
    "payloads_without_key": [BY_ID],
    "set_limit_keys": [BY_ID],
    "limited_backlog": [LIMITED_DUE],
    "backlog": [DUE],
    "audit_leases": [HELD],
    "running": [HELD],
    "audit_newest": [("pulse_jobs_pkey", "")],
    "oldest_due": [DUE, DUE],
    "set_progress": [BY_ID, BY_ID],
    "cancel": [BY_ID, BY_ID],
    "replay": [BY_ID, BY_ID],
    "delete": [BY_ID, BY_ID, PARENT, CHILDREN],
    "prune": [FINISHED, BY_ID, PARENT, WAITERS],
    "standing": [BY_ID],
    "get": [BY_ID],
}


@pytest.fixture(scope="module")
def planner(postgres_url) -> Iterator[psycopg.Connection]:
    """A session set up like a worker's, on tables of its own."""
    store = PostgresStore(postgres_url, PostgresOptions(schema=SCHEMA))
    run_blocking(store.migrate())
    run_blocking(store.aclose())
    with closing(psycopg.connect(postgres_url, autocommit=True)) as connection:
        for name, value in Sessions(PostgresOptions()).at_connect(Lane.WORK).items():
            connection.execute(f"SET {name} = '{value}'")
        yield connection
        connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def fill(connection, rows, *, running):
    connection.execute(f"TRUNCATE {SCHEMA}.pulse_jobs")
    connection.execute(
        f"""INSERT INTO {SCHEMA}.pulse_jobs (id, queue, topic, status, payload, next_run_at,
            submitted_at, completed_at, locked_by, lease_until, lease_ms)
        SELECT gen_random_uuid(), 'default', 't', status, '{{}}', now(), now(),
            CASE WHEN status IN ('SUCCEEDED', 'DEAD_LETTERED') THEN now() END,
            CASE WHEN status = 'RUNNING' THEN gen_random_uuid() END,
            CASE WHEN status = 'RUNNING' THEN now() END, 1000
        FROM (SELECT CASE WHEN i % 10 < {running} THEN 'RUNNING' WHEN i % 10 < 4 THEN 'PENDING'
            WHEN i % 10 = 4 THEN 'DEAD_LETTERED' ELSE 'SUCCEEDED' END AS status
            FROM generate_series(1, {rows}) AS i) AS made"""
    )


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def explain(connection, sql: Sql):
    connection.execute(f"PREPARE hot AS {sql.text}")
    arguments = f"({', '.join(['NULL'] * len(sql.names))})" if sql.names else ""
    try:
        [answer] = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE hot{arguments}").fetchone()
    finally:
        connection.execute("DEALLOCATE hot")
    return list(nodes(answer[0]["Plan"]))


def is_as_expected(scans, expected):
    """Whether the scans are exactly the expected index lookups."""
    left = list(expected)
    for node in scans:
        index, condition = node.get("Index Name"), node.get("Index Cond", node.get("TID Cond", ""))
        fitting = [one for one in left if one[0] == index and one[1] in condition]
        if not fitting:
            return False
        left.remove(max(fitting, key=lambda one: len(one[1])))
    return not left


@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
@pytest.mark.parametrize("running", [0, 2], ids=["idle", "busy"])
@pytest.mark.parametrize("rows", [0, 10, 1_000, 20_000])
def test_hot_statements_only_look_jobs_up_by_their_indexes(planner, rows, running, analyzed):
    fill(planner, rows, running=running)
    if analyzed:
        planner.execute(f"ANALYZE {SCHEMA}.pulse_jobs")
    for name, expected in PLANS.items():
        plan = explain(planner, sql_of(ENGINE, name))
        scans = [
            node
            for node in plan
            if node.get("Relation Name") == "pulse_jobs" and node["Node Type"] != "ModifyTable"
        ]
        assert is_as_expected(scans, expected), f"{name}: {json.dumps(scans, indent=1)}"
        joins = {node["Node Type"] for node in plan if "Join" in node["Node Type"]}
        assert not joins, f"{name} joins by {joins}"


@pytest.mark.parametrize("rows", [10, 20_000])
@pytest.mark.parametrize("name", ["count_claimable", "backlog", "queues", "oldest_due"])
def test_jobs_that_wait_are_counted_from_their_index_alone(planner, name, rows):
    """Their rows are spread over the whole table: pages count them every two seconds."""
    fill(planner, rows, running=0)
    planner.execute(f"VACUUM (ANALYZE) {SCHEMA}.pulse_jobs")
    scans = [
        (node["Node Type"], node["Index Name"])
        for node in explain(planner, sql_of(ENGINE, name))
        if node.get("Relation Name") == "pulse_jobs"
    ]
    indexes = {"pulse_jobs_unlimited", "pulse_jobs_limited_due"}
    assert {node for node, _ in scans} == {"Index Only Scan"}
    assert {index for _, index in scans} <= indexes


@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
@pytest.mark.parametrize("rows", [0, 10, 20_000])
@pytest.mark.parametrize("name", ["settle_succeeded", "settle_children"])
def test_successes_are_looked_up_and_locked_in_the_order_of_their_ids(
    planner, name, rows, analyzed
):
    fill(planner, rows, running=2)
    if analyzed:
        planner.execute(f"ANALYZE {SCHEMA}.pulse_jobs")
    plan = explain(planner, sql_of(ENGINE, name))
    (update,) = (node for node in plan if node["Node Type"] == "ModifyTable")
    kinds = [node["Node Type"] for node in nodes(update)]
    below_the_update = kinds[1:]
    assert below_the_update[0] == "Nested Loop"
    assert below_the_update.index("Sort") < below_the_update.index("Index Scan")  # outer, inner
    assert "Materialize" not in kinds


def test_the_limit_of_a_claim_and_of_a_reap_is_applied_once(planner):
    """Under a join, a LIMIT that is not materialized runs again for each row of the other side."""
    for name in ("claim", "claim_plain", "reap"):
        limits = [
            node for node in explain(planner, sql_of(ENGINE, name)) if node["Node Type"] == "Limit"
        ]
        assert any(node.get("Subplan Name", "").startswith("CTE") for node in limits), name


MANY_TOPICS, FOREIGN, OURS = 400, 300, 50


@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
def test_a_claim_does_not_compare_each_job_with_each_topic(planner, analyzed):
    """Neither the jobs that it skips nor those that it leases."""
    fill_with_foreign_jobs(planner, analyzed=analyzed)
    topics = [
        {"t_topic": f"t{n}", "t_max_attempts": 3, "t_lease_ms": 1} for n in range(MANY_TOPICS)
    ]
    level = {"l_priority": [0], "l_at": ["-infinity"], "l_id": [UUID(int=0)]}
    ages = {"l_claimed": [0.0], "l_walked": [1e9]}
    params = {"topics": json.dumps(topics), "queue": "default", "most": OURS, "worker": UUID(int=1)}
    plan = run_explained(planner, "claim", params | level | ages | {"above": [], "below": []})
    (update,) = (node for node in plan if node["Node Type"] == "ModifyTable")
    assert update["Actual Rows"] == OURS
    visited = sum(visits(node) for node in plan if node["Node Type"] == "CTE Scan")
    assert visited <= 3 * (MANY_TOPICS + FOREIGN + OURS)


@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
def test_neither_does_the_short_form(planner, analyzed):
    fill_with_foreign_jobs(planner, analyzed=analyzed)
    topics = Topics([a_policy(f"t{n}") for n in range(MANY_TOPICS)])
    place = {"priority": 0, "at": "-infinity", "last": UUID(int=0), "claimed": 0.0, "walked": 1e9}
    params = {"names": topics.names, "queue": "default", "most": OURS, "worker": UUID(int=1)}
    plan = run_explained(planner, "claim_plain", params | place | topics.policies[0])
    (update,) = (node for node in plan if node["Node Type"] == "ModifyTable")
    assert update["Actual Rows"] == OURS
    (topic_scan,) = (node for node in plan if node["Node Type"] == "Function Scan")
    assert visits(topic_scan) == MANY_TOPICS


def fill_with_foreign_jobs(planner, *, analyzed):
    planner.execute(f"TRUNCATE {SCHEMA}.pulse_jobs")
    for topic, number in (("foreign", FOREIGN), ("t7", OURS)):
        planner.execute(
            f"""INSERT INTO {SCHEMA}.pulse_jobs (id, queue, topic, status, payload, next_run_at,
                submitted_at)
            SELECT gen_random_uuid(), 'default', '{topic}', 'PENDING', '{{}}', now(), now()
            FROM generate_series(1, {number})"""
        )
    if analyzed:
        planner.execute(f"ANALYZE {SCHEMA}.pulse_jobs")


def run_explained(connection, name, params):
    sql = sql_of(ENGINE, name)
    connection.execute(f"PREPARE hot AS {sql.text}")
    given = SQL(", ").join(Literal(params[name]) for name in sql.names)
    query = SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE hot({})").format(given)
    try:
        [answer] = connection.execute(query).fetchone()
    finally:
        connection.execute("DEALLOCATE hot")
    return list(nodes(answer[0]["Plan"]))


def visits(node):
    rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return (rows + node.get("Rows Removed by Join Filter", 0)) * node["Actual Loops"]


def test_a_prune_picks_its_jobs_once(planner):
    limits = [
        node for node in explain(planner, ENGINE.retention.prune) if node["Node Type"] == "Limit"
    ]
    assert [node.get("Parent Relationship") for node in limits] == ["InitPlan"]


# -- workflows ------------------------------------------------------------------------------------

CHECKPOINTS = ("pulse_checkpoints_pkey", "job_id = ")
ONE_CHECKPOINT = ("pulse_checkpoints_pkey", "AND (nth = ")
SIGNALS = ("pulse_signals_job", "job_id = ")
ONE_JOB = ("pulse_jobs_pkey", "id = $")
FAMILY = ("pulse_jobs_family", "parent_id = ANY (ARRAY[j.id])")
OF_ONE_STATUS = ("pulse_jobs_family", "AND (parent_step = j.wait_key) AND (status = ")
WORKFLOW_PLANS: dict[str, list[tuple[str, str]]] = {
    "read_checkpoints": [CHECKPOINTS],
    "read_some_checkpoints": [CHECKPOINTS, ONE_CHECKPOINT],
    "read_checkpoint": [CHECKPOINTS],
    "read_generation": [ONE_JOB],
    "record": [BY_ID],
    "recorded": [CHECKPOINTS],
    "hold": [BY_ID],
    "suspend": [BY_ID, BY_ID],
    "open_waits": [BY_ID],
    "lock_families": [BY_ID, BY_ID],
    "lock": [BY_ID],
    "lock_free": [BY_ID],
    "with_parents": [BY_ID, PARENT],
    "waiters": [WAITERS],
    "settle_children": [BY_ID, BY_ID],
    "parents": [BY_ID],
    "wake": [BY_ID, *[OF_ONE_STATUS] * 7, SIGNALS, BY_ID],
    "about_to_wait": [BY_ID, BY_ID],
    "watch": [ONE_JOB],
    "outcomes": [BY_ID],
    "lock_status": [ONE_JOB],
    "send": [],
    "sent": [SIGNALS],
    "oldest_signal": [SIGNALS],
    "consume": [SIGNALS],
    "is_past": [],
    "mark_cascades": [BY_ID, FAMILY],
    "pick_cascades": [("pulse_jobs_cascades", "")],  # all of it: it has nothing else
    "unmark_cascades": [BY_ID, FAMILY],
    "audit_waits": [DUE, *[OF_ONE_STATUS] * 7, SIGNALS, BY_ID],
    "audit_cascades": [("pulse_jobs_cascades", ""), FAMILY],
    "forget_steps": [CHECKPOINTS],
    "forget_signals": [SIGNALS],
    "forget_failed_steps": [CHECKPOINTS, CHECKPOINTS],
    "reopen_fan_outs": [CHECKPOINTS, CHECKPOINTS],
    "end_sleeps": [CHECKPOINTS],
}
RARE_PLANS = {
    "untold_children": [("pulse_jobs_family", "parent_id = $"), BY_ID],
    "unsuccessful_children": [BY_ID, CHECKPOINTS, FAMILY],
}
"""Of the end of a parent and of a replay: on tables known to be all but empty they may be scans."""


def fill_families(connection):
    """Give every other job a parent, and every job a checkpoint and a signal."""
    jobs = f"{SCHEMA}.pulse_jobs"
    connection.execute(f"TRUNCATE {SCHEMA}.pulse_checkpoints, {SCHEMA}.pulse_signals")
    connection.execute(
        f"""UPDATE {jobs} SET parent_id = parent, parent_step = 'f|1', wait_job = parent
        FROM (SELECT id AS child, lag(id) OVER (ORDER BY id) AS parent,
            row_number() OVER (ORDER BY id) AS n FROM {jobs}) AS made
        WHERE id = child AND n % 2 = 0"""
    )
    connection.execute(
        f"""INSERT INTO {SCHEMA}.pulse_checkpoints (job_id, name, nth, seq, kind, state,
            input_hash, tries, started_at, lease_token)
        SELECT id, 's', 1, 1, 'STEP', 'DONE', '', 1, now(), 1 FROM {jobs}"""
    )
    connection.execute(
        f"""INSERT INTO {SCHEMA}.pulse_signals (id, job_id, name, payload, sent_at)
        SELECT gen_random_uuid(), id, 'go', 'null', now() FROM {jobs}"""
    )


@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
@pytest.mark.parametrize("rows", [0, 10, 1_000, 20_000])
def test_statements_of_workflows_only_look_things_up_by_their_indexes(planner, rows, analyzed):
    fill(planner, rows, running=2)
    fill_families(planner)
    if analyzed:
        for table in ("jobs", "checkpoints", "signals"):
            planner.execute(f"ANALYZE {SCHEMA}.pulse_{table}")
    plans = WORKFLOW_PLANS | (RARE_PLANS if rows >= 1_000 else {})
    for name, expected in plans.items():
        scans = [
            node
            for node in explain(planner, sql_of(ENGINE, name))
            if "Relation Name" in node and node["Node Type"] != "ModifyTable"
        ]
        assert is_as_expected(scans, expected), f"{name}: {json.dumps(scans, indent=1)}"


def test_the_children_of_a_small_workflow_are_looked_up_beside_a_few_large_ones(planner):
    """A planner that knows of three large families believes every family to be as large."""
    fill(planner, 20_000, running=0)
    jobs = f"{SCHEMA}.pulse_jobs"
    planner.execute(
        f"""UPDATE {jobs} SET parent_id = ('00000000-0000-0000-0000-00000000000'
            || get_byte(uuid_send(id), 15) % 3)::uuid, parent_step = 'f|1'"""
    )
    planner.execute(f"ANALYZE {jobs}")
    for name in ("untold_children", "unsuccessful_children", "mark_cascades", "unmark_cascades"):
        for node in explain(planner, sql_of(ENGINE, name)):
            if node.get("Alias") == "c":
                assert node["Index Name"] == "pulse_jobs_family", name
                assert "parent_id = " in node["Index Cond"], name


def test_every_statement_of_workflows_has_its_plan_tested():
    of_workflows = (ENGINE.checkpoints, ENGINE.waiting, ENGINE.families, ENGINE.signals)
    prepared = {name for group in of_workflows for name in names_of(group)}
    beside_them = {"settle_children", "audit_waits", "audit_cascades"}
    assert prepared | beside_them == {*WORKFLOW_PLANS, *RARE_PLANS}


# -- lists and counts ------------------------------------------------------------------------------


@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
def test_no_search_visits_more_than_its_bound(planner, monkeypatch, analyzed):
    """Also of filters that match nothing, which would walk the table."""
    monkeypatch.setattr(search, "SEARCHED", 100)
    fill(planner, 20_000, running=0)
    planner.execute(f"TRUNCATE {SCHEMA}.pulse_tags")
    planner.execute(f"INSERT INTO {SCHEMA}.pulse_tags SELECT id, 'common' FROM {SCHEMA}.pulse_jobs")
    if analyzed:
        planner.execute(f"ANALYZE {SCHEMA}.pulse_jobs, {SCHEMA}.pulse_tags")
    for where in EVERY_FILTER:
        for verb in searches(ENGINE, where):
            plan: list[dict[str, Any]] = []
            drive(verb.script(), partial(run_and_explain, planner, plan=plan))
            scans = [
                node for node in plan if node.get("Relation Name") in ("pulse_jobs", "pulse_tags")
            ]
            visited = sum(visits(node) for node in scans)
            assert visited <= 700, f"{verb.name} {where}: {json.dumps(scans, indent=1)}"


@pytest.mark.parametrize("crowd", ["PENDING", "WAITING", "SUCCEEDED"])
def test_no_check_of_the_doctor_visits_more_than_its_bound(planner, monkeypatch, crowd):
    """Neither of the due jobs nor of what waits or has ended is the whole table read."""
    for bound in ("SEARCHED", "AUDITED", "MOST_WAITS"):
        monkeypatch.setattr(reads, bound, 100)
    fill_with(planner, crowd, 5_000)
    for verb in (
        reads.backlog(ENGINE),
        reads.audit(ENGINE, 20.0),
        reads.running(ENGINE),
    ):
        plan: list[dict[str, Any]] = []
        drive(verb.script(), partial(run_and_explain, planner, plan=plan))
        scans = [node for node in plan if node.get("Relation Name") == "pulse_jobs"]
        visited = sum(visits(node) for node in scans)
        assert visited <= 700, f"{verb.name}: {json.dumps(scans, indent=1)}"


def fill_with(connection, status, rows):
    """Insert due jobs of one status; those that wait do so for ever, each for a signal."""
    connection.execute(f"TRUNCATE {SCHEMA}.pulse_jobs")
    connection.execute(
        f"""INSERT INTO {SCHEMA}.pulse_jobs (id, queue, topic, status, payload, next_run_at,
            submitted_at, completed_at, wait_kind, wait_key)
        SELECT gen_random_uuid(), 'default', 't', '{status}', '{{}}',
            CASE WHEN '{status}' = 'WAITING' THEN '9999-12-31' ELSE now() END, now(),
            CASE WHEN '{status}' = 'SUCCEEDED' THEN now() END,
            CASE WHEN '{status}' = 'WAITING' THEN 'SIGNAL' END, 'go'
        FROM generate_series(1, {rows})"""
    )


def run_and_explain(connection, statement, plan):
    values = SQL(", ").join(Literal(statement.params[name]) for name in statement.sql.names)
    call = SQL("hot({})").format(values) if statement.sql.names else SQL("hot")
    connection.execute(f"PREPARE hot AS {statement.sql.text}")
    try:
        explained = SQL("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE {}").format(call)
        [answer] = connection.execute(explained).fetchone()
        plan += nodes(answer[0]["Plan"])
        return connection.execute(SQL("EXECUTE {}").format(call)).fetchall()
    finally:
        connection.execute("DEALLOCATE hot")


# -- schedules ------------------------------------------------------------------------------------


FIRES = [
    ("pulse_jobs_occurrence", "(occurrence IS NOT NULL) AND (occurrence <= "),
    ("pulse_jobs_occurrence", "AND (occurrence IS NULL)"),
    ("pulse_jobs_pkey", "id = ANY"),
]


@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
@pytest.mark.parametrize("rows", [0, 10, 20_000])
def test_a_page_of_a_schedules_history_is_a_stretch_of_the_index(planner, rows, analyzed):
    fill(planner, rows, running=0)
    planner.execute(
        f"""UPDATE {SCHEMA}.pulse_jobs SET schedule_id = '{UUID(int=1)}', occurrence = at
        FROM (SELECT id AS made, now() - row_number() OVER () * interval '1 minute' AS at
            FROM {SCHEMA}.pulse_jobs) AS fired
        WHERE id = made"""
    )
    if analyzed:
        planner.execute(f"ANALYZE {SCHEMA}.pulse_jobs")
    plan = explain(planner, ENGINE.schedules.fires)
    scans = [node for node in plan if node.get("Relation Name") == "pulse_jobs"]
    assert is_as_expected(scans, FIRES), json.dumps(scans, indent=1)
    (in_turn,) = (node for node in scans if "IS NOT NULL" in node.get("Index Cond", ""))
    assert in_turn["Scan Direction"] == "Backward"
    (above,) = (node for node in plan if in_turn in node.get("Plans", []))
    assert above["Node Type"] == "Limit"  # as they come from the index, and no more of them


@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
@pytest.mark.parametrize("rows", [0, 10, 20_000])
def test_what_is_left_of_a_schedule_is_looked_up_for_each_that_is_done(planner, rows, analyzed):
    fill(planner, rows, running=0)
    planner.execute(f"UPDATE {SCHEMA}.pulse_jobs SET schedule_id = gen_random_uuid()")
    if analyzed:
        planner.execute(f"ANALYZE {SCHEMA}.pulse_jobs")
    plan = explain(planner, ENGINE.schedules.prune)
    scans = [node for node in plan if node.get("Relation Name") == "pulse_jobs"]
    assert is_as_expected(scans, [("pulse_jobs_occurrence", "schedule_id = ")]), scans
    limits = [node for node in plan if node["Node Type"] == "Limit"]
    assert [node.get("Parent Relationship") for node in limits] == ["InitPlan"]


@pytest.mark.parametrize("name", ["claim", "claim_plain"])
def test_without_controls_a_claim_pays_two_probes_of_their_index(planner, name):
    """One finds nothing that governs the queue, before a job is read; one, no paused topic."""
    plan = explain(planner, sql_of(ENGINE, name))
    probes = [node for node in plan if node.get("Relation Name") == "pulse_controls"]
    of_queue, of_topics = sorted(node["Index Cond"] for node in probes)
    assert of_queue.startswith("((scope = 'queue'::text) AND (name = $")
    assert of_topics == "(scope = 'topic'::text)"
    assert all(node["Parent Relationship"] in ("InitPlan", "SubPlan") for node in probes)
    assert [node["One-Time Filter"] for node in plan if "One-Time Filter" in node]
