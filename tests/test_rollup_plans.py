"""Statistics are read, folded and removed by their key, whatever the planner believes."""

from contextlib import closing

import pytest

from pulsed.store.sql.statement import named
from tests.support.backends import only_sqlite
from tests.support.statements import postgres_engine, sql_of
from tests.test_postgres_plans import SCHEMA, explain, planner  # noqa: F401 - a fixture

sqlite = only_sqlite
STATEMENTS = [
    *("record_rollups", "record_errors", "add_rollups", "add_errors", "take_rollups"),
    *("take_errors", "drop_rollups", "drop_errors", "read_series", "read_totals", "read_errors"),
    "read_series_by",
]


@pytest.mark.parametrize("rows", [0, 10, 5_000])
def test_postgres_scans_no_table_of_statistics(planner, rows):  # noqa: F811
    planner.execute(f"TRUNCATE {SCHEMA}.pulse_error_rollups")
    planner.execute(
        f"""INSERT INTO {SCHEMA}.pulse_error_rollups
        SELECT 0, now() - i * interval '1 minute', 'q', 't', 'E', gen_random_uuid(), 1, 0, now(), ''
        FROM generate_series(1, {rows}) AS i"""
    )
    planner.execute(f"ANALYZE {SCHEMA}.pulse_error_rollups")
    for name in STATEMENTS:
        plan = explain(planner, sql_of(postgres_engine(SCHEMA), name))
        scans = {
            (node["Node Type"], node.get("Index Name"))
            for node in plan
            if "rollups" in node.get("Relation Name", "") and node["Node Type"] != "ModifyTable"
        }
        kinds = {kind for kind, _ in scans}
        assert kinds <= {"Index Scan", "Tid Scan"}, (name, scans)
        assert all(str(index).endswith("rollups_pkey") for _, index in scans if index), scans


@pytest.mark.parametrize("name", STATEMENTS)
async def test_sqlite_scans_no_table_of_statistics(sqlite, name):
    store = sqlite.open()
    await store.now()
    sql = sql_of(store.engine, name)
    with closing(sqlite.connect()) as connection:
        plan = connection.execute(
            f"EXPLAIN QUERY PLAN {sql.text}", dict.fromkeys(named(sql.text).names)
        ).fetchall()
    await store.aclose()
    steps = [step for *_, step in plan if "pulse_" in step]
    assert all(step.startswith("SEARCH") for step in steps), plan
