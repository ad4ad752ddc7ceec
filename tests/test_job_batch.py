"""Many jobs at a time: made, checked and stored together, and each as if it were alone."""

import math
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from pulsed import Pulse
from pulsed.batches import Limits
from pulsed.client import job_maker, jobtype
from pulsed.errors import InvalidArguments, InvalidPayload
from pulsed.handler import Handler
from pulsed.handler.codec import CHECKED_TOGETHER
from pulsed.model.backoff import Backoff
from pulsed.model.ids import new_job_id, new_job_ids
from pulsed.model.job import Status
from pulsed.model.job_batch import FreshJob, JobBatch, ids_of, kinds_of
from pulsed.store.results import ONE_NEW
from pulsed.store.sqlite import values
from pulsed.store.verbs.submit import submit
from tests.support.faults import Fault
from tests.support.jobs import EVERYTHING, a_job, row

MANY = 2 * CHECKED_TOGETHER + 7


def a_batch(count: int, *, is_untried: bool = False, **fields: Any) -> JobBatch:
    payloads = [f'{{"n":{n}}}' for n in range(count)]
    return JobBatch(a_job(**fields), new_job_ids(count), payloads, is_untried=is_untried)


# -- ids ------------------------------------------------------------------------------------------


def test_ids_made_together_continue_those_made_one_by_one():
    made = [new_job_id(), *new_job_ids(9_000), new_job_id(), *new_job_ids(2), *new_job_ids(0)]
    assert made == sorted(made)
    assert len(set(made)) == len(made) == 9_004
    assert {(each.version, each.variant) for each in made} == {(7, made[0].variant)}


def test_ids_made_together_have_random_parts_of_their_own():
    assert len({each.int & (1 << 62) - 1 for each in new_job_ids(1_000)}) == 1_000


@pytest.mark.parametrize("part", [0, 1, 4_000, 4_095])
def test_ids_made_together_are_those_of_their_instants(monkeypatch, part):
    """Each part of a millisecond has its id, and the next millisecond follows the last part."""
    randoms = bytes(range(256)) * 320
    monkeypatch.setattr("pulsed.model.ids.os.urandom", lambda count: randoms[:count])
    monkeypatch.setattr("pulsed.model.ids._last_instant", (1 << 59) + part - 1)
    lower = [int.from_bytes(randoms[at : at + 8]) for at in range(0, 80_000, 8)]
    expected = [
        UUID(int=((1 << 59) + n >> 12) << 80 | 7 << 76 | (n & 4_095) << 64 | 2 << 62 | low % 2**62)
        for n, low in enumerate(lower, part)
    ]
    assert list(new_job_ids(10_000)) == expected


def test_ids_made_together_are_read_as_a_sequence():
    ids = new_job_ids(5)
    each = list(ids)
    assert [ids[n] for n in range(5)] == each == [UUID(bytes=data) for data in ids.each()]
    assert (ids[-1], list(ids[1:3]), list(ids[::-2]), len(ids)) == (
        (each[-1], each[1:3], each[::-2], 5)
    )
    assert ids.data == b"".join(one.bytes for one in each)
    assert ids.each_after(b"ab") == b"".join(b"ab" + one.bytes for one in each)
    assert {type(one) for one in each} == {UUID}
    with pytest.raises(IndexError):
        ids[5]


def test_ids_made_together_do_not_go_back_with_the_clock(monkeypatch):
    late = new_job_ids(10)[-1]
    monkeypatch.setattr("pulsed.model.ids.time.time_ns", lambda: 0)
    assert min(new_job_ids(10)) > late


# -- the batch ------------------------------------------------------------------------------------


def test_a_batch_is_a_sequence_of_its_jobs():
    batch = a_batch(5, priority=3)
    jobs = [a_job(id=batch.ids[n], payload=f'{{"n":{n}}}', priority=3) for n in range(5)]
    assert list(batch) == jobs
    assert [batch[0], batch[-1], *batch[1:3], len(batch)] == [jobs[0], jobs[4], *jobs[1:3], 5]
    assert isinstance(batch[1:3], JobBatch)
    assert ids_of(batch) == ids_of(jobs) == [job.id for job in jobs]
    assert (kinds_of(batch), kinds_of(jobs)) == ([batch.template], jobs)


