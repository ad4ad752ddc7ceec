"""Each condition of a statement, by itself: a row that does not meet it is left alone.

A case is a statement that concerns a row. Each of its changes breaks one condition, so that the
statement must not concern the row any more, whatever was read or locked before it.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.script import Script, Verb, VerbKind
from tests.support.backends import only_postgres, only_sqlite
from tests.support.guard_cases.claims import PICKS, limited_picks, postgres_alone, postgres_claims
from tests.support.guard_cases.families import FAMILIES
from tests.support.guard_cases.health import HEALTH
from tests.support.guard_cases.operators import OPERATORS
from tests.support.guard_cases.others import AGAIN, OTHERS
from tests.support.guard_cases.reads import READS
from tests.support.guard_cases.runs import RECOVERY, RUNS, SQLITE_RUNS
from tests.support.guard_cases.scans import SCANS
from tests.support.guard_cases.waits import WAITING
from tests.support.jobs import ALICE, a_job
from tests.support.lone_statements import Case, check_alone, repeat

pytestmark = pytest.mark.embedded("runs single statements")
sqlite, postgres = only_sqlite, only_postgres


def each(cases: Iterable[Case]) -> pytest.MarkDecorator:
    """Run every case."""
    found = [pytest.param(case, id=f"{case.statement} {case.name}".strip()) for case in cases]
    return pytest.mark.parametrize("case", found)


@each([*RUNS, *RECOVERY, *FAMILIES, *WAITING, *HEALTH, *OPERATORS, *SCANS, *OTHERS, *READS])
async def test_a_statement_leaves_what_does_not_meet_each_of_its_conditions(backend, case):
    await check_alone(backend, case)


@each([*SQLITE_RUNS, *PICKS, *limited_picks("limited.pick_limited{}")])
async def test_a_statement_of_sqlite_leaves_what_does_not_meet_each_of_its_conditions(sqlite, case):
    await check_alone(sqlite, case)


@each([*postgres_claims(), *postgres_alone(), *limited_picks("limited.claim_limited{}", aged=True)])
async def test_a_claim_leaves_what_does_not_meet_each_of_its_conditions(postgres, case):
    await check_alone(postgres, case)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.statement) for case in AGAIN])
async def test_what_is_stored_again_after_a_lost_answer_is_there_once(backend, case):
    assert len(await repeat(backend, case)) == 1


async def test_jobs_that_are_stored_again_are_there_once(backend):
    store = backend.open()
    jobs = [a_job(), a_job()]
    assert [(await store.submit(jobs)).new for _ in range(2)] == [2, 0]
    assert backend.execute("SELECT count(*) FROM pulse_jobs") == [(2,)]
    await store.aclose()


@pytest.mark.parametrize("statement, expected", [("record_errors", 3), ("add_errors", 6)])
async def test_a_total_of_errors_replaces_an_earlier_one_and_a_fold_adds_to_it(
    backend, statement, expected
):
    """Without a conflict clause it would fail, and without its UPDATE the first would stay."""
    store = backend.open()

    def script(count: int) -> Script[Any]:
        at = backend.clock()
        row = (0, at, "q", "t", "e", count, 0, at, "m")
        sql = getattr(store.engine.rollups, statement)
        return (yield Statement(sql, {"recorder": ALICE, "latest": 60.0}, [row]))

    await store.now()
    for count in (1, 3, 2):
        await store.run(Verb("test", VerbKind.TRANSACTION, partial(script, count)))
    assert backend.execute("SELECT count FROM pulse_error_rollups") == [(expected,)]
    await store.aclose()
