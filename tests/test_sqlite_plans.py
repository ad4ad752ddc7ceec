"""No statement of a worker's every day walks over the table."""

import re
from contextlib import closing

import pytest

from pulsed.model.outcome import Report, Succeeded
from pulsed.model.step import StepKind
from pulsed.store.sql.statement import Statement, named
from pulsed.store.sqlite.values import execute
from tests.support.backends import only_sqlite
from tests.support.checkpoints import a_family, suspended
from tests.support.jobs import (
    submitted,
)

backend = only_sqlite


HOT = [
    *("others_first", "pick", "claim", "long_texts", "beat", "still_held", "set_progress"),
    *("settle_succeeded", "settle", "settled_before", "get", "standing", "cancel", "replay"),
    *("settle_children", "parents", "wake", "asked_to_stop"),
]


@pytest.mark.parametrize("rows", [None, 1, 5, 50, 1_000, 10_000_000])
@pytest.mark.parametrize("statement", HOT)
async def test_no_hot_statement_walks_the_table_whatever_the_statistics_say(
    backend, store, statement, rows
):
    await submitted(store)
    with closing(backend.connect()) as connection:
        connection.create_function("pulse_backoff", 6, lambda *_: 0.0)
        if rows is not None:
            connection.execute("ANALYZE")
            connection.execute("DELETE FROM sqlite_stat1")
            indexes = (
                "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'pulse_jobs'"
            )
            for (index,) in connection.execute(indexes).fetchall():
                connection.execute(
                    "INSERT INTO sqlite_stat1 VALUES ('pulse_jobs', ?, ?)",
                    (index, f"{rows} 1 1 1 1"),
                )
            connection.execute("ANALYZE sqlite_schema")  # makes this connection read them
        owner = store.statements if hasattr(store.statements, statement) else store.workflows
        sql = getattr(owner, statement)
        plans = [
            connection.execute(f"EXPLAIN QUERY PLAN {text}", dict.fromkeys(named(text).names))
            for text in (sql.text, sql.alone)
            if text
        ]
        found = [[step for *_, step in plan] for plan in plans]
    for plan in found:
        steps = [step for step in plan if re.search(r"\b(j|pulse_jobs)\b", step)]
        assert steps
        assert all(step.startswith("SEARCH") for step in steps), plan


async def test_a_look_at_a_fan_out_costs_the_same_whatever_the_number_of_its_children(
    backend, store
):
    """It is taken with every batch that ends: a walk over all children would be one over n²."""

    async def steps_of_a_look(children: int) -> int:
        parent, runs = await a_family(store, children, parent={"topic": f"of {children}"})
        await suspended(store, parent, StepKind.FAN_OUT, too_many=1)
        await store.settle([Report(run.lease, Succeeded()) for run in runs[1:]])
        steps = 0

        def count() -> None:
            nonlocal steps
            steps += 1

        look = Statement(store.workflows.wake, {}, [(parent.job_id,)])
        with closing(backend.connect()) as connection:
            connection.set_progress_handler(count, 1)
            assert execute(connection.cursor(), look, 0) == []
        return steps

    assert await steps_of_a_look(500) < 2 * await steps_of_a_look(5)
