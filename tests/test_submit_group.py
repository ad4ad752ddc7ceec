"""Concurrent enqueues of one event loop share a commit, and each is answered by itself."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pulsed import CodecContext, Pulse
from pulsed.errors import (
    DuplicateKey,
    PulsedError,
    StorageBusy,
    StorageError,
    StorageFull,
    TransientStorageError,
)
from pulsed.model.events import StorageRetried
from pulsed.model.job import NewJob
from pulsed.model.job_batch import FreshJob, GatheredJobs, in_place_of
from pulsed.rpc.client.store import RemoteStore
from pulsed.store.base import Store
from pulsed.store.encoded.store import bare
from pulsed.store.lone_submits import SubmitGathered
from pulsed.store.postgres.store import PostgresStore
from pulsed.store.results import Submitted
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.submit_group import (
    MOST_IN_FLIGHT,
    WORTH_HALVING,
    SubmitGroup,
    may_be_contended,
)
from pulsed.store.verbs.script import Verb, VerbKind
from pulsed.store.verbs.submit import submit
from tests.support.jobs import a_job
from tests.support.servers import ServerThread
from tests.support.waiting import PATIENCE, turns

CALLERS = 40


@pytest.fixture
def add(app: Pulse) -> Any:
    return app.job(added)


def added(a: int) -> int:
    """Do nothing."""
    return a


@pytest.fixture
def sizes(app: Pulse, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each submit of the app's store had."""
    sizes: list[int] = []
    for name in ("submit", "_submit_unless_locked"):
        monkeypatch.setattr(app.store, name, counting(sizes, getattr(app.store, name)))
    return sizes


def counting(sizes: list[int], submit: SubmitGathered) -> SubmitGathered:
    """Note the size of each submit."""

    async def counted(jobs: Any) -> Submitted:
        sizes.append(len(jobs))
        return await submit(jobs)

    return counted


async def test_concurrent_enqueues_are_stored_together(app: Pulse, add: Any, sizes: list[int]):
    jobs = await asyncio.gather(*(add.aenqueue(n) for n in range(CALLERS)))
    assert sizes[:MOST_IN_FLIGHT] == [1] * MOST_IN_FLIGHT
    assert sum(sizes) == CALLERS
    assert len(sizes) <= 2 * MOST_IN_FLIGHT  # one more, or two if both were answered at once
    assert all(job.is_new for job in jobs)
    stored = {job.id: job.row.payload for job in await app.jobs.alist(limit=CALLERS + 1)}
    assert stored == {job.id: f'{{"a":{n}}}' for n, job in enumerate(jobs)}


async def test_a_single_caller_waits_for_no_other(add: Any, sizes: list[int]):
    for n in range(3):
        await add.aenqueue(n)
    assert sizes == [1, 1, 1]
    names = [str(task.get_coro()) for task in asyncio.all_tasks()]
    assert not any("SubmitGroup" in name for name in names)


async def test_batches_are_stored_apart(add: Any, sizes: list[int]):
    await asyncio.gather(*(add.aenqueue_many([(n,), (n,)]) for n in range(5)))
    assert sizes == [2] * 5


# -- jobs that may have to wait for others ---------------------------------------------------------


@pytest.mark.parametrize("how", ["key", "id"])
async def test_jobs_with_keys_or_ids_of_the_callers_are_stored_together(
    app: Pulse, add: Any, sizes: list[int], how: str
):
    names = [uuid4() for _ in range(CALLERS)]
    jobs = await asyncio.gather(
        *(add.using(**{how: str(name)}).aenqueue(n) for n, name in enumerate(names))
    )
    if not app.store.is_remote:  # there the server does
        assert sum(sizes) == CALLERS
        assert len(sizes) <= 2 * MOST_IN_FLIGHT + 1
    assert all(job.is_new for job in jobs)
    stored = {job.id: job.row.payload for job in await app.jobs.alist(limit=CALLERS + 1)}
    assert stored == {job.id: f'{{"a":{n}}}' for n, job in enumerate(jobs)}