OPTIONS: dict[str, Any] = {
    "queue": "mail",
    "priority": 7,
    "delay": 90.0,
    "max_attempts": 5,
    "backoff": Backoff.fixed(3),
    "timeout": 1.5,
    "lease": 20.0,
    "headers": {"trace": "1"},
    "tags": ("a", "b"),
    "expires": 60.0,
    "limit_key": "openai",
}


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=["none", "many"])
@pytest.mark.parametrize("is_untried", [False, True])
async def test_a_batch_is_stored_as_its_jobs_would_be(store, options, is_untried):
    batch = a_batch(2, is_untried=is_untried, **options)
    alone = replace(batch[0], id=new_job_id())
    await store.submit([alone])
    assert (await store.submit(batch)).new == 2
    stored, expected = await row(store, batch.ids[0]), await row(store, alone.id)
    assert replace(stored, id=alone.id) == expected


async def test_a_batch_answers_for_each_of_its_jobs(store):
    batch = a_batch(6)
    await store.submit([batch[1], batch[4]])
    answer = await store.submit(batch)
    assert (answer.existing, answer.new) == (frozenset({1, 4}), 4)
    assert [(await row(store, job.id)).payload for job in batch] == list(batch.payloads)
    assert (await store.submit(batch)).existing == frozenset(range(6))


async def test_an_untried_batch_is_stored_once_whatever_answers_get_lost(store, when, times):
    batch = a_batch(6, is_untried=True)
    fault = Fault(store, "submit", when, times)
    answer = await store.submit(batch)
    assert fault.hits == times
    assert (answer.new, answer.unknown) == ((6, set()) if when == "before" else (0, {*range(6)}))
    assert (await store.counts(EVERYTHING))[Status.PENDING] == 6
    assert [(await row(store, job.id)).payload for job in batch] == list(batch.payloads)


@pytest.mark.embedded("looks at the statements")
async def test_only_the_first_attempt_of_all_may_leave_out_what_makes_a_retry_harmless(
    store, backend
):
    if backend.engine != "postgres":
        pytest.skip("SQLite has one form, which costs the same")
    batch = a_batch(6, is_untried=True)
    first, again = (next(store.engine.insert(batch)).sql.text for _ in range(2))
    parts = [next(store.engine.insert(part)).sql.text for part in (a_batch(6), batch[:3])]
    assert "ON CONFLICT" not in first
    assert all("ON CONFLICT DO NOTHING" in text for text in [again, *parts])


async def test_an_untried_job_is_stored_once_whatever_answers_get_lost(store, when, times):
    job = a_job()
    fault = Fault(store, "submit", when, times)
    answer = await store.submit(FreshJob([job]))
    assert fault.hits == times
    assert (answer.new, answer.unknown) == ((1, set()) if when == "before" else (0, {0}))
    assert (await store.counts(EVERYTHING))[Status.PENDING] == 1
    assert (await store.submit([job])).existing == frozenset({0})


@pytest.mark.embedded("looks at the statements")
async def test_only_the_first_attempt_of_an_untried_job_is_a_plain_insert(store, backend):
    if backend.engine != "postgres":
        pytest.skip("SQLite has one form, which costs the same")
    job = FreshJob([a_job()])
    verb, another = submit(store.engine, job), submit(store.engine, job)
    first, again, later = (next(each.script()).sql.text for each in (verb, verb, another))
    own_id = next(submit(store.engine, [a_job()]).script()).sql.text
    assert "ON CONFLICT" not in first
    assert all("ON CONFLICT DO NOTHING" in text for text in (again, later, own_id))


def test_only_an_id_that_was_made_for_the_call_is_untried(app, monkeypatch):
    """In the caller's own transaction an error would undo the caller's work."""
    given = []

    async def note(_store, jobs, *_args, **_options):
        given.append(getattr(jobs, "is_untried", False))
        return jobs, ONE_NEW

    monkeypatch.setattr(jobtype, "submit", note)

    @app.job
    def add(a: int) -> int:
        return a

    add.enqueue(1)
    add.using(id=new_job_id()).enqueue(1)
    add.using(conn=object()).enqueue(1)
    assert given == [True, False, False]


