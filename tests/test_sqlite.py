"""A store on SQLite by itself: in memory, closed and used again, read by many, in batches."""

import asyncio
import itertools
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pulsed.model.job import Assignment, Status
from pulsed.model.outcome import Failed, Report, Succeeded
from pulsed.store.sql.settling import SettleStatements
from pulsed.store.sql.statement import named
from pulsed.store.sqlite import store as module
from pulsed.store.sqlite.dialect import ID, TOKEN, SqliteDialect
from pulsed.store.sqlite.statements import SqliteSettleStatements
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.sqlite.values import _records
from tests.support.backends import only_sqlite
from tests.support.jobs import (
    ALICE,
    EVERYTHING,
    a_job,
    claim,
    claim_one,
    reap,
    row,
    running,
    settle,
    submitted,
)

backend = only_sqlite

# -- opening and reading --------------------------------------------------------------------------


async def test_a_database_in_memory_does_all_the_same(clock):
    store = SqliteStore(None, clock=clock)
    run = await running(store, max_attempts=1)
    assert await settle(store, run, Failed("x"))
    assert (await row(store, run.job_id)).status is Status.DEAD_LETTERED
    await store.replay([run.job_id])
    again = await claim_one(store, ALICE)
    assert await store.settle([Report.of(again, Succeeded("1"))]) == {again.lease}
    assert len(await store.failures(run.job_id)) == 1
    await store.aclose()


async def test_a_database_in_memory_begins_anew_after_closing(clock):
    store = SqliteStore(None, clock=clock)
    await submitted(store)
    await store.aclose()
    assert (await store.counts(EVERYTHING))[Status.PENDING] == 0
    await submitted(store)
    await store.aclose()


async def test_no_thread_is_left_after_closing(tmp_path):
    before = set(threading.enumerate())
    store = SqliteStore(tmp_path / "jobs.db")
    await row(store, await submitted(store))
    ours = set(threading.enumerate()) - before
    assert len(ours) > 1
    await store.aclose()
    for each in ours:
        await asyncio.to_thread(each.join, 60)
    assert not any(each.is_alive() for each in ours)


async def test_a_store_can_be_used_again_after_closing(store):
    job_id = await submitted(store)
    await store.aclose()
    assert (await row(store, job_id)).status is Status.PENDING
    assert (await claim_one(store)).job_id == job_id


async def test_the_hosts_clock_decides_without_a_clock_of_the_tests(database):
    store = SqliteStore(database)
    job_id = await submitted(store)
    now = datetime.now(UTC)
    assert abs((await row(store, job_id)).submitted_at - now) < timedelta(minutes=1)
    assert abs(await store.now() - now) < timedelta(minutes=1)
    await store.aclose()


async def test_readers_beside_each_other_use_connections_of_their_own(store):
    job_id = await submitted(store)
    found = await asyncio.gather(*(store.get([job_id]) for _ in range(30)))
    assert all(set(one) == {job_id} for one in found)
    assert len(store._idle_readers) <= module.MOST_IDLE_READERS


class TakenMeanwhile(list[sqlite3.Connection]):
    """Empty, but a thread that checked a moment ago saw one connection."""

    def __len__(self) -> int:
        return 1


async def test_a_reader_that_another_thread_takes_first_is_replaced_by_a_new_one(store):
    job_id = await submitted(store)
    store._close_readers()
    store._idle_readers = TakenMeanwhile()
    assert set(await store.get([job_id])) == {job_id}


async def test_a_reader_given_back_while_all_are_closed_is_not_lost(store):
    """A connection that no list has is never closed."""
    await store.get([await submitted(store)])
    seen_by_another_thread = store._idle_readers
    store._close_readers()
    assert store._idle_readers is seen_by_another_thread


async def test_reads_do_not_queue_behind_what_handlers_gave_to_threads(store):
    release = threading.Event()
    loop = asyncio.get_running_loop()
    busy = [loop.run_in_executor(None, release.wait, 600) for _ in range(64)]
    try:
        async with asyncio.timeout(60):
            await store.counts(EVERYTHING)
    finally:
        release.set()
        await asyncio.gather(*busy)


# -- batches --------------------------------------------------------------------------------------


