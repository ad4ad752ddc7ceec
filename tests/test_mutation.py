"""How guards are found in statements, and that a removed one is noticed."""

import contextlib
import os
import re
import subprocess
import sys
from argparse import Namespace

import pytest

from pulsed.store.sql.statement import Sql
from tests.mutation.__main__ import known_before, main
from tests.mutation.changes import Kind, changes
from tests.mutation.conditions import conditions
from tests.mutation.explained import EXPLAINED, reason_for
from tests.mutation.memory import Decided, Known, Memory
from tests.mutation.mutants import Mutant, mutants, statements, together, without
from tests.mutation.score import Score, summed
from tests.mutation.verdicts import Outcome, Verdict, Verdicts
from tests.support.backends import only_postgres

postgres = only_postgres
every_engine = pytest.mark.parametrize("engine", ["sqlite", "postgres"])

# -- what is taken out ----------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "sql, what, instead",
    [
        ("SELECT 1 WHERE a = $1 AND b", "a = $1", "SELECT 1 WHERE (a = $1 OR 1 = 1) AND b"),
        ("SELECT 1 FROM t FOR UPDATE SKIP LOCKED", "FOR UPDATE SKIP LOCKED", "SELECT 1 FROM t "),
        (
            "SELECT 1 FROM t FOR UPDATE OF t SKIP LOCKED",
            "SKIP LOCKED of FOR UPDATE OF t SKIP LOCKED",
            "SELECT 1 FROM t FOR UPDATE OF t",
        ),
        (
            "SELECT 1 FROM (SELECT 2 ORDER BY x) ORDER BY f(a), b FOR NO KEY UPDATE",
            "ORDER BY f(a), b",
            "SELECT 1 FROM (SELECT 2 ORDER BY x) FOR NO KEY UPDATE",
        ),
        (
            "SELECT pg_advisory_xact_lock(1, $1)",
            "pg_advisory_xact_lock",
            "SELECT pg_try_advisory_xact_lock_shared(1, $1)",
        ),
        (
            "WITH a AS MATERIALIZED (SELECT 1) SELECT 2",
            "a AS MATERIALIZED",
            "WITH a AS NOT MATERIALIZED (SELECT 1) SELECT 2",
        ),
        (
            "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING RETURNING id",
            "ON CONFLICT DO NOTHING",
            "INSERT INTO t VALUES (1) RETURNING id",
        ),
        (
            "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 1 RETURNING id",
            "ON CONFLICT (a) DO UPDATE",
            "INSERT INTO t VALUES (1) ON CONFLICT (a) DO NOTHING RETURNING id",
        ),
        (
            "WITH i AS (INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = f(g(1), (2)))",
            "ON CONFLICT (a) DO UPDATE",
            "WITH i AS (INSERT INTO t VALUES (1) ON CONFLICT (a) DO NOTHING )",
        ),
    ],
)
def test_what_is_taken_out_leaves_a_statement_with_its_parameters(sql, what, instead):
    [change] = [each for each in changes(sql) if each.what == what]
    assert " ".join(change.made_in(sql).split()) == " ".join(instead.split())


def test_the_order_of_rows_that_are_skipped_if_locked_is_no_order_of_locks():
    assert Kind.ORDER not in {
        each.kind for each in changes("SELECT 1 ORDER BY a LIMIT $1 FOR UPDATE SKIP LOCKED")
    }


def test_a_batch_of_one_row_loses_the_same_guard():
    name = "keys.withdraw: id IN (SELECT r.job_id FROM (batch) AS r)"
    [found] = [each for each in mutants("sqlite") if each.name == name]
    [changed] = found.changed.values()
    assert changed.text.count("OR 1 = 1") == changed.single_row_text.count("OR 1 = 1") == 1


@every_engine
def test_guards_are_removed_together(engine):
    found = [each for each in mutants(engine) if each.name.startswith("settling.settle: j.")]
    for changed in together(found).changed.values():
        assert changed.text.count("OR 1 = 1") == len(found)


@every_engine
def test_the_fence_of_every_report_is_among_the_mutants(engine):
    found = {mutant.name for mutant in mutants(engine)}
    for guard in ("j.status = 'RUNNING'", "j.locked_by = r.worker", "j.lease_token = r.token"):
        assert f"settling.settle: {guard}" in found
    assert len(found) == len(mutants(engine)) > 900


