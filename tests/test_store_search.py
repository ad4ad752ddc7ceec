"""Lists and counts: no one of them walks the table, and each says where it ended."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pulsed.client.bulk import pages
from pulsed.model.job import JobFilter, Status
from pulsed.model.outcome import Failed, Succeeded
from pulsed.store.sqlite.values import execute
from pulsed.store.verbs import search
from pulsed.store.verbs.script import Verb, drive
from tests.support.backends import only_sqlite
from tests.support.checkpoints import children_of
from tests.support.jobs import TOPIC, a_job, claim, one_attempt, running, settle, submitted

sqlite = only_sqlite

FEW = 4
RARE = JobFilter(topic="rare")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search end after four jobs."""
    monkeypatch.setattr(search, "SEARCHED", FEW)


async def a_rare_one_below(store: Any, others: int) -> UUID:
    rare = await submitted(store, topic="rare")
    await store.submit([a_job() for _ in range(others)])
    return rare


@pytest.mark.usefixtures("few")
async def test_a_search_ends_at_its_bound_and_says_where_to_go_on(store):
    rare = await a_rare_one_below(store, 10)
    page = await store.list_jobs(RARE)
    looks = 1
    while page.is_cut:
        assert page == []
        assert page.next is not None
        page = await store.list_jobs(RARE, before=page.next)
        looks += 1
    assert [row.id for row in page] == [rare]
    assert page.next is None
    assert looks == 3


@pytest.mark.usefixtures("few")
async def test_whoever_wants_all_that_match_gets_them_from_behind_the_bound(store):
    rare = {await a_rare_one_below(store, 6) for _ in range(3)}
    found = [row.id async for page in pages(store, RARE, limit=2) for row in page]
    assert sorted(found) == sorted(rare)


@pytest.mark.usefixtures("few")
async def test_a_full_page_is_not_cut(store):
    await store.submit([a_job() for _ in range(10)])
    page = await store.list_jobs(JobFilter(topic=TOPIC), limit=3)
    assert (len(page), page.next, page.is_cut) == (3, page[-1].id, False)


@pytest.mark.usefixtures("few")
async def test_a_list_without_a_filter_and_the_last_page_of_one_are_not_cut(store):
    await store.submit([a_job() for _ in range(10)])
    page = await store.list_jobs(JobFilter(), limit=9)
    assert (len(page), page.is_cut) == (9, False)
    rest = await store.list_jobs(JobFilter(), limit=9, before=page.next)
    assert (len(rest), rest.next, rest.is_cut) == (1, None, False)


@pytest.mark.usefixtures("few")
async def test_running_jobs_dead_letters_and_children_are_found_below_any_number_of_others(store):
    run = await running(store)
    dead = await running(store, **one_attempt())
    await settle(store, dead, Failed("no", final=True))
    parent = await running(store)
    await store.workflows.add_children(parent.lease, children_of(parent.job_id, 6))
    await store.submit([a_job() for _ in range(10)])

    async def found(**where: Any) -> tuple[int, bool]:
        page = await store.list_jobs(JobFilter(**where))
        return len(page), page.is_cut

    assert await found(status=(Status.RUNNING,)) == (2, False)
    assert await found(status=(Status.DEAD_LETTERED,)) == (1, False)
    assert await found(parent=parent.job_id) == (6, False)
    assert run.job_id in {r.id for r in await store.list_jobs(JobFilter(status=(Status.RUNNING,)))}


@pytest.mark.usefixtures("few")
async def test_a_search_for_older_jobs_begins_behind_the_younger_ones(store, clock):
    async def submit_now(number: int) -> None:
        begin = round(clock.now.timestamp() * 1000) << 80
        await store.submit([a_job(id=UUID(int=begin + n)) for n in range(number)])

    await submit_now(3)
    clock.advance(86_400)
    limit = clock.now - timedelta(hours=4)
    await submit_now(20)
    page = await store.list_jobs(JobFilter(until=limit))
    assert (len(page), page.is_cut) == (3, False)


async def test_a_job_whose_id_says_nothing_about_time_is_found_by_its_time(store, clock):
    odd = UUID(int=(1 << 128) - 1)
    await store.submit([a_job(id=odd)])
    clock.advance(86_400)
    page = await store.list_jobs(JobFilter(until=clock.now - timedelta(hours=4)))
    assert [row.id for row in page] == [odd]


