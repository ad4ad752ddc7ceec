"""The statements of the engines, as groups of prepared texts."""

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import pulsed.store
from pulsed.store.sql.prepared import StatementGroup, prepared
from pulsed.store.sql.statement import Sql
from pulsed.store.sqlite.engine import SqliteEngine
from pulsed.store.verbs.engine import Engine
from tests.support.statements import groups, names_of, postgres_engine

ENGINES: dict[str, Callable[[], Engine]] = {"sqlite": SqliteEngine, "postgres": postgres_engine}
SQL_TEXT = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|FROM|WHERE)\b|\.sql\(")

every_engine = pytest.mark.parametrize("make", ENGINES.values(), ids=ENGINES)


def everything(engine: Engine) -> list[tuple[StatementGroup, str]]:
    return [(group, name) for group in groups(engine) for name in sorted(names_of(group))]


def test_a_statement_is_prepared_once_and_when_it_is_first_used():
    written = []

    class Group(StatementGroup):
        @prepared("job_id uuid", counted=True)
        def touch(self, d):
            """Touch jobs."""
            written.append(d)
            return f"UPDATE {d.jobs} SET id = id FROM {d.rows_of('job_id uuid')}"

    group = Group(SqliteEngine().dialect)
    assert written == []
    assert group.touch is group.touch
    assert written == [group.dialect]
    assert (group.touch.columns, group.touch.counted) == (("job_id",), True)
    assert Group.touch.__doc__ == "Touch jobs."


@every_engine
def test_every_statement_says_what_it_is_for(make):
    for group, name in everything(make()):
        assert getattr(type(group), name).__doc__, name


@every_engine
def test_no_two_statements_of_jobs_have_one_name(make):
    engine = make()
    names = [name for group, name in everything(engine) if group is not engine.schedules]
    assert len(names) == len(set(names))


def test_engines_differ_in_few_statements():
    sqlite, postgres = ({name for _, name in everything(make())} for make in ENGINES.values())
    picks = {"pick", "pick_suspect", "pick_limited", "pick_limited_suspect"}
    assert sqlite - postgres == {*picks, "long_texts", "last_inserted", "settle_alike"}
    assert postgres - sqlite == {
        "claim_plain", "claim_suspect", "claim_governed", "claim_governed_suspect", "claim_aged",
        "in_flight",
        "lock_queue", "expired_in_families", "lock_keys", "claim_limited", "claim_limited_aged",
        "claim_limited_suspect",
    }  # fmt: skip


@pytest.mark.embedded("prepares the statements on a connection")
async def test_every_statement_is_one_that_its_engine_understands(backend):
    store = backend.open()
    await store.now()
    statements = [getattr(group, name) for group, name in everything(store.engine)]
    with closing(backend.connect()) as connection:
        if backend.engine == "sqlite":
            understand_on_sqlite(connection, statements)
        else:
            for sql in statements:
                connection.execute(f"PREPARE statement AS {sql.text}")
                connection.execute("DEALLOCATE statement")
    await store.aclose()


def understand_on_sqlite(connection: sqlite3.Connection, statements: list[Sql]) -> None:
    connection.create_function("pulse_backoff", 6, lambda *_: 0.0)
    for sql in statements:
        for text in filter(None, (sql.text, sql.single_row_text)):
            given = dict.fromkeys([*sql.names, *(f"r_{name}" for name in sql.columns)])
            connection.execute(f"EXPLAIN {text}", given)


def test_verbs_and_tokens_have_no_sql_of_their_own():
    folder = Path(pulsed.store.__file__).parent
    sources = [folder / "tokens.py", *(folder / "verbs").glob("*.py")]
    assert len(sources) > 20
    assert [path.name for path in sources if SQL_TEXT.search(path.read_text("utf-8"))] == []
