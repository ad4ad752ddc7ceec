"""No statement of a worker's every day walks over the table."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import pytest

from pulsed.model.job import Status
from pulsed.model.outcome import Report, Succeeded
from pulsed.model.step import StepKind
from pulsed.store.sql.columns import ASSIGNED_PLACES
from pulsed.store.sql.insertion import insertion
from pulsed.store.sql.jobs import IS_CLAIMABLE
from pulsed.store.sql.statement import Statement, named
from pulsed.store.sqlite.values import execute
from pulsed.store.verbs import claim, reads
from pulsed.store.verbs.floors import Floors
from pulsed.store.verbs.script import Verb, drive
from pulsed.store.verbs.topics import Topics
from tests.support.backends import only_sqlite
from tests.support.checkpoints import a_family, suspended
from tests.support.jobs import ALICE, a_job, a_policy, submitted
from tests.support.jobs import claim as claim_jobs
from tests.support.performed import Performed
from tests.support.statements import sql_of

backend = only_sqlite

T = TypeVar("T")

HOT = [
    *("others_first", "pick", "claim", "long_texts", "beat", "still_held", "set_progress"),
    *("settle_succeeded", "settle", "settled_before", "get", "standing", "cancel", "replay"),
    *("settle_alike", "settle_children", "parents", "wake", "asked_to_stop"),
    *("backlog", "pick_expired", "expire"),
    *("backlog", "limited_backlog", "limit_keys", "limit_use", "pick_limited", "without_key"),
    *("payloads_without_key", "set_limit_keys"),
]


@pytest.mark.parametrize("rows", [None, 1, 5, 50, 1_000, 10_000_000])
async def test_no_hot_statement_walks_the_table_whatever_the_statistics_say(backend, store, rows):
    await submitted(store)
    with closing(backend.connect()) as connection:
        connection.create_function("pulse_backoff", 6, lambda *_: 0.0)
        if rows is not None:
            pretend(connection, rows)
        for statement in HOT:
            sql = sql_of(store.engine, statement)
            for text in filter(None, (sql.text, sql.single_row_text)):
                plan = connection.execute(
                    f"EXPLAIN QUERY PLAN {text}", dict.fromkeys(named(text).names)
                ).fetchall()
                steps = [step for *_, step in plan if re.search(r"\b(j|c|pulse_jobs)\b", step)]
                assert steps, statement
                assert all(step.startswith("SEARCH") for step in steps), (statement, plan)


@pytest.mark.parametrize(
    "results, statement", [(["1", "1"], "settle_alike"), (["1", "2"], "settle_succeeded")]
)
async def test_successes_that_are_alike_need_no_temporary_table(store, results, statement):
    await submitted(store)
    await submitted(store)
    runs = await claim_jobs(store)
    asked = Performed(store)
    reports = [Report.of(run, Succeeded(result)) for run, result in zip(runs, results, strict=True)]
    assert await store.settle(reports) == {run.lease for run in runs}
    assert asked.texts == {sql_of(store.engine, statement)}
    stored = await store.get([run.job_id for run in runs])
    assert [stored[run.job_id].result for run in runs] == results


async def test_a_new_job_is_stored_without_a_temporary_table(backend, store):
    await submitted(store)
    insert = insertion(store.engine.submission.submit, [a_job()]).sql
    with closing(backend.connect()) as connection:
        program = connection.execute(
            f"EXPLAIN {insert.text}", dict.fromkeys(named(insert.text).names)
        )
        codes = [code for _, code, *_ in program]
    assert "Insert" in codes
    assert "OpenEphemeral" not in codes  # which tests for a word in a list would need


async def test_conditions_of_indexes_and_of_statements_test_the_status_alike(backend, store):
    await submitted(store)
    with closing(backend.connect()) as connection:
        found = connection.execute("SELECT sql FROM sqlite_master WHERE tbl_name = 'pulse_jobs'")
        texts = [text for (text,) in found if text is not None]
    claimable = store.dialect.sql(IS_CLAIMABLE).text
    assert sum(claimable in text for text in texts) == 3  # the indexes that claims use
    assert not [text for text in texts if re.search(r"IN \('", text)]


def pretend(connection: sqlite3.Connection, rows: int) -> None:
    """Make a connection plan as if there were so many jobs, all alike for every index."""
    connection.execute("ANALYZE")
    connection.execute("DELETE FROM sqlite_stat1")
    indexes = "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'pulse_jobs'"
    connection.executemany(
        "INSERT INTO sqlite_stat1 VALUES ('pulse_jobs', ?, ?)",
        [(index, f"{rows} 1 1 1 1") for (index,) in connection.execute(indexes).fetchall()],
    )
    connection.execute("ANALYZE sqlite_schema")  # makes this connection read them


@pytest.mark.parametrize("statement", ["count_claimable", "backlog", "queues", "oldest_due"])
async def test_jobs_that_wait_are_counted_from_their_index_alone(backend, store, statement):
    """Their rows are spread over the whole table: pages count them every two seconds."""
    await submitted(store)
    text = sql_of(store.engine, statement).text
    with closing(backend.connect()) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {text}", dict.fromkeys(named(text).names))
        steps = [step for *_, step in plan if "pulse_jobs" in step]
    assert steps
    either = "COVERING INDEX pulse_jobs_unlimited", "COVERING INDEX pulse_jobs_limited_due"
    assert all(any(index in step for index in either) for step in steps), steps


class Counting:
    """A connection that counts the steps of SQLite's machine."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.cursor = connection.cursor()
        self.steps = 0
        connection.create_function("pulse_backoff", 6, lambda *_: 0.0)
        connection.set_progress_handler(self._count, 1)

    def _count(self) -> None:
        self.steps += 1

    def run(self, verb: Verb[T], now: int) -> T:
        return drive(verb.script(), lambda statement: execute(self.cursor, statement, now))


