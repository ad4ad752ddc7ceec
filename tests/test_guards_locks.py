"""Locks, statement by statement: of which rows, in which order, and which are never waited for.

A session that a lock timeout has stopped leaves its number in the rows that it had locked until
then, so the order of its locks can be read without any race.
"""

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest
from psycopg.errors import LockNotAvailable

from pulsed.model.job import TopicPolicy
from pulsed.store.postgres.address import PostgresOptions
from pulsed.store.postgres.engine import PostgresEngine
from pulsed.store.postgres.session import _ONE_PLAN
from pulsed.store.postgres.store import PostgresStore
from pulsed.store.sql.statement import Rows, Sql, Statement
from pulsed.store.verbs.script import Script, Verb, VerbKind
from pulsed.store.verbs.topics import Topics
from tests.support.backends import PostgresBackend, only_postgres, only_sqlite
from tests.support.guard_cases.claims import PLAIN
from tests.support.jobs import ALICE, TOPIC, a_job, running
from tests.support.schedules import APP, put
from tests.support.statements import groups, names_of, postgres_engine

postgres, sqlite = only_postgres, only_sqlite

WAITED, FIRST, HELD = (UUID(int=number) for number in (1, 2, 3))
"""The order of ids. Jobs that have waited are locked last, so FIRST is locked before HELD."""
A_TIME = datetime(2020, 1, 1, tzinfo=UTC)
VALUES: dict[str, Any] = {
    "uuid": ALICE, "int": 1, "bigint": 1, "float8": 1.0, "text": "1", "bool": False,
    "timestamptz": A_TIME, "json": "{}", "smallint": 1,
}  # fmt: skip
"""A value of each type; of jobs, also the owner and the token of their lease."""

GIVEN = {"kind": "STEP", "state": "DONE", "new_cursor": None, "its_state": "PAUSED"}
"""What a checkpoint, and a schedule, have to say."""
NOT_STARTED = "status = 'PENDING', locked_by = NULL, lease_until = NULL, started_at = NULL"
FAILED = "status = 'DEAD_LETTERED', locked_by = NULL, lease_until = NULL, completed_at = now()"
CONCERNED = {
    "operators.change_jobs": NOT_STARTED,
    "operators.expedite": NOT_STARTED,
    "operators.delete": NOT_STARTED,
    "operators.edit_payload": FAILED,
    "operators.replay": FAILED,
    "expiry.expire": f"{NOT_STARTED}, expires_at = '2019-01-01'",
    "keys.release_lapsed": "key = id::text, key_held = true, key_until = '2019-01-01'",
    "keys.replace": f"{NOT_STARTED}, key = id::text, key_held = true",
    "keys.replayed_keys": f"{FAILED}, key = id::text",
}
"""What makes running jobs those that a statement changes. If it changed none, its plan could begin
with that, and lock nothing."""

IN_ORDER = re.compile(r"ORDER BY (?:[kj]\.wait_kind|f\.above|u\.)[^()]*UPDATE OF \w(?! SKIP)")


def of(engine: PostgresEngine, name: str) -> Sql:
    """Return a statement as the driver gets it."""
    group, _, statement = name.partition(".")
    return Statement(getattr(getattr(engine, group), statement), {}).sql


def named(pattern: re.Pattern[str]) -> list[str]:
    """Return the statements whose texts match."""
    engine = postgres_engine()
    names = {id(group): name for name, group in vars(engine).items()}
    return [
        f"{names[id(group)]}.{name}"
        for group in groups(engine)
        for name in sorted(names_of(group))
        if pattern.search(getattr(group, name).text)
    ]


def run(
    session: psycopg.Connection[Any], sql: Sql, ids: Sequence[Any], **given: Any
) -> psycopg.RawCursor[Any]:
    """Run a statement for a batch of ids; whatever else it takes is the same for all of them."""
    types = dict(re.findall(r"\$(\d+)::(\w+)", sql.text))
    params = []
    for number, name in enumerate(sql.names, 1):
        value = given[name] if name in given else VALUES[types[str(number)]]
        if name in sql.columns:
            value = list(ids) if name == sql.columns[0] else [value] * len(ids)
        params.append(value)
    cursor = psycopg.RawCursor(session)
    return cursor.execute(sql.text, params)