async def test_long_payloads_and_headers_come_with_their_claim(store):
    """Short ones come in one text; the longest would make it too large."""
    texts = ['{"x":"\\u00e9\\n\\"quoted\\""}', '{"x":"' + "é" * 50_000 + '"}', '{"x":null}']
    jobs = [a_job(payload=text, headers={"of": str(n)}) for n, text in enumerate(texts)]
    long_headers = a_job(headers={"long": "h" * 10_000})
    await store.submit([*jobs, long_headers])
    runs = await claim(store)
    assert [run.payload for run in runs[:3]] == texts
    assert [run.headers for run in runs] == [
        *({"of": str(n)} for n in range(3)),
        {"long": "h" * 10_000},
    ]


async def test_a_batch_of_large_results_goes_in_by_pieces(store, monkeypatch):
    monkeypatch.setattr("pulsed.store.sqlite.values.MOST_TEXT", 50)
    await store.submit([a_job() for _ in range(9)])
    runs = await claim(store)
    results = {run.job_id: f'"{n}{"x" * 20}"' for n, run in enumerate(runs)}
    reports = [Report.of(run, Succeeded(results[run.job_id])) for run in runs]
    lost = reports[4].lease.job_id
    reports[4] = reports[4]._replace(lease=reports[4].lease._replace(token=1))
    held = {run.lease for run in runs if run.job_id != lost}
    assert await store.settle(reports) == held
    rows = await store.get(list(results))
    assert {job_id: row.result for job_id, row in rows.items()} == {**results, lost: None}


async def test_leases_of_several_claims_are_settled_together(store, clock):
    await store.submit([a_job() for _ in range(4)])
    runs: list[Assignment] = []
    for _ in range(4):
        runs += await claim(store, limit=1)
        clock.advance(1)
    assert len({run.lease.token for run in runs}) == 4
    swapped = [runs[0].lease.token, runs[2].lease.token, runs[1].lease.token, runs[3].lease.token]
    reports = [
        Report.of(run, Succeeded(str(n)))._replace(lease=run.lease._replace(token=token))
        for n, (run, token) in enumerate(zip(runs, swapped, strict=True))
    ]
    assert await store.settle(reports) == {runs[0].lease, runs[3].lease}
    rows = await store.get([run.job_id for run in runs])
    assert [rows[run.job_id].result for run in runs] == ["0", None, None, "3"]


async def test_runs_of_a_silent_worker_are_reaped_together(store, clock):
    """The ids of their failures are what SQLite has returned, and no UUIDs."""
    await store.submit([a_job() for _ in range(3)])
    runs = await claim(store)
    clock.advance(3600)
    assert set(await reap(store)) == {run.job_id for run in runs}
    for run in runs:
        assert [each.attempt for each in await store.failures(run.job_id)] == [1]


def test_a_token_that_would_shift_the_others_is_refused():
    jobs = [UUID(int=1), UUID(int=2)]
    assert len(_records(jobs, [2**63 - 1, -(2**63)])) == 2 * (ID + TOKEN)
    for too_large in (2**63, -(2**63) - 1):
        with pytest.raises(OverflowError, match="larger than SQLite's integers"):
            _records(jobs, [1, too_large])


async def test_the_short_end_of_a_success_is_that_of_all_runs(tmp_path):
    """Both SET lists leave the same row, whatever it was before."""
    store = SqliteStore(tmp_path / "jobs.db")
    await submitted(store)
    await store.aclose()
    d = SqliteDialect()
    lists = [group(d).end_of_success(d) for group in (SqliteSettleStatements, SettleStatements)]
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("CREATE TEMP TABLE ended AS SELECT * FROM pulse_jobs LIMIT 0")
        connection.create_function("pulse_backoff", 6, lambda *_: 1.0)
        names = [name for _, name, *_ in connection.execute("PRAGMA table_info(ended)")]
        for before, key_until in itertools.product((None, 7), (None, 9)):
            values = dict.fromkeys(names, before) | {"key_until": key_until}
            short, long = (_updated(connection, values, text) for text in lists)
            assert short == long
            assert short["status"] == "SUCCEEDED"


def _updated(connection: sqlite3.Connection, values: dict[str, Any], text: str) -> dict[str, Any]:
    """Return a row after an UPDATE with a SET list."""
    connection.execute("DELETE FROM ended")
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO ended VALUES ({marks})", list(values.values()))
    sql = named(f"UPDATE ended SET {text} FROM (SELECT 'r' AS outcome_result) AS r").text
    connection.execute(sql, {"now": 100})
    return dict(zip(values, connection.execute("SELECT * FROM ended").fetchone(), strict=True))
