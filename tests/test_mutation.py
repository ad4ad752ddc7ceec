"""How guards are found in statements, and that a removed one is noticed."""

import pytest

from tests.mutation.conditions import conditions
from tests.mutation.explained import EXPLAINED, is_explained
from tests.mutation.mutants import engine_named, mutants, together


@pytest.mark.parametrize(
    "sql, expected",
    [
        ("SELECT 1 FROM t WHERE a = 1 AND b = 2 ORDER BY c", ["a = 1", "b = 2"]),
        (
            "UPDATE t SET x = 1 WHERE a BETWEEN 1 AND 2 AND b RETURNING id",
            ["a BETWEEN 1 AND 2", "b"],
        ),
        ("SELECT 1 FROM t WHERE (a OR b AND c) AND d LIMIT 1", ["(a OR b AND c)", "d"]),
        (
            "DELETE FROM t WHERE CASE WHEN a AND b THEN 1 END AND c",
            ["CASE WHEN a AND b THEN 1 END", "c"],
        ),
        ("SELECT 1 FROM t JOIN u ON t.a = u.a AND u.b WHERE c", ["t.a = u.a", "u.b", "c"]),
        ("INSERT INTO t SELECT 1 WHERE a ON CONFLICT (b) DO NOTHING", ["a"]),
        ("SELECT 1 FROM t WHERE s = 'x AND y' AND b", ["s = 'x AND y'", "b"]),
        (
            "SELECT 1 FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a AND u.b) AND c",
            ["EXISTS (SELECT 1 FROM u WHERE u.a AND u.b)", "u.a", "u.b", "c"],
        ),
    ],
)
def test_what_and_joins_is_a_condition(sql, expected):
    assert [condition.text for condition in conditions(sql)] == expected


def test_a_removed_condition_keeps_its_parameters():
    [first, _] = conditions(sql := "SELECT 1 FROM t WHERE a = $1 AND b = $2")
    assert first.removed_from(sql) == "SELECT 1 FROM t WHERE (a = $1 OR 1 = 1) AND b = $2"


def test_guards_are_removed_together():
    found = [each for each in mutants(engine_named("sqlite")) if each.statement == "settle"]
    changed = together(found).changed.text
    assert changed.count("OR 1 = 1") == len(found)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_the_fence_of_every_report_is_among_the_mutants(engine):
    found = {mutant.name for mutant in mutants(engine_named(engine))}
    for guard in ("j.status = 'RUNNING'", "j.locked_by = r.worker", "j.lease_token = r.token"):
        assert f"settling.settle: {guard}" in found
    assert len(found) > 200


def test_only_mutants_that_exist_are_explained():
    names = {each.name for name in ("sqlite", "postgres") for each in mutants(engine_named(name))}
    names |= {name.partition(":")[0] for name in names}
    assert sorted(EXPLAINED.keys() - names) == []
    assert all(reason.endswith(".") for reason in EXPLAINED.values())
    assert is_explained("claiming.levels: crashes >= 2")
    assert not is_explained("claiming.pick: next_run_at <= :now")
