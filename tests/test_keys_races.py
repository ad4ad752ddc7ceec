"""Keys under concurrency: many sessions, one holder; and what each guard in the SQL is for."""

import asyncio
import random
from collections import Counter
from contextlib import closing
from typing import Any
from uuid import UUID

import psycopg
import pytest
from msgspec.structs import replace
from psycopg.errors import InvalidSavepointSpecification

from pulsed.errors import DuplicateKey, StorageError
from pulsed.model.job import JobFilter, Status
from pulsed.model.outcome import Failed, Report, Succeeded
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.store.results import Submitted
from pulsed.store.sql.statement import Statement, one_column
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.verbs.keys import _replacements
from pulsed.store.verbs.script import Verb, VerbKind
from tests.support.backends import Backend, PostgresBackend, close_blocking
from tests.support.guards import check
from tests.support.interleaving import Act, Explorer, exploring
from tests.support.jobs import (
    POLICIES,
    a_job,
    a_worker_id,
    one_attempt,
    row,
    running,
    settle,
    submitted,
)
from tests.support.schedules import after_statements

SESSIONS = 8
KEYS = [f"k{n}" for n in range(7)]


@pytest.fixture
async def stores(backend: Backend) -> Any:
    """As many processes on one database."""
    stores = [backend.open(own_clock=False) for _ in range(SESSIONS)]
    await stores[0].now()
    yield stores
    for store in stores:
        await store.aclose()


async def holders(store: Store) -> Counter[str | None]:
    page = await store.list_jobs(JobFilter(holds_key=True), limit=1_000)
    return Counter(job.key for job in page)


async def produce(store: Store, seed: int, **options: Any) -> list[UUID]:
    """Submit batches of jobs with random keys; returns what was stored."""
    chance = random.Random(seed)
    stored = []
    for _ in range(12):
        jobs = [a_job(key=chance.choice(KEYS), **options) for _ in range(chance.randint(1, 8))]
        try:
            answer = await store.submit(jobs)
        except DuplicateKey:
            continue
        stored += [job.id for place, job in enumerate(jobs) if answer.is_new(place)]
        assert not answer.unknown
    return stored


async def consume(store: Store, until: asyncio.Event) -> None:
    """Claim and end jobs: an independent witness that no key runs twice at once."""
    worker = a_worker_id()
    while True:
        held = await store.claim(worker, "default", POLICIES, 3)
        if not held:
            if until.is_set():
                return
            await asyncio.sleep(0)
            continue
        outcomes = [Succeeded() if random.random() < 0.6 else Failed("no") for _ in held]
        reports = map(Report.of, held, outcomes)
        assert len(await store.settle(list(reports))) == len(held)


@pytest.mark.embedded("sessions of the database itself")
@pytest.mark.parametrize(
    "options",
    [
        {"key_for": "end"},
        {"key_for": "end", "on_duplicate": "raise"},
        {"key_for": "start", "on_duplicate": "replace"},
        {"key_for": "0.02"},
    ],
    ids=["return", "raise", "replace", "period"],
)
async def test_a_key_is_never_held_twice_and_never_lost(stores, options):
    done = asyncio.Event()
    workers = [asyncio.create_task(consume(store, done)) for store in stores[:3]]
    made = await asyncio.gather(
        *(produce(store, n, **one_attempt(**options)) for n, store in enumerate(stores))
    )
    assert max((await holders(stores[0])).values(), default=0) <= 1
    done.set()
    await asyncio.gather(*workers)
    ids = [job_id for some in made for job_id in some]
    rows = await stores[0].get(ids)
    assert rows.keys() == set(ids), "a stored job is gone"
    ended = {Status.SUCCEEDED, Status.DEAD_LETTERED}
    assert {job.status for job in rows.values()} <= ended
    if "." not in options["key_for"]:  # a period goes on after the end
        assert not await holders(stores[0])
        answers = await stores[0].submit([a_job(key=key, **options) for key in KEYS])
        assert answers.new == len(KEYS), "a key is lost for ever"


@pytest.mark.embedded("sessions of the database itself")
async def test_replays_and_submits_of_one_key_leave_one_holder(stores):
    dead = []
    for _ in range(6):
        run = await running(stores[0], key="k", **one_attempt())
        await settle(stores[0], run, Failed("no"))
        dead.append(run.job_id)
    tried = await asyncio.gather(
        *(store.replay([job_id]) for store, job_id in zip(stores, dead, strict=False)),
        *(store.submit([a_job(key="k")]) for store in stores),
        return_exceptions=True,
    )
    assert [each for each in tried if isinstance(each, BaseException)] == []
    assert await holders(stores[0]) == Counter(k=1)


