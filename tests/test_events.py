"""Events: what happens to jobs and to the engine, published by what is stored."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from pulsed import Pulse
from pulsed.engine.context import Context
from pulsed.engine.upkeep.watchdog import Watchdog
from pulsed.errors import NoRetry, Snooze, TransientStorageError
from pulsed.events import (
    Event,
    JobDeadLettered,
    JobEnqueued,
    JobEvent,
    JobRetryScheduled,
    JobsClaimed,
    LeasesExpired,
    ListenerChanged,
    RunCancelled,
    RunEvent,
    RunFinished,
    RunHandedBack,
    RunLeaseLost,
    RunSnoozed,
    RunStarted,
    RunSucceeded,
    RunSuspended,
    StorageRetried,
)
from pulsed.model.backoff import RetryPolicy
from pulsed.model.events import ENDS, KINDS, RunCount
from pulsed.model.job import Status
from pulsed.rpc.client.connection import RemoteOptions
from pulsed.rpc.client.store import RemoteStore
from pulsed.store.base import Store
from pulsed.store.event_bus import Events
from pulsed.store.postgres.listen import ChannelListener
from pulsed.store.retrying import retrying
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import Backend
from tests.support.clock import Clock
from tests.support.jobs import ALICE, POLICIES, a_job, never_away
from tests.support.workers import (
    beat,
    finished,
    handler,
    submit,
    submit_many,
    submit_with,
    until,
    working,
)


class Seen:
    """The events of a store, in their order and in their batches."""

    def __init__(self, store: Store, kinds: Collection[type[Event]] = KINDS) -> None:
        self.batches: list[Sequence[Event]] = []
        self.counts: list[RunCount] = []
        self.stop = store.events.subscribe(self.batches.append, kinds)
        store.events.subscribe(self.counts.extend, [RunCount])

    @property
    def all(self) -> list[Event]:
        return [event for batch in self.batches for event in batch]

    def of_job(self, job_id: UUID) -> list[Event]:
        return [each for each in self.all if isinstance(each, JobEvent) and each.job_id == job_id]

    async def end_of(self, job_id: UUID) -> Any:
        """Wait for the event that ends a run of the job; it comes after the database's answer."""
        await until(lambda: self.ends_of(job_id))
        return self.ends_of(job_id)[-1]

    def ends_of(self, job_id: UUID) -> list[Event]:
        return [each for each in self.of_job(job_id) if isinstance(each, RunFinished)]

    def must_be_counted(self) -> None:
        """Check that counters got the same events."""
        told: Counter[Any] = Counter()
        for each in self.counts:
            told[each.kind, each.queue, each.topic] += each.count
        assert told == Counter(
            (type(each), each.queue, each.topic) for each in self.all if isinstance(each, RunEvent)
        )


# -- the bus --------------------------------------------------------------------------------------


def an_event() -> Event:
    return LeasesExpired(count=1)


def test_a_subscriber_gets_the_kinds_it_asked_for_in_one_batch():
    bus, heard = Events(), list[Sequence[Event]]()
    bus.subscribe(heard.append, [LeasesExpired])
    bus.publish([an_event(), ListenerChanged(connected=True), an_event()])
    assert heard == [[an_event(), an_event()]]
    bus.publish([ListenerChanged(connected=True)])
    assert len(heard) == 1


def test_wanted_are_the_kinds_that_have_a_subscriber():
    bus = Events()
    assert bus.wanted == frozenset()
    first, second = (
        bus.subscribe(print, [RunStarted]),
        bus.subscribe(print, [RunStarted, RunSucceeded]),
    )
    assert bus.wanted == {RunStarted, RunSucceeded}
    second()
    assert bus.wanted == {RunStarted}
    first()
    first()
    assert bus.wanted == frozenset()


def test_an_error_of_a_subscriber_reaches_nobody_else_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
):
    bus, heard = Events(), list[Event]()

    def bad(_: Sequence[Event]) -> None:
        raise ValueError("mine")

    bus.subscribe(bad)
    bus.subscribe(heard.extend)
    for _ in range(3):
        bus.publish([an_event()])
    assert len(heard) == 3
    assert [record.name for record in caplog.records] == ["pulsed.events"]
    assert "mine" in caplog.text


# -- runs -----------------------------------------------------------------------------------------