def test_a_guard_is_taken_out_with_the_servers_clock_and_with_a_tests():
    [found] = [
        each for each in mutants("postgres") if each.name == "recovery.expired: lease_until < now()"
    ]
    taken = [re.findall(r"lease_until < (\S+) OR", sql.text) for sql in found.changed.values()]
    assert taken == [["now()"], ["$1::timestamptz"]]


# -- what may survive -----------------------------------------------------------------------------


def test_every_explanation_fits_a_mutant():
    found = [each for engine in ("sqlite", "postgres") for each in mutants(engine)]
    unused = [reason.pattern for reason in EXPLAINED if not any(map(reason.fits, found))]
    assert unused == []
    assert all(reason.why.endswith(".") for reason in EXPLAINED)


@pytest.mark.parametrize(
    "engine, name",
    [
        ("sqlite", "schedules.last_fires: occurrence IS NOT NULL"),
        ("postgres", "claiming.levels: limit_key IS NOT NULL"),
    ],
)
def test_how_one_engine_sorts_null_explains_nothing_for_the_other(engine, name):
    found = [each for both in ("sqlite", "postgres") for each in mutants(both) if each.name == name]
    assert [each.engine for each in found if reason_for(each) is not None] == [engine]
    assert len(found) == 2


FENCED = re.compile(r"j\.(status = 'RUNNING'|locked_by = r\.worker|lease_token = r\.token)")


@every_engine
def test_no_part_of_a_fence_is_explained_away(engine):
    fences = [each for each in mutants(engine) if FENCED.fullmatch(each.what)]
    assert len(fences) > 20
    unfenced = [each.name for each in fences if reason_for(each) is not None]
    assert [name for name in unfenced if not name.startswith("recovery.reap")] == []


LOCKING = {"claiming": ["picked"], "limited": ["locked"], "settling": ["parents"]}


async def test_postgres_inlines_no_query_that_locks_rows(postgres):
    """So MATERIALIZED says what happens in any case; see tests/mutation/explained.py."""
    store = postgres.open()
    await store.now()
    checked = 0
    with contextlib.closing(postgres.connect()) as session:
        session.execute("SET plan_cache_mode = force_generic_plan")
        for name, sql in statements(store.engine):
            for query in [*LOCKING.get(name.partition(".")[0], []), "expired", "l"]:
                part = {(f"{query} AS MATERIALIZED", 1)}
                if (changed := without(sql, part)) != sql:
                    assert f"CTE {query}" in plan_of(session, changed), name
                    checked += 1
    assert checked > 30
    await store.aclose()


def plan_of(session, sql: Sql) -> str:
    nulls = ", ".join(["NULL"] * len(sql.names))
    session.execute(f"PREPARE one AS {sql.text}")
    lines = session.execute(f"EXPLAIN EXECUTE one{f'({nulls})' if nulls else ''}").fetchall()
    session.execute("DEALLOCATE one")
    return "\n".join(line for (line,) in lines)


# -- the machine ----------------------------------------------------------------------------------


def a_mutant(what: str = "a", statement: str = "g.s") -> Mutant:
    return Mutant(statement, what, Kind.FENCE)


def test_a_score_with_a_survivor_is_not_good():
    verdicts = Verdicts()
    verdicts.add(Verdict(a_mutant("a"), Outcome.KILLED, "t::x", 3))
    verdicts.add(Verdict(a_mutant("b"), Outcome.SURVIVED, "", 3))
    score = Score("sqlite", verdicts, [], 1.0)
    assert not score.ok
    assert "no test needs g.s: b" in score.text()
    verdicts.cover(a_mutant("b"))
    assert Score("sqlite", verdicts, [], 1.0).ok
    assert not Score("sqlite", verdicts, ["t::x"], 1.0).ok
    assert summed(verdicts.counts()) == {"killed": 1, "covered": 1, "explained": 0, "survived": 0}


def test_nothing_killed_is_not_good():
    assert not Score("sqlite", Verdicts(), [], 1.0).ok


def test_the_score_of_each_engine_is_kept(tmp_path):
    verdicts = Verdicts()
    verdicts.add(Verdict(a_mutant(), Outcome.KILLED, "t::x", 3))
    for engine in ("sqlite", "postgres"):
        Score(engine, verdicts, [], 1.0).save(tmp_path / "m.json")
    assert '"engine": "postgres, sqlite"' in (tmp_path / "m.json").read_text()