@contextlib.contextmanager
def transaction(postgres: PostgresBackend) -> Iterator[psycopg.Connection[Any]]:
    """A worker's session in a transaction that is undone; it never waits long for a lock."""
    with contextlib.closing(postgres.connect()) as session:
        for name, value in (_ONE_PLAN | {"lock_timeout": "10ms"}).items():
            session.execute(f"SET {name} = '{value}'")
        with session.transaction(force_rollback=True):
            yield session


@pytest.fixture
async def rows(postgres: PostgresBackend) -> None:
    """Three rows of each table to lock; the jobs run under the lease of VALUES."""
    store = postgres.open()
    await store.submit([a_job(id=row_id) for row_id in (WAITED, FIRST, HELD)])
    for row_id in (WAITED, FIRST, HELD):
        await put(store, row_id.hex)
        own_id = f"id = {postgres.literal(row_id)}"
        postgres.execute(
            f"UPDATE pulse_schedules SET {own_id}, revision = 1, next_run_at = '2020-01-01 00:00Z' "
            f"WHERE name = '{row_id.hex}'"
        )
    postgres.execute(
        f"UPDATE pulse_jobs SET status = 'RUNNING', locked_by = {postgres.literal(ALICE)}, "
        "lease_token = 1, attempts = 1, lease_until = now(), started_at = now(), "
        f"wait_kind = CASE WHEN id = {postgres.literal(WAITED)} THEN 'SLEEP' END"
    )
    await store.aclose()


def locked(postgres: PostgresBackend, table: str, row_id: UUID) -> bool:
    """Whether a session has locked a row since it was written, even if it was stopped later."""
    which = f"id = {postgres.literal(row_id)}"
    [(number,)] = postgres.execute(f"SELECT xmax::text FROM {table} WHERE {which}")
    return bool(number != "0")


def table_of(statement: str) -> str:
    return "pulse_schedules" if statement.startswith("schedules.") else "pulse_jobs"


# -- batches that wait for their locks ------------------------------------------------------------


@pytest.mark.parametrize("statement", named(IN_ORDER))
async def test_a_batch_is_locked_in_the_order_of_ids_and_jobs_that_have_waited_last(
    postgres, rows, statement
):
    if statement in CONCERNED:
        postgres.execute(f"UPDATE pulse_jobs SET {CONCERNED[statement]}")
    table, sql = table_of(statement), of(postgres.open().engine, statement)
    batch, before_held = [WAITED, HELD, FIRST], FIRST
    if table == "pulse_schedules":
        batch, before_held = [FIRST, HELD, WAITED], WAITED
    with transaction(postgres) as holder:
        holder.execute(f"SELECT FROM {table} WHERE id = {postgres.literal(HELD)} FOR UPDATE")
        with transaction(postgres) as session, pytest.raises(LockNotAvailable):
            run(session, sql, batch, **GIVEN)
    assert locked(postgres, table, before_held)
    if table == "pulse_jobs":
        assert not locked(postgres, table, WAITED)


# -- rows that another session has locked are left out --------------------------------------------

RUNNING = (
    f"status = 'RUNNING', locked_by = '{ALICE}', lease_token = 1, started_at = now(), "
    "lease_ms = 1, lease_until = "
)
NOW = datetime.now(UTC)
TOPICS = Topics([TopicPolicy(topic=TOPIC)])
CLAIM: dict[str, Any] = {
    "queue": "default", "topics": TOPICS.as_json, "above": [], "below": [], "most": 9,
    "age": 60.0, "highest": 100, "l_at": A_TIME, "l_id": UUID(int=0), "l_claimed": 1e9,
    "l_walked": 1e9, "g_priority": 0, "g_place": 0, "g_most": 9, "g_begun": False,
    "governed": False,
}  # fmt: skip


class Pick(NamedTuple):
    """What makes a job one that a statement picks, its batch, and its parameters."""

    changes: str
    batch: Sequence[Any] = (FIRST,)
    given: Mapping[str, Any] = MappingProxyType({})