ODD = [
    f'{{"x": {value}}}'
    for value in (
        r'"\u001f"',
        r'"a\nb\t"',
        '"Grüße 🎉"',
        '"{a,b}"',
        r'"\\ \" \/"',
        "null",
        '"\x7f"',
    )
]


@pytest.mark.parametrize("is_untried", [False, True])
async def test_payloads_of_a_batch_arrive_as_they_were_sent(store, is_untried):
    batch = JobBatch(a_job(), new_job_ids(len(ODD)), ODD, is_untried=is_untried)
    await store.submit(batch)
    assert [(await row(store, job.id)).payload for job in batch] == ODD


async def test_jobs_that_differ_in_nothing_but_their_ids_are_stored(store):
    jobs = [a_job(payload='{"same":1}') for _ in range(3)]
    assert (await store.submit(jobs)).new == 3
    assert {(await row(store, job.id)).payload for job in jobs} == {'{"same":1}'}


async def test_a_batch_of_long_payloads_is_stored_in_several_texts(store, monkeypatch):
    monkeypatch.setattr(values, "MOST_TEXT", 1_000)
    long = JobBatch(a_job(), new_job_ids(9), [f'{{"n":"{str(n) * 400}"}}' for n in range(9)])
    await store.submit([long[4]])
    answer = await store.submit(long)
    assert (answer.new, answer.existing) == (8, frozenset({4}))
    assert [(await row(store, job.id)).payload for job in long] == list(long.payloads)


# -- payloads -------------------------------------------------------------------------------------


def plain(number: int, text: str = "", data: Any = None, *, ratio: float = 0.5) -> None: ...
def all_positional(number: float, text: str, data: Any) -> None: ...
def without_hints(one, two): ...
def without_parameters() -> None: ...


GOOD: list[tuple[Any, list[tuple[Any, ...]]]] = [
    (plain, [(1,), (2, "b"), (3, "c", {"d": [1, None]})]),
    (all_positional, [(1.5, "ü", [1, {"a": True}]), (-2.0, 'q"\\', {})]),
    (all_positional, [(1.5, "a", 1), (7, "an int arrives as a float", 1)]),
    (all_positional, [(1.5, "x" * 300, [[[1]]]), (0.1, "null", None)]),
    (without_hints, [(1, 2), ("a", [3])]),
    (without_parameters, [(), ()]),
]


@pytest.mark.parametrize("function, calls", GOOD)
@pytest.mark.parametrize("before", [0, CHECKED_TOGETHER])
def test_many_payloads_are_those_of_single_calls(function, calls, before):
    handler: Handler[None] = Handler(function)
    calls = [calls[0]] * before + calls
    assert handler.encode_many(calls) == [handler.encode(call, {}) for call in calls]


deep: Any = []
for _ in range(150):
    deep = [deep]

BAD = [
    ("text", "a", 1),
    (1.0, 2, 3),
    (1.0, "a"),
    (1.0, "a", 1, 2),
    (math.nan, "a", 1),
    (1.0, "a", {"b": math.inf}),
    (1.0, "a", {math.nan: 1}),
    (1.0, "\0", 1),
    (1.0, "\ud800", 1),
    (1.0, "a", deep),
    (1.0, "x" * 1_100_000, 1),
    (1.0, "a", {1, 2}),
    (1.0, "a", (1, 2)),
    (1.0, "a", object()),
    (True, "a", 1),
]


@pytest.mark.parametrize("call", BAD, ids=[f"{call!r:.30}" for call in BAD])
@pytest.mark.parametrize("place", [0, CHECKED_TOGETHER + 3])
def test_the_call_at_fault_among_many_is_refused_as_if_it_were_alone(call, place):
    handler: Handler[None] = Handler(all_positional)
    with pytest.raises((InvalidArguments, InvalidPayload)) as alone:
        handler.encode(call, {})
    calls = [(1.0, "a", 1)] * MANY
    calls[place] = call
    with pytest.raises(type(alone.value)) as among_many:
        handler.encode_many(calls)
    assert str(among_many.value) == str(alone.value)