@pytest.mark.parametrize(
    "choice", [["--only", "leases"], ["--kind", "fence"], ["--survivors"], ["--tests", "t.py"]]
)
def test_the_figures_of_some_mutants_or_tests_are_not_kept(choice, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--save", *choice])
    assert "--save keeps the figures of all mutants and tests" in capsys.readouterr().err


def test_a_run_of_some_mutants_forgets_nothing_about_others(tmp_path):
    memory = Memory.of("sqlite", tmp_path)
    memory.decided = dict.fromkeys(["g.s: a", "g.s: b"], Decided("survived", "", 3, ""))
    memory.took = 1.5
    memory.begin_again(["g.s: a", "g.s: c"])
    assert (list(memory.decided), memory.took) == (["g.s: b"], 1.5)
    memory.begin_again(["g.s: b"])
    assert (list(memory.decided), memory.took) == ([], 0.0)


def test_what_a_test_killed_that_is_gone_has_no_verdict():
    verdicts = Verdicts()
    verdicts.add(Verdict(a_mutant("a"), Outcome.KILLED, "t::x", 3))
    verdicts.add(Verdict(a_mutant("b"), Outcome.KILLED, "t::gone", 3))
    verdicts.add(Verdict(a_mutant("c"), Outcome.SURVIVED, "", 3))
    verdicts.forget_kills_but_of({"t::x"})
    assert [a_mutant(what) in verdicts for what in "abc"] == [True, False, True]


def test_what_was_learned_is_remembered(tmp_path):
    memory = Memory.of("sqlite", tmp_path / "new")
    memory.tests["t::x"] = Known(0.5, ["g.s"])
    memory.killers["g.s: a"] = "t::x"
    memory.decided["g.s: a"] = Decided("killed", "t::x", 3, "")
    memory.took = 1.5
    memory.save()
    assert Memory.of("sqlite", tmp_path / "new") == memory


def test_a_run_that_is_resumed_takes_over_what_is_decided_and_not_changed_since(tmp_path):
    [found] = [
        each for each in mutants("sqlite") if each.name == "leases.beat: j.status = 'RUNNING'"
    ]
    memory, options = Memory.of("sqlite", tmp_path), Namespace(survivors=False)
    assert known_before(found, memory, options) is None
    memory.decided[found.name] = Decided("killed", "t::x", 3, found.digest)
    assert known_before(found, memory, options) == Verdict(found, Outcome.KILLED, "t::x", 3)
    memory.decided[found.name] = Decided("killed", "t::x", 3, "another text")
    assert known_before(found, memory, options) is None
    memory.decided[found.name] = Decided("survived", "", 3, found.digest)
    assert known_before(found, memory, options) == Verdict(found, Outcome.SURVIVED, "", 3)
    memory.decided[found.name] = Decided("explained", "", 3, found.digest)  # by a line that is gone
    assert known_before(found, memory, options) is None


def test_a_record_says_how_many_were_not_run(tmp_path):
    verdicts = Verdicts()
    verdicts.add(Verdict(a_mutant(), Outcome.KILLED, "t::x", 3))
    Score("sqlite", verdicts, [], 1.0, left_out=7).save(tmp_path / "m.json")
    assert "7 mutants of sqlite" in (tmp_path / "m.json").read_text()


@every_engine
def test_a_guard_that_a_test_needs_is_killed_and_one_that_none_needs_is_reported(engine, tmp_path):
    """Progress is tested without each part of its fence here; a heartbeat only with all of it."""
    tested = "tests/test_guards_statements.py::test_a_statement_leaves_what_does_not_meet_each_of_"
    used = f"tests/test_store_beat.py::test_a_beat_extends_the_lease_by_its_full_length[{engine}]"
    mutate = [sys.executable, "-m", "tests.mutation", "--engine", engine, "--processes", "1"]
    mutate += ["--memory", str(tmp_path), "--kind", "fence"]
    mutate += ["--only", "leases.set_progress: j.", "leases.beat: j.st"]
    mutate += ["--tests", f"{tested}its_conditions[{engine}-leases.set_progress]", used]
    done = subprocess.run(mutate, capture_output=True, text=True, env=os.environ, check=False)
    score = done.stdout + done.stderr
    assert done.returncode == 1, score
    assert re.search(r"all +\D*3 +0 +0 +1\n", score), score
    assert "no test needs leases.beat: j.status = 'RUNNING'" in score
    assert "no test needs leases.set_progress" not in score
    decided = Memory.of(engine, tmp_path).decided
    assert decided["leases.beat: j.status = 'RUNNING'"].outcome == "survived"