class FreedMeanwhile:
    """Two batches that share keys, of which one is freed while the first is being stored."""

    def __init__(self, explorer: Explorer, *, same_id: bool) -> None:
        self.explorer = explorer
        self.same_id = same_id
        """Whether two jobs of the first batch have one id."""

    def prepare(self) -> list[Act]:
        calm = self.explorer.calm
        holder = run_blocking(running(calm, key="a"))
        self.mine = [a_job(key="a"), a_job(key="b"), a_job(key="b"), a_job(key="c")]
        if self.same_id:
            self.mine[3] = replace(self.mine[3], id=self.mine[1].id)
        self.others = [a_job(key="b"), a_job(key="a")]
        self.answers = dict[str, Submitted]()

        async def first(store: SqlStore) -> None:
            self.answers["mine"] = await store.submit(self.mine)

        async def second(store: SqlStore) -> None:
            await settle(store, holder, Succeeded())
            self.answers["others"] = await store.submit(self.others)

        return [first, second]

    def check(self) -> None:
        for actor in self.explorer.actors:
            actor.result()
        assert [actor.deadlocks for actor in self.explorer.actors] == [0, 0]
        for jobs, name in ((self.mine, "mine"), (self.others, "others")):
            answer = self.answers[name]
            given = [answer.holders.get(place, job.id) for place, job in enumerate(jobs)]
            rows = run_blocking(self.explorer.calm.get(given))
            for place, job in enumerate(jobs):
                its = rows.get(given[place])
                assert its is not None, "the answer names a job that was taken back"
                assert its.key == job.key or self.same_id


@pytest.mark.parametrize("same_id", [False, True])
def test_batches_whose_keys_are_freed_meanwhile_do_not_deadlock(postgres_url, clock, same_id):
    """In any order of their statements: what is inserted late is inserted in the order of keys."""
    with exploring(PostgresBackend(postgres_url, clock)) as explorer:
        race = FreedMeanwhile(explorer, same_id=same_id)
        for _ in explorer.every_order(race.prepare, switches=3):
            race.check()
        assert explorer.orders > 30


def test_the_only_key_of_a_batch_may_be_freed_meanwhile(postgres_url, admin, clock):
    """Nothing is out of order then, and there is no savepoint to return to."""
    backend = PostgresBackend(postgres_url, clock)
    store, other = backend.open(), backend.open()
    holder = run_blocking(running(other, key="a"))

    def free() -> None:
        assert run_blocking(settle(other, holder, Succeeded()))

    after_statements(store, "submit", 1, free)
    answer = run_blocking(store.submit([a_job(), a_job(key="a")]))
    assert answer.new == 2
    for each in (store, other):
        close_blocking(each)


class ChangedMeanwhile:
    """Two batches of two keys: both change the holder of one, and the other is freed meanwhile."""

    def __init__(self, explorer: Explorer, **options: Any) -> None:
        self.explorer = explorer
        self.options = options
        """Of the jobs that change their key's holder."""

    def prepare(self) -> list[Act]:
        calm = self.explorer.calm
        running_now = run_blocking(running(calm, key="c"))
        run_blocking(submitted(calm, key="a", **self.options))
        self.explorer.backend.clock.advance(60)
        self.answers = dict[int, Submitted]()
        self.batches = [[a_job(key="a", **self.options), a_job(key="c")] for _ in range(2)]

        async def first(store: SqlStore) -> None:
            self.answers[0] = await store.submit(self.batches[0])

        async def second(store: SqlStore) -> None:
            await settle(store, running_now, Succeeded())
            self.answers[1] = await store.submit(self.batches[1])

        return [first, second]

    def check(self) -> None:
        for actor in self.explorer.actors:
            actor.result()
        assert [actor.deadlocks for actor in self.explorer.actors] == [0, 0]
        held = run_blocking(holders(self.explorer.calm))
        assert held["a"] == 1
        assert held["c"] <= 1