async def test_a_run_that_succeeds_is_started_and_succeeded(store: Store, clock: Clock):
    async def work() -> None:
        await asyncio.sleep(0.002)

    job_id = await submit(store, "work")
    clock.advance(30)
    seen = Seen(store)
    async with working(store, work) as it:
        ended = await seen.end_of(job_id)
    started, *rest = seen.of_job(job_id)
    assert isinstance(started, RunStarted)
    assert rest == [ended]
    assert isinstance(ended, RunSucceeded)
    assert ended.topic == started.topic == "work"
    assert ended.queue == started.queue == "default"
    assert ended.attempt == started.attempt == 1
    assert ended.worker_id == started.worker_id == it.worker.id
    assert started.waited == pytest.approx(30, abs=10)
    assert ended.waited == pytest.approx(30, abs=10)
    assert ended.ran is not None
    assert 0.002 <= ended.ran < 10
    assert abs((started.at - clock()).total_seconds()) < 10, "the database's clock"
    assert (ended.at - started.at).total_seconds() > -1  # the clock is corrected in between


async def test_an_end_is_published_when_it_is_stored(store: Store):
    seen, stored = Seen(store), list[Status]()
    job_id = await submit(store, "work")

    async def work() -> None: ...

    async with working(store, work):
        await finished(store, job_id)
        await seen.end_of(job_id)
        stored.append((await store.get([job_id]))[job_id].status)
    assert stored == [Status.SUCCEEDED]


async def fails() -> None:
    raise ConnectionError("503")


async def gives_up() -> None:
    raise NoRetry("no such user")


async def snoozes() -> None:
    raise Snooze(7)


async def sleeps(ctx: Context) -> None:
    await ctx.sleep(3600)


async def returns_no_json() -> object:
    return object()


@pytest.mark.parametrize(
    "fn, attempts, event, fields",
    [
        (
            fails,
            2,
            JobRetryScheduled,
            {"error_type": "ConnectionError", "error": "ConnectionError: 503"},
        ),
        (fails, 1, JobDeadLettered, {"error_type": "ConnectionError", "attempt": 1}),
        (gives_up, 3, JobDeadLettered, {"error_type": "pulsed.errors.NoRetry"}),
        (returns_no_json, 3, JobDeadLettered, {"error_type": "pulsed.errors.InvalidPayload"}),
        (snoozes, 3, RunSnoozed, {"delay": 7}),
        (sleeps, 3, RunSuspended, {"wait": "SLEEP"}),
    ],
)
async def test_every_end_of_a_run_has_its_event(
    store: Store,
    fn: Callable[..., Any],
    attempts: int,
    event: type[Event],
    fields: dict[str, Any],
):
    seen = Seen(store)
    job_id = await submit_with(store, fn.__name__, {"max_attempts": attempts})
    async with working(store, fn):
        ended = await seen.end_of(job_id)
    assert type(ended) is event
    assert {name: getattr(ended, name) for name in fields} == fields
    assert seen.ends_of(job_id) == [ended]
    seen.must_be_counted()


async def test_a_run_that_times_out_failed_with_a_timeout_error(store: Store):
    seen = Seen(store)
    job_id = await submit(store, "slow")

    async def slow() -> None:
        await asyncio.sleep(3600)

    async with working(store, handler(slow, timeout=0.01)):
        ended = await seen.end_of(job_id)
    assert type(ended) is JobRetryScheduled
    assert ended.error_type == "TimeoutError"


async def test_a_run_that_is_stopped_is_cancelled(store: Store):
    seen, begun = Seen(store), asyncio.Event()
    job_id = await submit(store, "slow")

    async def slow() -> None:
        begun.set()
        await asyncio.sleep(3600)

    async with working(store, slow):
        await begun.wait()
        await store.cancel([job_id])
        assert type(await seen.end_of(job_id)) is RunCancelled
    seen.must_be_counted()


async def test_a_failed_run_of_a_job_that_was_cancelled_meanwhile_is_cancelled(store: Store):
    """The request came too late for the handler: what is stored counts, not what it raised."""
    seen, begun, go_on = Seen(store), asyncio.Event(), asyncio.Event()
    job_id = await submit(store, "slow")

    async def slow() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await go_on.wait()
            raise ValueError("not nice") from None

    async with working(store, slow):
        await begun.wait()
        await store.cancel([job_id])
        go_on.set()
        assert type(await seen.end_of(job_id)) is RunCancelled
    seen.must_be_counted()
    assert (await store.get([job_id]))[job_id].status is Status.CANCELLED


async def test_an_aborted_run_is_handed_back(store: Store):
    seen, begun = Seen(store), asyncio.Event()
    job_id = await submit(store, "slow")

    async def slow() -> None:
        begun.set()
        await asyncio.sleep(3600)

    async with working(store, slow) as it:
        await begun.wait()
        await it.stop(abort=True)
    assert type(await seen.end_of(job_id)) is RunHandedBack
    seen.must_be_counted()


