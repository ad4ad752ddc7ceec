"""The page of reliability: every invariant and fault has a test, and the figures are those kept."""

import json

from tools.reliability import (
    FAULTS,
    INVARIANT,
    PAGE,
    page,
    rows_of,
    runs_in,
    without_test,
)

TABLE = """## Workers

| broken | expected | kept by |
|---|---|---|
| a worker is killed | its jobs run again | `tests/test_x.py::test_a`, `tests/test_x.py::test_b` |
| a worker sleeps | it wakes | |
"""


def test_every_invariant_and_every_fault_has_a_test():
    rows = rows_of(FAULTS.read_text("utf-8"))
    assert without_test(rows) == []
    assert {row.what for row in rows if INVARIANT.fullmatch(row.what)} == {
        f"I{number}" for number in range(1, 14)
    }
    assert len(rows) > 80


def test_a_row_without_a_test_is_found():
    assert without_test(rows_of(TABLE)) == ["a worker sleeps"]


def test_the_page_has_every_row():
    text = PAGE.read_text("utf-8")
    rows = rows_of(FAULTS.read_text("utf-8"))
    missing = [row.what for row in rows if row.what not in text]
    missing += [test for row in rows for test in row.tests if test not in text]
    assert missing == [], "run python3 dev.py reliability"


def test_a_run_is_on_the_page_with_its_figures(tmp_path):
    run = {"kind": "storm", "title": "A storm", "command": "chaos", "date": "2030-01-01"}
    checks = [{"invariant": "I1", "what": "jobs", "checked": 4321, "violations": 0}]
    figures = {**run, "engine": "sqlite", "seconds": 600, "counts": {"jobs": 4321}}
    text = json.dumps({**figures, "checks": checks, "violations": 0})
    (tmp_path / "storm.json").write_text(text)
    (tmp_path / "points.json").write_text("{}")
    invariants = (
        "| | invariant | kept by |\n|---|---|---|\n| I1 | it is there | `tests/a.py::b` |\n"
    )
    made = page(invariants, "## Not promised\n\n- **Order.** None.\n", runs_in(tmp_path))
    assert "| A storm | `chaos` | 2030-01-01 | sqlite | 10 min | 4,321 jobs | 0 |" in made
    assert "| I1 | it is there | 4,321 | `tests/a.py::b` |" in made
    assert made.endswith("- Order\n")


def test_removed_guards_are_on_the_page_by_engine_and_kind():
    run = {"kind": "mutation", "date": "2030-01-01", "seconds": 60, "counts": {"mutants": 7}}
    kinds = {"row locks": {"killed": 4, "explained": 2, "survived": 1}}
    made = page("", "", [{**run, "engines": {"postgres": {"kinds": kinds}}}])
    assert "| postgres | row locks | 7 | 4 | 0 | 2 | 1 |" in made