# -- counts ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
async def test_counts_end_at_the_bound_and_say_so(store):
    await store.submit([a_job() for _ in range(6)])
    counted = await store.counts(JobFilter())
    assert counted[Status.PENDING] == FEW
    assert counted.at_least == {Status.PENDING, Status.RETRYING, Status.WAITING}
    for run in await claim(store, limit=6):
        await settle(store, run, Succeeded())
    counted = await store.counts(JobFilter())
    assert (counted[Status.SUCCEEDED], counted[Status.PENDING]) == (FEW, 0)
    assert counted.at_least == {Status.SUCCEEDED}
    assert (await store.counts(JobFilter(status=(Status.PENDING,)))).at_least == set()


@pytest.mark.usefixtures("few")
async def test_counts_of_a_filter_look_at_the_newest(store):
    parent = await running(store)
    await a_rare_one_below(store, 10)
    counted = await store.counts(RARE)
    assert (sum(counted.values()), counted.at_least) == (0, set(Status))
    await store.workflows.add_children(parent.lease, children_of(parent.job_id, 6))
    counted = await store.counts(JobFilter(parent=parent.job_id))
    assert (counted[Status.PENDING], counted.at_least) == (6, set())


async def test_below_the_bound_every_count_is_exact(store):
    await store.submit([a_job(topic=topic) for topic in ("a", "a", "b")])
    assert (await store.counts(JobFilter(topic="a"))).at_least == set()
    assert (await store.counts(JobFilter())).at_least == set()


# -- what SQLite does for it ----------------------------------------------------------------------

EVERY_FILTER = [
    JobFilter(),
    *(JobFilter(status=(status,)) for status in Status),
    JobFilter(status=(Status.PENDING, Status.RETRYING, Status.WAITING), queue="none"),
    JobFilter(status=(Status.SUCCEEDED, Status.CANCELLED)),
    JobFilter(status=(Status.DEAD_LETTERED,), topic="none"),
    JobFilter(topic="none"),
    JobFilter(queue="none"),
    JobFilter(tag="none"),
    JobFilter(error="none"),
    JobFilter(parent=UUID(int=1)),
    JobFilter(parent=UUID(int=1), parent_step="none", status=(Status.DEAD_LETTERED,)),
]
"""Most of them match nothing: those are the ones that would walk the table."""


@pytest.mark.parametrize("analyzed", [False, True], ids=["fresh", "analyzed"])
async def test_no_search_on_sqlite_visits_more_than_its_bound(sqlite, monkeypatch, analyzed):
    """Seen in the steps of its machine, beside thousands of jobs of other kinds."""
    monkeypatch.setattr(search, "SEARCHED", 100)
    store = sqlite.open()
    await store.now()
    with closing(sqlite.connect()) as connection:
        fill(connection)
        if analyzed:
            connection.execute("ANALYZE")
        for where in EVERY_FILTER:
            for verb in (
                search.list_jobs(store.engine, where, 50, None),
                search.counts(store.engine, where),
            ):
                assert steps(connection, verb) < 20_000, (verb.name, where)
    await store.aclose()


def fill(connection: sqlite3.Connection) -> None:
    connection.execute(
        """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
        INSERT INTO pulse_jobs (id, queue, topic, status, payload, next_run_at, submitted_at,
            completed_at, last_error)
        SELECT randomblob(16), 'default', 't', status, '{}', 0, 0,
            CASE WHEN status <> 'PENDING' THEN 1 END, 'boom'
        FROM (SELECT CASE WHEN i % 2000 = 0 THEN 'DEAD_LETTERED' WHEN i % 3 = 0 THEN 'PENDING'
            WHEN i % 3 = 1 THEN 'SUCCEEDED' ELSE 'CANCELLED' END AS status FROM n)"""
    )
    connection.commit()


def steps(connection: sqlite3.Connection, verb: Verb[Any]) -> int:
    """Return how many steps of SQLite's machine a verb takes, in hundreds."""
    taken = 0

    def count() -> None:
        nonlocal taken
        taken += 100

    connection.set_progress_handler(count, 100)
    try:
        drive(verb.script(), lambda statement: execute(connection.cursor(), statement, 0))
    finally:
        connection.set_progress_handler(None, 0)
    return taken


async def test_a_search_may_go_to_the_end_of_time(store):
    job_id = await submitted(store)
    page = await store.list_jobs(JobFilter(until=datetime.max.replace(tzinfo=UTC)))
    assert [job.id for job in page] == [job_id]