async def test_a_run_that_lost_its_lease_publishes_only_that(store: Store, backend: Backend):
    seen, begun, go_on = Seen(store), asyncio.Event(), asyncio.Event()
    job_id = await submit(store, "slow")

    async def slow() -> None:
        begun.set()
        await go_on.wait()

    async with working(store, slow):
        await begun.wait()
        backend.execute("UPDATE pulse_jobs SET lease_token = lease_token + 1")
        go_on.set()
        assert type(await seen.end_of(job_id)) is RunLeaseLost
    assert [type(each) for each in seen.of_job(job_id)] == [RunStarted, RunLeaseLost]
    seen.must_be_counted()


async def test_a_heartbeat_that_finds_the_lease_lost_publishes_it_once(
    store: Store, backend: Backend
):
    seen, begun = Seen(store), asyncio.Event()
    job_id = await submit(store, "slow")

    async def slow() -> None:
        begun.set()
        await asyncio.sleep(3600)

    async with working(store, slow) as it:
        await begun.wait()
        backend.execute("UPDATE pulse_jobs SET lease_token = lease_token + 1")
        await beat(it)
        assert type(await seen.end_of(job_id)) is RunLeaseLost
    assert [type(each) for each in seen.of_job(job_id)] == [RunStarted, RunLeaseLost]
    seen.must_be_counted()


async def test_events_of_a_batch_are_published_together(store: Store):
    seen = Seen(store, {RunStarted, RunSucceeded})
    ids = await submit_many(store, "work", 8)

    async def work(n: int) -> None: ...

    async with working(store, work):
        await until(lambda: sum(isinstance(each, RunSucceeded) for each in seen.all) == len(ids))
    assert len(seen.batches) <= 2 + 2  # one claim and one report, unless something came between


async def test_what_only_counts_gets_numbers_and_no_event_is_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    """The waits and durations are there, in the buckets of the histograms."""
    ids = await submit_many(store, "work", 8)
    counts: list[RunCount] = []
    store.events.subscribe(counts.extend, [RunCount])
    monkeypatch.setattr("pulsed.engine.worker.run_events._event", None)

    async def work(n: int) -> None:
        if n == 7:
            await asyncio.sleep(0.003)

    async with working(store, work, stats=False) as it:
        await until(lambda: sum(each.count for each in counts) == 2 * len(ids))
    for kind in (RunStarted, RunSucceeded):
        own = [each for each in counts if each.kind is kind]
        assert {(each.queue, each.topic, each.worker_id) for each in own} == {
            ("default", "work", it.worker.id)
        }
        assert sum(sum(each.buckets.values()) for each in own) == len(ids)
    assert 0.003 <= sum(each.seconds for each in counts if each.kind is RunSucceeded) < 10


async def test_without_a_subscriber_nothing_is_made(store: Store, monkeypatch: pytest.MonkeyPatch):
    def never(*_: object, **__: object) -> None:
        raise AssertionError("an event without a subscriber")

    for kind in KINDS:
        monkeypatch.setattr(f"pulsed.model.events.{kind.__name__}", never)
    job_id = await submit(store, "fails")
    seen = Seen(store, [LeasesExpired])
    async with working(store, handler(fails, max_attempts=1), stats=False):
        await finished(store, job_id)
    assert not seen.all


async def test_a_subscriber_that_raises_hurts_no_run(
    store: Store, caplog: pytest.LogCaptureFixture
):
    def bad(_: Sequence[Event]) -> None:
        raise RuntimeError("mine")

    store.events.subscribe(bad)
    ids = await submit_many(store, "work", 5)

    async def work(n: int) -> None: ...

    with caplog.at_level(logging.ERROR):
        async with working(store, work):
            for job_id in ids:
                assert (await finished(store, job_id)).status is Status.SUCCEEDED
    assert len([each for each in caplog.records if each.name == "pulsed.events"]) == 1


# -- the engine -----------------------------------------------------------------------------------


async def test_every_claim_is_published(store: Store):
    seen = Seen(store, [JobsClaimed])
    await submit_many(store, "work", 3)

    async def work(n: int) -> None: ...

    async with working(store, work) as it:
        await until(lambda: len(seen.batches) >= 1)
    first = seen.all[0]
    assert isinstance(first, JobsClaimed)
    assert (first.worker_id, first.queue, first.jobs) == (it.worker.id, "default", 3)
    assert first.seconds > 0