# -- enqueueing -----------------------------------------------------------------------------------


@pytest.fixture
def add(app: Pulse) -> Any:
    @app.job(priority=2)
    def add(a: int, b: int = 0) -> int:
        return a + b

    return add


def test_many_are_enqueued_with_the_options_of_their_type(app: Pulse, add: Any):
    jobs = add.using(queue="mail", headers={"x": "y"}).enqueue_many([(n, 1) for n in range(20)])
    assert [job.payload for job in jobs] == [{"a": n, "b": 1} for n in range(20)]
    assert all(job.is_new for job in jobs)
    found = app.jobs.get(jobs[7].id)
    assert (found.queue, found.priority, found.payload) == ("mail", 2, {"a": 7, "b": 1})
    assert found.row.headers == {"x": "y"}


def test_a_job_of_many_knows_what_it_was_enqueued_with(app: Pulse, add: Any):
    jobs = add.using(queue="mail").enqueue_many([(n, 1) for n in range(3)])
    stored = list(app.jobs.list(queue="mail"))
    assert [(job.topic, job.queue, job.priority, job.key) for job in jobs] == (
        [("add", "mail", 2, None)] * 3
    )
    assert {*jobs} == {*stored}
    assert (repr(jobs[1]), jobs[1].status) == (
        f"<Job {jobs[1].id} add PENDING attempts=0>",
        "PENDING",
    )
    assert jobs[2].cancel() == jobs[2].status == "CANCELLED"
    assert jobs[2].refresh().payload == {"a": 2, "b": 1}


def test_nothing_is_stored_if_the_last_of_many_is_wrong(app: Pulse, add: Any):
    with pytest.raises(InvalidArguments, match="'a'"):
        add.enqueue_many([*[(1, 2)] * 20, ("x", 2)])
    assert not list(app.jobs.list())


def test_tuples_and_bound_calls_may_be_mixed_in_a_stream(app: Pulse, add: Any):
    def calls() -> Iterator[Any]:
        yield from [(n, 0) for n in range(40)]
        yield add.using(priority=9).bind(40)
        yield from [(n,) for n in range(41, 45)]

    ids = list(add.enqueue_iter(calls(), batch=1_000))
    assert [app.jobs.get(each).payload["a"] for each in ids] == list(range(45))
    assert [app.jobs.get(each).priority for each in ids[39:42]] == [2, 9, 2]


@pytest.mark.parametrize("batch", [5, 20, 700])
def test_a_stream_takes_no_more_than_a_batch_from_its_source(app: Pulse, add: Any, batch: int):
    taken = 0

    def calls() -> Iterator[tuple[int, int]]:
        nonlocal taken
        for taken in range(1, 2_101):
            yield taken, 0

    ids = add.enqueue_iter(calls(), batch=batch)
    for number in range(3):
        first = [next(ids) for _ in range(batch)]
        assert taken == (number + 1) * batch
        assert app.jobs.get(first[-1]).payload == {"a": taken, "b": 0}


def test_a_stream_of_large_payloads_takes_few_at_a_time(app: Pulse, monkeypatch):
    taken = 0

    @app.job
    def keep(text: str) -> None: ...

    def calls() -> Iterator[tuple[str]]:
        nonlocal taken
        for taken in range(1, 101):  # noqa: B007
            yield ("x" * 1_000,)

    monkeypatch.setattr(job_maker, "FIRST_SLICE", 1)
    monkeypatch.setattr(job_maker, "SLICE_BYTES", 3_100)
    maker = job_maker.JobMaker(keep.handler, {}, None)
    found = maker.batches(calls(), Limits(1_000, 5_000))
    sizes = [(len(next(found)), taken) for _ in range(3)]
    assert [size for size, _ in sizes] == [4, 4, 4]
    assert all(seen <= 4 * (n + 1) + 3 for n, (_, seen) in enumerate(sizes))


def test_ids_of_a_stream_are_those_of_its_jobs(app: Pulse, add: Any):
    ids = list(add.enqueue_iter((n, 0) for n in range(50)))
    assert {type(each) for each in ids} == {UUID}
    assert sorted(job.id for job in app.jobs.list(limit=100)) == ids