async def test_a_key_that_is_held_concerns_its_own_caller_alone(app: Pulse, add: Any):
    held = await add.using(key="held").aenqueue(-1)
    keys = ["held" if n in {7, 23} else f"free-{n}" for n in range(CALLERS)]
    for behaviour in ("return", "raise", "replace"):
        add_so = add.using(on_duplicate=behaviour)
        done: list[Any] = await asyncio.gather(
            *(add_so.using(key=key).aenqueue(n) for n, key in enumerate(keys)),
            return_exceptions=True,
        )
        for n, each in enumerate(done):
            if n in {7, 23} and behaviour == "raise":
                assert isinstance(each, DuplicateKey)
                assert each.job_id == held.id
            elif n in {7, 23}:
                assert (each.id, each.is_new) == (held.id, False)
            else:
                assert each.is_new
        keys = [key if key == "held" else f"{behaviour} {key}" for key in keys]
    await held.arefresh()
    assert held.row.payload in {'{"a":7}', '{"a":23}'}  # the last one to replace it


async def test_of_callers_with_one_key_one_stores_the_job(app: Pulse, add: Any):
    jobs = await asyncio.gather(*(add.using(key="same").aenqueue(n) for n in range(CALLERS)))
    assert len({job.id for job in jobs}) == 1
    assert [job.is_new for job in jobs].count(True) == 1
    add_once = add.using(key="once", on_duplicate="raise")
    done = await asyncio.gather(*(add_once.aenqueue(n) for n in range(9)), return_exceptions=True)
    assert sum(isinstance(each, DuplicateKey) for each in done) == 8
    assert len(await app.jobs.alist(limit=CALLERS)) == 2


@pytest.mark.parametrize("how", ["key", "id"])
@pytest.mark.parametrize("callers, names", [(1, 1), (CALLERS, 1), (CALLERS, CALLERS)])
async def test_a_transaction_that_is_not_over_holds_up_its_own_keys_alone(
    postgres_url: str, admin: Any, how: str, callers: int, names: int
):
    """Neither in a batch with others, nor before they are sent, nor by keeping connections."""
    async with Pulse(postgres_url) as app:
        add: Any = app.job(added)
        held = [str(uuid4()) for _ in range(names)]
        connection = await psycopg.AsyncConnection.connect(postgres_url)
        async with connection:
            first = [await add.using(**{how: each}, conn=connection).aenqueue(0) for each in held]
            waiting = [
                asyncio.create_task(add.using(**{how: held[n % names]}).aenqueue(n))
                for n in range(callers)
            ]
            async with asyncio.timeout(PATIENCE):
                for _ in range(2):  # together with those that wait, and while these are alone
                    free = [str(uuid4()) for _ in range(CALLERS)]
                    others = (add.using(**{how: each}).aenqueue(1) for each in free)
                    plain = (add.aenqueue(2) for _ in free)
                    assert all(job.is_new for job in await asyncio.gather(*others, *plain))
                    assert len(await app.jobs.alist(limit=1)) == 1
            assert not any(task.done() for task in waiting)
        for n, job in enumerate(await asyncio.gather(*waiting)):
            assert (job.id, job.is_new) == (first[n % names].id, False)


async def test_a_server_stores_the_jobs_of_its_callers_together(
    far: RemoteStore, server: ServerThread, monkeypatch: pytest.MonkeyPatch
):
    """Each is a request of its own, as other languages send them."""
    sizes: list[int] = []
    for name in ("submit", "_submit_unless_locked"):
        monkeypatch.setattr(server.store, name, counting(sizes, getattr(server.store, name)))
    jobs = [a_job(key=f"k{n}") for n in range(CALLERS)]
    done = await asyncio.gather(*(far.submit([job]) for job in jobs))
    assert all(submitted.is_new(0) for submitted in done)
    assert sum(sizes) == CALLERS
    assert len(sizes) < CALLERS / 2


class Unchanged:
    """A codec."""

    def encode(self, text: str, _: CodecContext) -> str:
        return text

    decode = encode