@pytest.mark.parametrize(
    "attempts, jobs, event",
    [(1, 1, JobDeadLettered), (2, 1, JobRetryScheduled), (1, 2, RunHandedBack)],
)
async def test_a_watchdog_publishes_the_ends_of_silent_runs(
    store: Store, clock: Clock, attempts: int, jobs: int, event: type[Event]
):
    await store.submit([a_job(max_attempts=attempts) for _ in range(jobs)])
    await store.claim(ALICE, "default", POLICIES, jobs)
    seen = Seen(store)
    clock.advance(1000)
    await never_away(store)
    reaped = await Watchdog(store, tick=10).tick()
    if not reaped:
        assert store.is_remote, "the server's own watchdog"
        return
    expired, *ends = seen.all
    assert expired == LeasesExpired(count=jobs)
    assert [type(each) for each in ends] == [event] * jobs
    for end in ends:
        assert isinstance(end, RunEvent)
        assert (end.worker_id, end.queue, end.attempt) == (ALICE, "default", 1)
        assert end.waited is None
    seen.must_be_counted()


async def test_a_storage_retry_is_published():
    bus, heard, answers = Events(), list[Event](), iter([TransientStorageError("away"), None])
    bus.subscribe(heard.extend)

    async def attempt() -> None:
        if (error := next(answers)) is not None:
            raise error

    await retrying(RetryPolicy(initial=0.001), attempt, what="claim", events=bus)
    assert heard == [
        StorageRetried(operation="claim", error_type="TransientStorageError", error="away")
    ]


@pytest.mark.embedded("the database fails here")
async def test_a_store_publishes_its_retries(store: SqlStore, monkeypatch: pytest.MonkeyPatch):
    await store.now()
    seen, perform, errors = Seen(store, [StorageRetried]), store.perform, [True]

    async def fail_once(verb: Any) -> Any:
        if errors:
            errors.clear()
            raise TransientStorageError("away")
        return await perform(verb)

    monkeypatch.setattr(store, "perform", fail_once)
    await store.now()
    (event,) = seen.all
    assert isinstance(event, StorageRetried)
    assert event.error == "away"


async def test_a_server_that_does_not_answer_is_a_storage_retry():
    store = RemoteStore(
        "pulse://127.0.0.1:1", RemoteOptions(retry=RetryPolicy(max_attempts=2, initial=0.001))
    )
    seen = Seen(store, [StorageRetried])
    with pytest.raises(TransientStorageError):
        await store.now()
    await store.aclose()
    (event,) = seen.all
    assert isinstance(event, StorageRetried)
    assert event.error_type == "ServerUnreachable"


async def test_notifications_that_begin_and_end_are_published(store: Store):
    seen = Seen(store, [ListenerChanged])

    async def work() -> None: ...

    async with working(store, work) as it:
        await until(lambda: it.worker._listener is not None and it.worker._listener.healthy)
    if isinstance(store, SqliteStore):
        assert seen.all == []  # a file is always watched
    else:
        assert seen.all == [ListenerChanged(connected=True), ListenerChanged(connected=False)]


async def test_notifications_that_never_began_are_published_once():
    told, tries = list[bool](), asyncio.Queue[None]()

    async def refused() -> None:
        tries.put_nowait(None)
        raise ConnectionRefusedError

    listener = ChannelListener(
        refused,
        "channel",
        {"default"},
        lambda _: None,
        is_own=lambda _: False,
        on_change=told.append,
    )
    listening = asyncio.create_task(listener.run())
    for _ in range(2):
        await tries.get()
    listening.cancel()
    await asyncio.wait([listening])
    assert told == [False]


# -- producers ------------------------------------------------------------------------------------


async def test_a_stored_job_is_enqueued(app: Pulse):
    @app.job(queue="mail")
    async def send(n: int) -> None: ...

    seen = Seen(app.store)
    one = await send.aenqueue(1)
    many = await send.aenqueue_many([(2,), (3,)])
    by_name = await app.aenqueue("send", {"n": 4})
    assert [len(batch) for batch in seen.batches] == [1, 2, 1]
    assert [each.job_id for each in seen.all if isinstance(each, JobEnqueued)] == [
        one.id, *(job.id for job in many), by_name.id,
    ]  # fmt: skip
    assert {(each.topic, each.queue) for each in seen.all if isinstance(each, JobEnqueued)} == {
        ("send", "mail")
    }


async def test_a_job_that_existed_is_not_enqueued_again(app: Pulse):
    @app.job
    def add(a: int) -> int:
        return a

    seen = Seen(app.store)
    call = add.using(id=uuid4())
    await call.aenqueue(1)
    await call.aenqueue(1)
    assert [len(batch) for batch in seen.batches] == [1]


def test_every_kind_is_an_end_or_something_else():
    assert ENDS < KINDS
    assert all(issubclass(kind, RunFinished) for kind in ENDS)