PICKS = {
    "retention.prune": Pick(
        "status = 'SUCCEEDED', completed_at = '2020-01-02'", given={"status": "SUCCEEDED"}
    ),
    "expiry.pick_expired": Pick("expires_at = '2020-01-01'"),
    "families.pick_cascades": Pick("cascades = true"),
    "families.lock_free": Pick("priority = 1"),
    "families.untold_children": Pick("parent_id = id", given={"parent": FIRST}),
    "limited.payloads_without_key": Pick("priority = 1"),
    "leases.beat": Pick(f"{RUNNING} now()"),
    "recovery.note_shared": Pick(f"{RUNNING} now()", [ALICE]),
    "recovery.shorten_leases": Pick(f"{RUNNING} 'infinity'"),
    "recovery.reap": Pick(f"{RUNNING} '2020-01-01'", [1], {"before": NOW, "left_alone": []}),
    **{
        f"claiming.{name}": Pick(changes, [0], CLAIM)
        for name, changes in {
            "claim": "priority = 0",
            "claim_governed": "priority = 0",
            "claim_aged": "priority = 0",
            "claim_suspect": "crashes = 2",
            "claim_governed_suspect": "crashes = 2",
        }.items()
    },
    "claiming.claim_plain": Pick("priority = 0", (), PLAIN | {"claimed": 1e9, "walked": 1e9}),
    "limited.claim_limited": Pick("limit_key = 'k'", ["k"], CLAIM),
    "limited.claim_limited_aged": Pick("limit_key = 'k'", ["k"], CLAIM),
    "limited.claim_limited_suspect": Pick("limit_key = 'k', crashes = 2", ["k"], CLAIM),
}


@pytest.mark.parametrize("statement", PICKS)
async def test_a_job_that_another_session_has_locked_is_skipped_and_not_waited_for(
    postgres, statement
):
    pick = PICKS[statement]
    store = postgres.open()
    await store.submit([a_job(id=FIRST)])
    await store.aclose()
    postgres.execute(f"UPDATE pulse_jobs SET next_run_at = '2020-01-02', {pick.changes}")
    sql = of(postgres.open().engine, statement)
    skips_locked(postgres, sql, "pulse_jobs", pick)


OTHERS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "presence.forget_workers": ("pulse_workers", {}),
    "recovery.remove_ticks": ("pulse_ticks", {}),
    "controls.prune_rates": ("pulse_rates", {"scope": "limit"}),
    "rollups.take_errors": ("pulse_error_rollups", {}),
    "rollups.drop_errors": ("pulse_error_rollups", {}),
    "rollups.take_rollups": ("pulse_rollups", {}),
    "rollups.drop_rollups": ("pulse_rollups", {}),
}
"""The tables of statements that pick other rows than jobs, and what such a row has to say."""
OF_TYPE: dict[str, Any] = {
    "uuid": FIRST, "text": "x", "timestamptz": A_TIME, "json": "{}", "bool": False, "int8": 1,
    "int4": 1, "int2": 60, "float8": 1.0, "bytea": b"", "jsonb": "{}", "_int8": [], "_int4": [],
}  # fmt: skip


def put_row(postgres: PostgresBackend, table: str, values: Mapping[str, Any]) -> None:
    """Store a row, with some value in each column that needs one."""
    columns = postgres.execute(
        "SELECT column_name, udt_name FROM information_schema.columns "
        f"WHERE table_name = '{table}' AND is_nullable = 'NO'"
    )
    row = {**{name: OF_TYPE[kind] for name, kind in columns}, **values}
    places = ", ".join(["%s"] * len(row))
    with postgres.session() as session:
        session.execute(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", list(row.values())
        )


@pytest.mark.parametrize("statement", OTHERS)
async def test_a_row_that_another_session_has_locked_is_skipped_and_not_waited_for(
    postgres, statement
):
    table, values = OTHERS[statement]
    store = postgres.open()
    await store.now()
    await store.aclose()
    put_row(postgres, table, values)
    sql = of(postgres.open().engine, statement)
    skips_locked(postgres, sql, table, Pick("", given={"span": 60}))


async def test_a_locked_tick_is_skipped_though_another_one_is_free(postgres):
    """If its lock did not name the tick, the free one would stand for the locked one."""
    store = postgres.open()
    await store.now()
    await store.aclose()
    for tick in (FIRST, HELD):
        put_row(postgres, "pulse_ticks", {"id": tick})
    sql = of(postgres.open().engine, "recovery.remove_ticks")
    with transaction(postgres) as holder, transaction(postgres) as session:
        holder.execute("SELECT FROM pulse_ticks WHERE id = %s FOR UPDATE", [FIRST])
        assert run(session, sql, [FIRST]).rowcount == 0
        assert run(session, sql, [HELD]).rowcount == 1