@contextmanager
def counting(backend: Any) -> Iterator[Counting]:
    with closing(backend.connect()) as connection:
        yield Counting(connection)


async def test_a_look_at_a_fan_out_costs_the_same_whatever_the_number_of_its_children(
    backend, store
):
    """It is taken with every batch that ends: a walk over all children would be one over n²."""

    async def steps_of_a_look(children: int) -> int:
        parent, runs = await a_family(store, children, parent={"topic": f"of {children}"})
        await suspended(store, parent, StepKind.FAN_OUT, too_many=1)
        await store.settle([Report.of(run, Succeeded()) for run in runs[1:]])
        look = Statement(store.engine.waiting.wake, {}, [(parent.job_id,)])
        with counting(backend) as counted:
            assert execute(counted.cursor, look, 0) == []
        return counted.steps

    assert await steps_of_a_look(500) < 2 * await steps_of_a_look(5)


@pytest.mark.parametrize("alike", [True, False], ids=["one policy", "a policy each"])
async def test_a_claim_costs_the_same_however_many_topics_a_worker_has(backend, store, alike):
    """It compares no job with each of them: a batch times a thousand topics took 0.2 s."""
    batch = 100

    async def steps_of_a_claim(topics: int) -> int:
        await store.submit([a_job(topic=f"t{n % 4}", queue=f"of {topics}") for n in range(batch)])
        policies = [a_policy(f"t{n}", max_attempts=3 if alike else n + 1) for n in range(topics)]
        verb = claim.claim(store.engine, ALICE, f"of {topics}", Topics(policies), batch, Floors())
        with counting(backend) as counted:
            claimed = counted.run(verb, store.micros()).rows
        allowed = [row[ASSIGNED_PLACES["max_attempts"]] for row in claimed[:4]]
        assert allowed == ([3] * 4 if alike else [1, 2, 3, 4])
        assert len(claimed) == batch
        return counted.steps

    assert await steps_of_a_claim(800) < 2 * await steps_of_a_claim(4)


@pytest.mark.parametrize("status", [Status.PENDING, Status.WAITING, Status.SUCCEEDED])
async def test_no_check_of_the_doctor_reads_more_than_its_bound(
    backend, store, monkeypatch, status
):
    for bound in ("SEARCHED", "AUDITED", "MOST_WAITS"):
        monkeypatch.setattr(reads, bound, 100)

    async def steps_of_the_checks() -> int:
        with counting(backend) as counted:
            counted.run(reads.backlog(store.engine), store.micros())
            counted.run(reads.audit(store.engine, 20.0), store.micros())
            counted.run(reads.running(store.engine), store.micros())
        return counted.steps

    await an_ended_or_waiting_crowd(backend, store, status, 200)
    few = await steps_of_the_checks()
    await an_ended_or_waiting_crowd(backend, store, status, 3_000)
    assert await steps_of_the_checks() < 1.5 * few


async def an_ended_or_waiting_crowd(backend, store, status, number):
    await store.submit([a_job() for _ in range(number)])
    if status is Status.WAITING:
        backend.execute(
            f"""UPDATE pulse_jobs SET status = 'WAITING', wait_kind = 'SIGNAL', wait_key = 'go',
            next_run_at = {store.dialect.forever}"""
        )
    elif status is Status.SUCCEEDED:
        backend.execute("UPDATE pulse_jobs SET status = 'SUCCEEDED', completed_at = 1")