@pytest.mark.parametrize(
    "options",
    [{"key_for": "10", "delay": 3600}, {"on_duplicate": "replace", "key_for": "start"}],
    ids=["lapsed", "replace"],
)
def test_batches_that_change_a_holder_beside_another_key_do_not_deadlock(
    postgres_url, clock, options
):
    with exploring(PostgresBackend(postgres_url, clock)) as explorer:
        race = ChangedMeanwhile(explorer, **options)
        for _ in explorer.every_order(race.prepare, switches=3):
            race.check()
        assert explorer.orders > 15


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("is_refused", [False, True])
async def test_a_batch_leaves_no_savepoint_in_the_callers_transaction(
    postgres_url, admin, clock, jobs, is_refused
):
    store = PostgresBackend(postgres_url, clock).open()
    held = await submitted(store, key="held")
    with psycopg.connect(postgres_url) as connection:
        batch = [a_job(key=f"k{n}") for n in range(jobs)]
        if is_refused:
            batch.append(a_job(key="held", on_duplicate="raise"))
        submit = asyncio.to_thread(run_blocking, store.joined(connection).submit(batch))
        if is_refused:
            with pytest.raises(DuplicateKey):
                await submit
        else:
            await submit
        connection.execute("SAVEPOINT own")
        with pytest.raises(InvalidSavepointSpecification):
            connection.execute("ROLLBACK TO SAVEPOINT pulsed_batch")
        connection.execute("ROLLBACK TO SAVEPOINT own")
    stored = {job.id for job in await store.list_jobs(JobFilter())}
    assert stored == {held} | (set() if is_refused else {job.id for job in batch})
    await store.aclose()


@pytest.mark.embedded("in the caller's own transaction")
async def test_a_refused_batch_changes_no_holder(backend, store, clock):
    """One of its jobs is refused only when others have been stored."""
    replaced = await submitted(store, key="a", key_for="start", payload='"before"')
    await submitted(store, key="b", key_for="10", delay=3600)
    clock.advance(60)
    batch = [
        a_job(key="a", key_for="start", on_duplicate="replace", payload='"after"'),
        a_job(key="b", key_for="10"),
        a_job(key="b", key_for="10", on_duplicate="raise"),
    ]
    with closing(backend.connect()) as connection:
        connection.execute("BEGIN")
        with pytest.raises(DuplicateKey):
            await asyncio.to_thread(run_blocking, store.joined(connection).submit(batch))
        connection.execute("COMMIT")
    assert (await row(store, replaced)).payload == '"before"'
    assert len(await store.list_jobs(JobFilter())) == 2


# -- guards, by removal ---------------------------------------------------------------------------

guards = pytest.mark.embedded("takes guards out of the statements")


async def replaces_only_what_has_not_started(store: SqlStore, _: Backend) -> None:
    run = await running(store, key="k")
    job = a_job(key="k", key_for="end", on_duplicate="replace", payload='{"n": 2}')
    verb = store.engine.keys.replace

    def script() -> Any:
        return (yield Statement(verb, {}, _replacements([(run.job_id, job)])))

    await store.run(Verb("replace", VerbKind.TRANSACTION, script))
    assert (await row(store, run.job_id)).payload == "{}"


@guards
@pytest.mark.parametrize("guard", ["AND j.status = 'PENDING' AND j.started_at IS NULL"])
async def test_a_started_job_is_replaced_without_the_guard(backend, guard):
    await check(backend, replaces_only_what_has_not_started, "replace", guard)


async def releases_lapsed_keys_only(store: SqlStore, _: Backend) -> None:
    first = await submitted(store, key="k", key_for="3600")

    def script() -> Any:
        return (yield Statement(store.engine.keys.release_lapsed, {}, one_column([first])))

    await store.run(Verb("release", VerbKind.TRANSACTION, script))
    assert (await row(store, first)).key_held


@guards
async def test_a_key_is_released_early_without_the_guard(backend):
    scenario, guard = releases_lapsed_keys_only, "AND j.key_until <= "
    await check(backend, scenario, "release_lapsed", guard, instead="AND j.key_until <> ")


@guards
async def test_a_replay_without_a_look_at_the_holder_is_refused_by_the_index(backend):
    """The index is the last line of defence: no two holders, whatever a statement forgets."""

    async def scenario(store: SqlStore, _: Backend) -> None:
        run = await running(store, key="k", **one_attempt())
        await settle(store, run, Failed("no"))
        await submitted(store, key="k", delay=60)
        assert (await store.replay([run.job_id]))[run.job_id][0] is False

    await check(
        backend, scenario, "replayed_keys", "AND j.key_held IS NULL", instead="AND 1 = 0",
        fails=(StorageError,),
    )  # fmt: skip


@guards
@pytest.mark.parametrize(
    "guard", ["key_held = CASE WHEN key_for = 'start' THEN NULL ELSE key_held END,"]
)
async def test_a_key_until_the_start_is_released_by_the_claim(backend, guard):
    async def scenario(store: SqlStore, _: Backend) -> None:
        run = await running(store, key="k", key_for="start")
        assert not (await row(store, run.job_id)).key_held

    await check(backend, scenario, "claim", guard)