def skips_locked(postgres: PostgresBackend, sql: Sql, table: str, pick: Pick) -> None:
    """Run a statement on a row as it is, and then while another session has locked it."""
    given = {"most": 9, "now": NOW, **pick.given}
    with transaction(postgres) as session:
        assert run(session, sql, pick.batch, **given).rowcount == 1
    with transaction(postgres) as holder, transaction(postgres) as session:
        holder.execute(f"SELECT FROM {table} FOR UPDATE")
        assert run(session, sql, pick.batch, **given).rowcount == 0


# -- a lock keeps others out until the transaction ends -------------------------------------------


@pytest.mark.parametrize("statement", ["submission.lock_keys", "submission.lock_queue"])
async def test_an_advisory_lock_is_had_by_one_transaction(postgres, statement):
    sql = of(postgres.open().engine, statement)
    with transaction(postgres) as first, transaction(postgres) as second:
        run(first, sql, [], slots=[1, 2], slot=1)
        with second.transaction(force_rollback=True):
            run(second, sql, [], slots=[3], slot=3)
        with pytest.raises(LockNotAvailable):
            run(second, sql, [], slots=[2], slot=1)


@pytest.mark.parametrize("statement", ["limited.limit_keys", "limited.limit_suspects"])
async def test_a_key_of_a_limit_is_locked_by_one_claim_and_others_do_not_wait(postgres, statement):
    store = postgres.open()
    await store.submit([a_job(id=FIRST)])
    await store.aclose()
    due = "next_run_at = '2020-01-02', limit_key = 'k', crashes = 2"
    postgres.execute(f"UPDATE pulse_jobs SET {due}")
    sql = of(postgres.open().engine, statement)
    given = CLAIM | {"now": NOW, "after": "", "skipped": "[]"}
    with transaction(postgres) as first, transaction(postgres) as second:
        has = [run(session, sql, [], **given).fetchall() for session in (first, second)]
    place = 3 if statement == "limited.limit_keys" else 2
    assert [rows[0][place] for rows in has] == [True, False]


@pytest.mark.parametrize(
    "statement, given",
    [
        ("signals.lock_status", {"job": FIRST}),
        ("controls.lock_control", {"scope": "queue", "name": "x"}),
        ("schedules.get", {"app": APP, "name": FIRST.hex}),
    ],
)
async def test_what_is_read_to_be_changed_is_locked(postgres, rows, statement, given):
    put_row(postgres, "pulse_controls", {"scope": "queue"})
    sql = of(postgres.open().engine, statement)
    with transaction(postgres) as first, transaction(postgres) as second:
        assert run(first, sql, [], **given).rowcount == 1
        with pytest.raises(LockNotAvailable):
            run(second, sql, [], **given)


@pytest.mark.parametrize("pooled", [False, True])
async def test_transactions_see_what_others_have_committed_whatever_the_servers_default(
    postgres, pooled
):
    """A verb that waits for a lock decides by the row as it is then, not as it was.

    A session says so when it begins; behind a pooler, each transaction does.
    """
    url = f"{postgres.url}?options=-c%20default_transaction_isolation%3Dserializable"
    store = PostgresStore(url, PostgresOptions(prepared_statements=not pooled))

    def script() -> Script[Rows]:
        return (yield Statement(Sql("SELECT current_setting('transaction_isolation')", ()), {}))

    [(level,)] = await store.run(Verb("test", VerbKind.TRANSACTION, script))
    await store.aclose()
    assert level == "read committed"


# -- SQLite ---------------------------------------------------------------------------------------


async def test_the_transaction_of_a_step_has_the_write_lock_from_its_beginning(sqlite):
    """Otherwise its first write fails, once another process has written after its first read."""
    store = sqlite.open()
    lease = (await running(store)).lease
    async with store.workflows.transaction(lease, plain=False):
        with (
            contextlib.closing(sqlite3.connect(sqlite.path, timeout=0)) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")
    await store.aclose()