def nothing(_: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize("kind", ["key", "fresh"])
async def test_only_jobs_that_may_have_to_wait_are_sent_with_little_patience(
    url: str, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """Codecs and ``around_enqueue`` change a job, and leave its id as new as it was."""
    patient, impatient = list[int](), list[int]()
    async with Pulse(url, codec=Unchanged()) as app:
        app.around_enqueue(nothing)
        store = bare(app.store)
        monkeypatch.setattr(store, "submit", counting(patient, store.submit))
        unless_locked = counting(impatient, store._submit_unless_locked)
        monkeypatch.setattr(store, "_submit_unless_locked", unless_locked)
        add: Any = app.job(added)
        keys = (str(n) if kind == "key" else None for n in range(CALLERS))
        await asyncio.gather(*(add.using(key=key).aenqueue(1) for key in keys))
    if kind == "fresh":
        assert sum(patient) == CALLERS
        assert max(patient) > 1
    elif store.is_remote:  # each is a request, and the server gathers them
        assert patient == [1] * CALLERS
    else:
        assert sum(impatient) > CALLERS / 2


@pytest.mark.parametrize("is_fresh", [True, False])
async def test_headers_and_codecs_leave_a_fresh_job_fresh(is_fresh: bool):
    jobs = [a_job()]
    changed = in_place_of(FreshJob(jobs) if is_fresh else jobs, [*jobs])
    assert may_be_contended(changed) is not is_fresh


async def test_a_request_without_an_answer_may_have_stored_its_jobs(
    far: RemoteStore, monkeypatch: pytest.MonkeyPatch
):
    """Its callers, who go alone when it is refused then, have to know."""

    async def call(*_: Any, unanswered: list[Exception]) -> Any:
        unanswered.append(TransientStorageError("The connection was lost."))
        raise StorageFull("No space.")

    jobs = GatheredJobs([a_job()])
    monkeypatch.setattr(far.connection, "call", call)
    with pytest.raises(StorageFull):
        await far.submit(jobs)
    assert jobs.may_be_stored


@pytest.mark.embedded("the connection of a store itself")
@pytest.mark.parametrize("kind", ["id", "fresh"])
async def test_what_a_refused_batch_may_have_stored_is_not_said_to_have_existed(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """The answer to its first attempt was lost, and its second one failed in another way."""
    await store.now()
    perform = store.perform
    errors = [None] * MOST_IN_FLIGHT + [
        TransientStorageError("The connection was lost after the commit."),
        StorageBusy("Locked.") if kind == "id" else StorageFull("No space."),
    ]

    async def breaking(verb: Verb[Any]) -> Any:
        error = errors.pop(0) if errors else None
        if error is None:
            return await perform(verb)
        if type(error) is TransientStorageError:
            await perform(verb)
        raise error

    monkeypatch.setattr(store, "perform", breaking)
    jobs = [a_job() for _ in range(MOST_IN_FLIGHT + 9)]
    a_list: Any = FreshJob if kind == "fresh" else list
    answers = await asyncio.gather(*(store.submit_together(a_list([job])) for job in jobs))
    assert not errors
    assert answers[:MOST_IN_FLIGHT] == [Submitted(1)] * MOST_IN_FLIGHT
    assert answers[MOST_IN_FLIGHT:] == [Submitted(1, unknown=frozenset([0]))] * 9
    assert len(await store.get([job.id for job in jobs])) == len(jobs)


@pytest.mark.parametrize(
    "jobs, kind",
    [
        ([a_job()], VerbKind.SINGLE),
        ([a_job(key="k")], VerbKind.SINGLE),
        ([a_job(tags=("t",))], VerbKind.TRANSACTION),
        ([a_job(key="k", tags=("t",))], VerbKind.TRANSACTION),
        ([a_job(key="k", on_duplicate="replace")], VerbKind.TRANSACTION),
        ([a_job(), a_job(key="k")], VerbKind.TRANSACTION),
    ],
    ids=["one", "key", "tags", "key and tags", "replace", "two"],
)
@pytest.mark.embedded("statements of the database itself")
def test_what_writes_more_than_a_row_is_a_transaction(
    store: SqlStore, jobs: list[NewJob], kind: VerbKind
):
    assert submit(store.engine, jobs).kind is kind
    if kind is VerbKind.SINGLE:  # the limit is one of a transaction
        assert submit(store.engine, jobs, lock_wait=0.1).kind is VerbKind.TRANSACTION


async def test_who_is_not_patient_waits_for_a_lock_once(postgres_url: str, admin: Any):
    """Its caller knows what to do then."""
    store = PostgresStore(postgres_url)
    retried: list[Any] = []
    store.events.subscribe(retried.append, [StorageRetried])
    async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
        await store.joined(connection).submit([a_job(key="k")])
        with pytest.raises(StorageBusy):
            await store._submit_unless_locked(GatheredJobs([a_job(key="k")]))
    assert not retried
    await store.aclose()


# -- errors ----------------------------------------------------------------------------------------


async def test_a_bad_job_fails_alone(store: Store):
    jobs = [a_job() for _ in range(CALLERS)]
    bad = {17, 23}
    for place in bad:  # the options of an app would have refused it
        jobs[place] = a_job(priority=1000)
    done = await asyncio.gather(
        *(store.submit_together([job]) for job in jobs), return_exceptions=True
    )
    for place, answer in enumerate(done):
        if place in bad:
            assert isinstance(answer, PulsedError)
            assert "priority" in str(answer)
        else:
            assert answer == Submitted(1)
    assert len(await store.get([job.id for job in jobs])) == CALLERS - len(bad)


async def test_of_two_callers_with_one_id_the_first_stores_the_job(store: Store):
    await store.now()
    job = a_job()
    before = [a_job() for _ in range(MOST_IN_FLIGHT)]
    done = await asyncio.gather(*(store.submit_together([each]) for each in [*before, job, job]))
    assert [answer.new for answer in done] == [1] * MOST_IN_FLIGHT + [1, 0]


class Line:
    """A submit that ends when it is told to, with an error for some of the jobs."""

    def __init__(self) -> None:
        self.sent: list[list[NewJob]] = []
        self.free = asyncio.Event()
        self.error: Exception | None = None

    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        self.sent.append(list(jobs))
        await self.free.wait()
        if self.error is not None:
            raise self.error
        return Submitted(len(jobs))


async def gathered(line: Line, number: int) -> list[asyncio.Task[Submitted]]:
    group = SubmitGroup(line.submit)
    tasks = [asyncio.create_task(group.submit([a_job()])) for _ in range(MOST_IN_FLIGHT + number)]
    await asyncio.sleep(0)
    assert list(map(len, line.sent)) == [1] * MOST_IN_FLIGHT
    return tasks


async def test_a_caller_that_is_cancelled_while_it_gathers_stores_nothing():
    line = Line()
    tasks = await gathered(line, 3)
    tasks[-1].cancel()
    line.free.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert list(map(len, line.sent)) == [1] * MOST_IN_FLIGHT + [2]
    assert done[:-1] == [Submitted(1)] * (MOST_IN_FLIGHT + 2)
    assert isinstance(done[-1], asyncio.CancelledError)


async def test_a_crowd_is_halved_so_that_one_half_is_served_while_the_other_is_stored():
    line = Line()
    tasks = await gathered(line, 2 * WORTH_HALVING)
    line.free.set()  # both of those in flight are answered in the same turn
    line.free = asyncio.Event()
    await turns()
    assert list(map(len, line.sent)) == [1] * MOST_IN_FLIGHT + [WORTH_HALVING] * 2
    line.free.set()
    await asyncio.gather(*tasks)


async def test_beside_a_large_submit_a_few_callers_gather_and_more_do_not():
    line = Line()
    group = SubmitGroup(line.submit)
    crowd = [asyncio.create_task(group.submit([a_job()])) for _ in range(MOST_IN_FLIGHT + 12)]
    await turns()
    line.free.set()
    line.free = asyncio.Event()  # holds the rest of the crowd
    await asyncio.wait(crowd[:MOST_IN_FLIGHT])
    await turns()
    assert list(map(len, line.sent[MOST_IN_FLIGHT:])) == [12]
    few = [asyncio.create_task(group.submit([a_job()])) for _ in range(2)]
    await turns()
    assert len(line.sent) == MOST_IN_FLIGHT + 1
    more = asyncio.create_task(group.submit([a_job()]))  # a quarter of what is in flight
    await turns()
    assert len(line.sent[-1]) == 3
    line.free.set()
    assert await asyncio.gather(*crowd, *few, more) == [Submitted(1)] * (MOST_IN_FLIGHT + 15)


async def test_a_few_that_gathered_beside_a_large_submit_are_sent_after_it():
    line = Line()
    group = SubmitGroup(line.submit)
    crowd = [asyncio.create_task(group.submit([a_job()])) for _ in range(MOST_IN_FLIGHT + 12)]
    await turns()
    line.free.set()
    line.free = asyncio.Event()
    await asyncio.wait(crowd[:MOST_IN_FLIGHT])
    await turns()
    one = asyncio.create_task(group.submit([a_job()]))
    await turns()
    line.free.set()
    assert await one == Submitted(1)
    assert list(map(len, line.sent[MOST_IN_FLIGHT:])) == [12, 1]


async def test_gathered_jobs_are_sent_even_if_the_task_that_was_to_send_them_is_cancelled():
    line = Line()
    tasks = await gathered(line, 3)
    line.free.set()
    sending: set[asyncio.Task[Any]] = set()
    while not sending:
        await asyncio.sleep(0)
        sending = {each for each in asyncio.all_tasks() if "SubmitGroup._send" in repr(each)}
        if not line.sent[MOST_IN_FLIGHT:]:  # it has not started yet
            for each in sending:
                each.cancel()
    assert await asyncio.gather(*tasks) == [Submitted(1)] * (MOST_IN_FLIGHT + 3)


async def test_a_caller_that_is_cancelled_in_flight_fails_no_other():
    line = Line()
    tasks = await gathered(line, 0)
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    line.free.set()
    assert await tasks[1] == Submitted(1)


@pytest.mark.parametrize("kind", [TransientStorageError, StorageBusy])
async def test_each_caller_gets_the_error_of_an_outage_as_its_own(kind: type[StorageError]):
    """And nothing is tried again alone: a database that is too busy would have more to do."""
    line = Line()
    line.error = kind("the database is away.")
    tasks = await gathered(line, 3)
    line.free.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert len({id(error) for error in errors[MOST_IN_FLIGHT:]}) == 3
    assert {str(error) for error in errors} == {"the database is away."}
    assert all(type(error) is kind for error in errors)
    causes = {getattr(error, "__cause__", None) for error in errors[MOST_IN_FLIGHT:]}
    assert causes == {line.error}
    assert list(map(len, line.sent)) == [1] * MOST_IN_FLIGHT + [3]


async def test_each_error_names_the_id_of_its_own_job(
    app: Pulse, add: Any, monkeypatch: pytest.MonkeyPatch
):
    async def submit(jobs: Sequence[NewJob]) -> Submitted:
        await asyncio.sleep(0)
        raise TransientStorageError(f"{len(jobs)} not stored.")

    for name in ("submit", "_submit_unless_locked"):
        monkeypatch.setattr(app.store, name, submit)
    ids = [uuid4() for _ in range(5)]
    calls = (add.using(id=each).aenqueue(1) for each in ids)
    errors = await asyncio.gather(*calls, return_exceptions=True)
    for each, error in zip(ids, errors, strict=True):
        assert str(error).count("id=") == 1
        assert str(each) in str(error)


def test_a_loop_that_ends_leaves_no_caller_waiting():
    ended: list[str] = []

    async def main() -> None:
        async def caller(group: SubmitGroup) -> None:
            try:
                await group.submit([a_job()])
            finally:
                ended.append("caller")

        group = SubmitGroup(Line().submit)
        callers = range(MOST_IN_FLIGHT + 3)
        keep.extend([asyncio.create_task(caller(group)) for _ in callers])
        await asyncio.sleep(0)

    keep: list[asyncio.Task[None]] = []
    with suppress(asyncio.CancelledError):
        asyncio.run(main())
    assert len(ended) == MOST_IN_FLIGHT + 3
