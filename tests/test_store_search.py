"""Lists and counts: no one of them walks the table, and each says where it ended."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from pulsed.client.bulk import pages
from pulsed.client.filter import checked_filter
from pulsed.errors import InvalidOption
from pulsed.model import page as page_module
from pulsed.model.job import JobFilter, PayloadField, Status
from pulsed.model.outcome import Failed, Succeeded
from pulsed.model.page import GROUPED_BY, SEARCHED, bound_of
from pulsed.store.sqlite.values import execute
from pulsed.store.verbs import search
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Verb, drive
from tests.support.backends import only_sqlite
from tests.support.checkpoints import a_step, children_of, recorded
from tests.support.jobs import (
    ALICE,
    BOB,
    TOPIC,
    a_job,
    claim,
    one_attempt,
    running,
    settle,
    submitted,
)

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


async def test_a_search_of_payloads_ends_earlier(store, monkeypatch):
    """Parsing them costs several times as much as reading a column."""
    monkeypatch.setattr(page_module, "PARSED", FEW)
    await store.submit([a_job() for _ in range(FEW + 1)])
    in_payloads = JobFilter(payload=(PayloadField(("user",), 7),))
    assert (await store.list_jobs(in_payloads)).is_cut
    assert (await store.counts(in_payloads)).at_least == frozenset(Status)
    assert not (await store.list_jobs(RARE)).is_cut
    assert (bound_of(in_payloads), bound_of(RARE)) == (FEW, SEARCHED)


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


async def test_jobs_are_counted_by_their_fields(store):
    jobs = [("a", None), ("a", "Timeout: 1"), ("a", "Timeout: 2"), ("b", "no")]
    for topic, error in jobs:
        run = await running(store, topic=topic, max_attempts=1)
        outcome = Succeeded() if error is None else Failed(error, final=True)
        await settle(store, run, outcome)
    counted = await store.counts_by(JobFilter(), ("topic",))
    assert counted == [(("a",), 3), (("b",), 1)]
    assert (counted.by, counted.is_cut, counted.is_short) == (("topic",), False, False)
    assert await store.counts_by(JobFilter(topic="a"), ("error", "status")) == [
        (("Timeout", "DEAD_LETTERED"), 2),
        ((None, "SUCCEEDED"), 1),
    ]
    assert await store.counts_by(JobFilter(topic="none"), ("queue",)) == []


@pytest.mark.usefixtures("few")
async def test_counts_by_fields_end_at_their_bounds(store, monkeypatch):
    monkeypatch.setattr("pulsed.store.verbs.search.MOST_GROUPS", 2)
    await store.submit([a_job(topic=f"t{n}", tags=("common",)) for n in range(FEW)])
    counted = await store.counts_by(JobFilter(), ("topic",))
    assert (len(counted), counted.is_cut, counted.is_short) == (2, True, True)
    assert (await store.counts_by(JobFilter(tag="common"), ("topic",))).is_cut
    assert (await store.counts(JobFilter(tag="common"))).at_least == set(Status)


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
    JobFilter(tag="common"),
    JobFilter(tag="common", topic="none"),
    JobFilter(tag="common", parent=UUID(int=1)),
    JobFilter(error="none"),
    JobFilter(parent=UUID(int=1)),
    JobFilter(parent=UUID(int=1), parent_step="none", status=(Status.DEAD_LETTERED,)),
    JobFilter(topic_prefix="none"),
    JobFilter(payload=(PayloadField(("user", "id"), 7), PayloadField(("name",), "none"))),
    JobFilter(payload=(PayloadField(("user",), None),), status=(Status.DEAD_LETTERED,)),
    JobFilter(worker=UUID(int=1)),
    JobFilter(worker=UUID(int=1), topic="none", status=(Status.PENDING,)),
    JobFilter(schedule=UUID(int=1)),
    JobFilter(id_prefix="0"),
    JobFilter(id_prefix="0197a8c2", queue="none"),
    JobFilter(id_suffix="ffffffffffff"),
    JobFilter(due=False),
    JobFilter(workflow=True),
    JobFilter(workflow=False, status=(Status.RUNNING,)),
    JobFilter(due=True, status=(Status.RETRYING,)),
    JobFilter(outcome="EXPIRED"),
    JobFilter(outcome="EXPIRED", topic="none", status=(Status.CANCELLED,)),
    JobFilter(outcome="SNOOZED"),
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
            for verb in searches(store.engine, where):
                assert steps(connection, verb) < 20_000, (verb.name, where)
    await store.aclose()


def searches(engine: Engine, where: JobFilter) -> list[Verb[Any]]:
    """Return a list and the counts of one filter."""
    return [
        search.list_jobs(engine, where, 50, None),
        search.counts(engine, where),
        search.counts_by(engine, where, GROUPED_BY),
    ]


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
    connection.execute("INSERT INTO pulse_tags SELECT id, 'common' FROM pulse_jobs")
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


# -- each condition -------------------------------------------------------------------------------


async def ids_of(store: Any, **where: Any) -> set[UUID]:
    """Return the ids that a listing finds; a count finds as many."""
    chosen = checked_filter(where)
    found = {row.id for row in await store.list_jobs(chosen)}
    assert sum((await store.counts(chosen)).values()) == len(found)
    return found


async def test_a_topic_is_found_by_its_beginning_as_it_is_written(store):
    names = ("send_email", "send_sms", "sendmail", "Send_email", "resend_", "send%")
    ids = {name: await submitted(store, topic=name) for name in names}
    assert await ids_of(store, topic="send_*") == {ids["send_email"], ids["send_sms"]}
    assert await ids_of(store, topic="send%*") == {ids["send%"]}
    assert await ids_of(store, topic="*") == set(ids.values())
    assert await ids_of(store, topic="send_") == set()


PAYLOADS = {
    "seven": '{"user": 7}',
    "seven as a float": '{"user":7.0}',
    "text": '{"user": "7"}',
    "escaped text": r'{"user": "\u0037"}',
    "true": '{"user": true}',
    "false": '{"user": false}',
    "null": '{"user": null}',
    "none": "{}",
    "inner": '{"user": {"id": 7, "na me": "O\'Neill 😀"}}',
    "list": '{"user": [7]}',
    "large": '{"user": 12345678901234567}',
    "pair": r'{"user": "\ud83d\ude00"}',
}


@pytest.mark.parametrize(
    "path, value, names",
    [
        ("user", 7, {"seven", "seven as a float"}),
        ("user", 7.0, {"seven", "seven as a float"}),
        ("user", 7.5, set()),
        ("user", "7", {"text", "escaped text"}),
        ("user", True, {"true"}),
        ("user", False, {"false"}),
        ("user", None, {"null"}),
        ("user.id", 7, {"inner"}),
        ("user.na me", "O'Neill 😀", {"inner"}),
        ("user", 12345678901234567, {"large"}),
        ("user", 12345678901234568, set()),
        ("user", "😀", {"pair"}),
        ("nobody", 7, set()),
    ],
)
async def test_a_field_of_the_payload_is_found_by_its_value(store, path, value, names):
    jobs = {name: a_job(payload=payload) for name, payload in PAYLOADS.items()}
    await store.submit(list(jobs.values()))
    assert await ids_of(store, payload={path: value}) == {jobs[name].id for name in names}


async def test_payloads_that_the_database_cannot_read_are_passed_over(store, backend):
    job = a_job(payload='{"user": 7}')
    odd = [a_job() for _ in range(4)]
    await store.submit([job, *odd])
    not_json = "{" if store.dialect.engine == "sqlite" else "[7]"
    texts = (r'{"user": "\u0000"}', r'{"user": "\ud800"}', '{"user": 1e400000}', not_json)
    for each, text in zip(odd, texts, strict=True):
        where = f"WHERE id = {backend.literal(each.id)}"
        backend.execute(f"UPDATE pulse_jobs SET payload = '{text}' {where}")
    assert await ids_of(store, payload={"user": 7}) == {job.id}


async def test_several_fields_must_all_match(store):
    both = await submitted(store, payload='{"user": 7, "kind": "a"}')
    await submitted(store, payload='{"user": 7, "kind": "b"}')
    assert await ids_of(store, payload={"user": 7, "kind": "a"}) == {both}


async def test_a_worker_has_the_jobs_that_it_is_running(store):
    mine = await running(store, worker=ALICE)
    await running(store, worker=BOB)
    ended = await running(store, worker=ALICE)
    await settle(store, ended, Succeeded())
    assert await ids_of(store, worker=ALICE) == {mine.job_id}
    assert await ids_of(store, worker=ALICE, status="PENDING") == set()


async def test_a_schedule_has_the_jobs_that_it_made(store):
    schedule = uuid4()
    made = await submitted(store, schedule_id=schedule)
    await submitted(store, schedule_id=uuid4())
    await submitted(store)
    assert await ids_of(store, schedule=schedule) == {made}


async def test_an_id_is_found_by_its_beginning_and_its_end(store):
    first, second = UUID("0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69"), UUID(int=0xABC)
    await store.submit([a_job(id=first), a_job(id=second)])
    assert await ids_of(store, id=str(first)) == {first}
    assert await ids_of(store, id="0197A8C2-7d*") == {first}
    assert await ids_of(store, id="0*") == {first, second}
    assert await ids_of(store, id="*2C4b5a69") == {first}
    assert await ids_of(store, id="*00000abc") == {second}
    assert await ids_of(store, id=str(UUID(int=1))) == set()


@pytest.mark.usefixtures("few")
async def test_the_beginning_of_an_id_is_found_below_any_number_of_others(store):
    await store.submit([a_job(id=UUID(int=(1 << 120) + number)) for number in range(20)])
    old = UUID(int=1)
    await store.submit([a_job(id=old)])
    page = await store.list_jobs(checked_filter({"id": "0000*"}))
    assert ([row.id for row in page], page.is_cut) == ([old], False)


async def test_due_jobs_and_later_ones_are_told_apart(store, clock):
    due, later = await submitted(store), await submitted(store, delay=60)
    await running(store, topic="other")
    assert await ids_of(store, due=True) == {due}
    assert await ids_of(store, due=False) == {later}
    for where in (JobFilter(), JobFilter(topic=TOPIC)):
        counted = await store.counts(where)
        assert (counted[Status.PENDING], counted.due) == (2, 1)
    clock.advance(60)
    assert await ids_of(store, due=True) == {due, later}
    assert (await store.counts(JobFilter())).due == 2


async def test_workflows_are_jobs_with_steps(store):
    flow, plain = await running(store), await running(store, BOB)
    await recorded(store, flow, a_step())
    assert await ids_of(store, workflow=True, status=(Status.RUNNING,)) == {flow.job_id}
    assert await ids_of(store, workflow=False) == {plain.job_id}
    assert (await store.counts(JobFilter(workflow=True)))[Status.RUNNING] == 1


@pytest.mark.parametrize(
    "where",
    [
        {"payload": {}},
        {"payload": {"": 1}},
        {"payload": {"a..b": 1}},
        {"payload": {'a"b': 1}},
        {"payload": {"a.0": 1}},
        {"payload": {"a": [1]}},
        {"payload": {"a": float("nan")}},
        {"payload": {"a": "\0"}},
        {"payload": dict.fromkeys("abcdef", 1)},
        {"payload": "user"},
        {"id": "*"},
        {"id": "xyz*"},
        {"id": 7},
        {"due": 1},
        {"workflow": "yes"},
        {"worker": "alice"},
    ],
    ids=str,
)
def test_a_condition_that_means_nothing_is_refused(where):
    with pytest.raises(InvalidOption):
        checked_filter(where)
