"""Metrics over a real worker, read by Prometheus' own parsers, on every store."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pulsed.engine import governed
from pulsed.engine.governed import Governed
from pulsed.engine.load import LoadReader
from pulsed.engine.worker.worker import Worker
from pulsed.errors import MissingDriver, StorageError
from pulsed.listen_address import ListenAddress
from pulsed.metrics.counts import MOST_LANES, MOST_QUEUES, NAMES, OTHER, ProcessCounts
from pulsed.metrics.load import SHOWN_FOR, LoadMetrics, Loads
from pulsed.metrics.monitoring import Monitoring
from pulsed.metrics.probes import Readiness
from pulsed.model.buckets import BUCKETS
from pulsed.model.control import Control, ControlScope, Numbers
from pulsed.model.events import (
    JobDeadLettered,
    ListenerChanged,
    RunStarted,
    StorageRetried,
    counts_of,
)
from pulsed.model.job import Status
from pulsed.model.rate import Rate
from pulsed.rpc.client.store import RemoteStore
from pulsed.store import tokens
from pulsed.store.base import Store
from pulsed.store.postgres.store import PostgresStore
from pulsed.store.results import Backlog, Running
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.tokens import Token
from pulsed.version import __version__
from tests.support.backends import QUICK
from tests.support.clock import Clock
from tests.support.jobs import ALICE, a_job, claim, running
from tests.support.scrapes import get, scrape
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.servers import FreshAuthenticator, ServerThread
from tests.support.workers import (
    Working,
    a_worker,
    finished,
    handler,
    in_status,
    submit,
    submit_with,
    until,
)

HERE = Monitoring(metrics=ListenAddress("127.0.0.1", 0))


@asynccontextmanager
async def monitored(
    store: Store, *handlers: Any, **options: Any
) -> AsyncIterator[tuple[Working, ListenAddress]]:
    """A running worker with an endpoint."""
    worker = a_worker(store, *handlers, **options)
    async with HERE.of_worker(worker) as served:
        it = Working(worker)
        try:
            yield it, served["metrics"]
        finally:
            if not it.task.done():
                await it.stop()


# -- a scrape of a real worker ---------------------------------------------------------------------


@pytest.mark.parametrize("is_openmetrics", [False, True], ids=["plain", "openmetrics"])
async def test_a_scrape_has_what_a_worker_did(store: Store, is_openmetrics: bool):
    async def good(n: int) -> None: ...

    async def bad() -> None:
        raise ValueError

    ids = [await submit(store, "good", n=n) for n in range(3)]
    ids.append(await submit_with(store, "bad", {"max_attempts": 1}))
    async with monitored(store, good, handler(bad, max_attempts=1)) as (_, at):
        for job_id in ids:
            await finished(store, job_id)

        async def all_is_counted() -> bool:
            found = await scrape(at)
            ended = [
                found.value("pulsed_attempts_total", queue="default", topic=topic, outcome=outcome)
                for topic, outcome in (("good", "succeeded"), ("bad", "dead_lettered"))
            ]
            return ended == [3, 1]

        await until(all_is_counted)
        seen = await scrape(at, is_openmetrics=is_openmetrics)
    good_lane, bad_lane = ({"queue": "default", "topic": topic} for topic in ("good", "bad"))
    assert seen.value("pulsed_attempts_total", **good_lane, outcome="failed") == 0
    assert seen.value("pulsed_dead_letters_total", **bad_lane) == 1
    assert seen.value("pulsed_dead_letters_total", **good_lane) == 0
    for name in ("pulsed_job_wait_seconds", "pulsed_job_run_seconds"):
        assert seen.value(f"{name}_count", **good_lane) == 3
        assert seen.value(f"{name}_bucket", **good_lane, le="+Inf") == 3
        assert len(seen.labels_of(f"{name}_bucket")) == 2 * BUCKETS
        assert (seen.value(f"{name}_sum", **good_lane) or 0) > 0
    assert seen.value("pulsed_jobs_claimed_total", queue="default") == 4
    assert (seen.value("pulsed_claim_seconds_count", queue="default") or 0) >= 1
    assert seen.value("pulsed_worker_slots") == 10
    assert seen.value("pulsed_worker_slots_used") == 0
    assert seen.value("pulsed_database_up") == 1
    assert seen.value("pulsed_draining") == 0
    (build,) = seen.labels_of("pulsed_build_info")
    assert ("version", __version__) in build


async def test_queues_are_shown_with_what_is_due_and_at_zero_when_they_are_empty(
    store: Store, clock: Clock
):
    async def work() -> None: ...

    for _ in range(3):
        await submit_with(store, "other_app", {"queue": "mail"})
    clock.advance(30)
    mail = {"queue": "mail", "topic": "other_app"}
    own = {"queue": "default", "topic": "work"}
    async with monitored(store, work) as (_, at):
        seen = await scrape(at)
        assert seen.value("pulsed_queue_due_jobs", **mail) == 3
        assert seen.value("pulsed_queue_due_capped", **mail) == 0
        assert seen.value("pulsed_queue_oldest_due_seconds", **mail) == pytest.approx(30, abs=10)
        assert seen.value("pulsed_queue_due_jobs", **own) == 0
        assert seen.value("pulsed_queue_oldest_due_seconds", **own) == 0
        assert seen.value("pulsed_queue_load_jobs", queue="mail") == 3


async def test_the_load_of_a_queue_is_what_is_due_plus_what_runs(store: Store):
    async def work() -> None: ...

    await running(store, topic="encode")
    for _ in range(2):
        await submit(store, "encode")
    async with monitored(store, handler(work, queue="mail")) as (_, at):
        seen = await scrape(at)
    lane = {"queue": "default", "topic": "encode"}
    assert seen.value("pulsed_queue_due_jobs", **lane) == 2
    assert seen.value("pulsed_queue_running_jobs", **lane) == 1
    assert seen.value("pulsed_queue_load_jobs", queue="default") == 3
    assert seen.value("pulsed_queue_load_jobs", queue="mail") == 0


async def test_paused_queues_and_full_limits_are_shown(store: Store):
    async def work() -> None: ...

    controls = store.controls
    await controls.pause(ControlScope.QUEUE, "mail")
    await controls.pause(ControlScope.TOPIC, "send")
    await controls.override(ControlScope.QUEUE, "default", Numbers(running=7))
    slow = Numbers(rate=Rate(1, per=60))
    await controls.declare(ControlScope.LIMIT, {"api": Numbers(running=1), "idle": slow})
    await store.submit([a_job(limit_key=f"api,{key}") for key in ("a", "a", "b", "b", "c")])
    await claim(store, limit=3)
    async with monitored(store, handler(work, queue="other")) as (_, at):
        seen = await scrape(at)
    shown = [seen.value("pulsed_queue_paused", queue=queue) for queue in ("mail", "default")]
    assert shown == [1, 0]
    assert seen.value("pulsed_topic_paused", topic="send") == 1
    assert seen.value("pulsed_queue_running_limit", queue="default") == 7
    names = ("paused", "running_jobs", "running_limit", "waiting_jobs", "full_keys")
    assert [seen.value(f"pulsed_limit_{name}", limit="api") for name in names] == [0, 3, 1, 2, 2]
    idle = [seen.value(f"pulsed_limit_{name}", limit="idle") for name in names]
    assert idle == [0, 0, None, 0, 0]


# -- bounds ----------------------------------------------------------------------------------------


async def test_no_more_controls_than_fit_get_labels_and_paused_ones_come_first():
    queues = [Control(scope=ControlScope.QUEUE, name=f"q{n}") for n in range(MOST_QUEUES)]
    queues.append(Control(scope=ControlScope.QUEUE, name="z", paused=True))
    loads = Loads(is_up=True, governed=Governed({each.key: each for each in queues}))
    shown = loads.controls(ControlScope.QUEUE)
    assert (shown[0].name, len(shown)) == ("z", MOST_QUEUES)


async def test_only_the_first_limits_are_counted(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(governed, "MOST_LIMITS", 2)
    declared = {name: Numbers(running=1) for name in ("a", "b", "c")}
    await store.controls.declare(ControlScope.LIMIT, declared)
    found = await governed.read_governed(store)
    assert [limit.name for limit in found.limits] == ["a", "b"]


def a_run(kind: type[Any], topic: str, **fields: Any) -> Any:
    given: dict[str, Any] = {"job_id": UUID(int=1), "queue": "default", "at": datetime.now(UTC)}
    return kind(**given, topic=topic, worker_id=ALICE, attempt=1, waited=0.5, **fields)


def test_topics_beyond_the_limit_share_one_label_and_those_of_the_app_come_first():
    counts = ProcessCounts([("default", "mine")])
    for n in range(MOST_LANES + 50):
        counts.add(counts_of([a_run(RunStarted, f"t{n}")]))
    counts.add(counts_of([a_run(RunStarted, "mine")]))
    assert len(counts.lanes) == MOST_LANES + 1
    assert sum(counts.lanes[OTHER, OTHER].wait.counts) == 51
    assert sum(counts.lanes["default", "mine"].wait.counts) == 1


def test_a_run_whose_worker_went_silent_counts_without_a_duration():
    counts = ProcessCounts()
    silent = counts_of(
        [a_run(JobDeadLettered, "t", ran=None, error_type="LeaseExpired", error="…")]
    )
    counts.add([*silent, StorageRetried("claim", "E", "…"), ListenerChanged(connected=False)])
    lane = counts.lanes["default", "t"]
    assert lane.dead_lettered == 1
    assert sum(lane.outcomes) == 1
    assert sum(lane.run.counts) == 0
    assert counts.retries["claim"] == [1]
    assert counts.listening is False


class SlowStore:
    """Counts its reads, and answers only after ``answers`` is set."""

    def __init__(self) -> None:
        self.reads = 0
        self.answers = asyncio.Event()
        self.error: StorageError | None = None
        self.topics = 1

    async def now(self) -> datetime:
        return datetime.now(UTC)

    async def backlog(self) -> list[Backlog]:
        self.reads += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        since = datetime.now(UTC) - timedelta(seconds=7)
        return [Backlog("mail", f"t{n}", 2, since) for n in range(self.topics)]

    async def running(self) -> list[Running]:
        return []


async def test_scrapes_share_a_read_and_its_answer_stands_for_some_seconds():
    clock, store = Clock(), SlowStore()
    reader = LoadReader(store, clock=lambda: clock().timestamp())  # type: ignore[arg-type]
    metrics = LoadMetrics(reader)
    first, second = (asyncio.create_task(metrics.read(within=60)) for _ in range(2))
    await until(lambda: store.reads)
    store.answers.set()
    assert (await first).lanes["mail", "t0"].due == (await second).lanes["mail", "t0"].due == 2
    await metrics.read()
    assert store.reads == 1
    clock.advance(5)
    await metrics.read()
    assert store.reads == 2


async def test_a_database_that_does_not_answer_holds_up_no_scrape():
    clock, store = Clock(), SlowStore()
    metrics = LoadMetrics(LoadReader(store, clock=lambda: clock().timestamp()))  # type: ignore[arg-type]
    for _ in range(3):
        assert await metrics.read(within=0) == Loads(is_up=False)
    await asyncio.sleep(0)
    assert store.reads == 1  # one flight at a time
    store.answers.set()
    assert (await metrics.read()).is_up


async def test_the_last_numbers_are_shown_for_a_while_and_then_no_more():
    clock, store = Clock(), SlowStore()
    store.answers.set()
    metrics = LoadMetrics(LoadReader(store, clock=lambda: clock().timestamp()))  # type: ignore[arg-type]
    assert (await metrics.read()).age == 0
    store.error = StorageError("gone")
    clock.advance(SHOWN_FOR - 1)
    stale = await metrics.read()
    assert (stale.is_up, stale.age, len(stale.lanes)) == (False, SHOWN_FOR - 1, 1)
    clock.advance(1)
    assert await metrics.read() == Loads(is_up=False)


async def test_queues_beyond_the_limit_are_added_up():
    store = SlowStore()
    store.answers.set()
    store.topics = MOST_LANES + 10
    loads = await LoadMetrics(LoadReader(store), [("a", "b")]).read()  # type: ignore[arg-type]
    assert len(loads.lanes) == MOST_LANES + 1
    assert loads.lanes["a", "b"].due == 0
    assert loads.lanes[OTHER, OTHER].due == 2 * 11
    assert loads.lanes[OTHER, OTHER].oldest == pytest.approx(7, abs=5)


def test_outcomes_have_the_names_of_their_events():
    assert len(NAMES) == len(set(NAMES)) == 8


# -- probes ----------------------------------------------------------------------------------------


async def test_a_worker_is_ready_when_it_claims_and_not_before_nor_while_it_drains(store: Store):
    started, go = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        await go.wait()

    worker: Worker = a_worker(store, work)
    job_id = await submit(store, "work")
    async with HERE.of_worker(worker) as served:
        at = served["metrics"]
        before = await get(at, "/readyz")
        assert (before.status, before.text) == (503, "state: starting\ndatabase: up\n")
        it = Working(worker)
        await started.wait()
        ready = await get(at, "/readyz")
        assert (ready.status, ready.text) == (200, "state: running\ndatabase: up\n")
        worker.stop()
        drained = await get(at, "/readyz")
        assert (drained.status, drained.text) == (503, "state: draining\ndatabase: up\n")
        assert (await get(at, "/healthz")).status == 200
        assert (await scrape(at)).value("pulsed_draining") == 1
        go.set()
        await it.ended()
    await in_status(store, job_id, Status.SUCCEEDED)


async def test_without_the_database_a_worker_is_alive_scraped_and_not_ready(
    server: ServerThread, far: RemoteStore
):
    async def work() -> None: ...

    async with monitored(far, work) as (it, at):
        await until(lambda: it.worker.state == "running")
        assert (await scrape(at)).value("pulsed_database_up") == 1
        it.worker.stop()
        await it.ended()
        server.stop()
        assert (await get(at, "/healthz")).status == 200
        down = await get(at, "/readyz")
        assert (down.status, down.text) == (503, "state: draining\ndatabase: down\n")
        assert str(server.server.port) not in down.text
        assert not (await LoadMetrics(LoadReader(far)).read()).is_up


async def test_a_frozen_database_holds_up_no_probe_and_no_scrape(
    postgres_server: ScratchPostgres,
):
    store = PostgresStore(postgres_server.url)
    await store.now()
    readiness = Readiness(store, lambda: "running", check_within=0.05)
    metrics = LoadMetrics(LoadReader(store, keep=0))
    postgres_server.freeze()
    answers = [await readiness.answer({}) for _ in range(3)]  # also while a check is cancelled
    assert {answer.status for answer in answers} == {HTTPStatus.SERVICE_UNAVAILABLE}
    assert not (await metrics.read(within=0.05)).is_up
    postgres_server.thaw()

    async def is_ready() -> bool:
        return (await readiness.answer({})).status == HTTPStatus.OK

    await until(is_ready)
    await store.aclose()


async def test_a_probe_does_not_wait_for_a_check_that_takes_long_to_cancel():
    class Silent:
        released = asyncio.Event()

        async def check_ready(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await self.released.wait()

    store: Any = Silent()
    readiness = Readiness(store, lambda: "running", check_within=0.01)
    async with asyncio.timeout(10):
        for _ in range(2):
            answer = await readiness.answer({})
            assert answer.text == b"state: running\ndatabase: down\n"
    store.released.set()


async def test_a_worker_whose_token_may_not_read_is_scraped_without_queues(
    database: Path, caplog: pytest.LogCaptureFixture
):
    store, secret = SqliteStore(database), tokens.new_secret()
    assert await tokens.add(store, Token("w", tokens.digest_of(secret), ("work",), None, None))
    with ServerThread(lambda: store, authenticator=FreshAuthenticator(store)) as server:
        far = RemoteStore(f"pulse://w:{secret}@{server.host}", QUICK)
        metrics = LoadMetrics(LoadReader(far, keep=0))
        for _ in range(2):
            assert await metrics.read(within=60) == Loads(is_up=True)
        await far.aclose()
    assert caplog.text.count("no metrics of queues") == 1


@pytest.mark.parametrize("is_connected", [True, False])
async def test_the_listener_is_shown_by_stores_that_have_one(store: Store, is_connected: bool):
    async def work() -> None: ...

    async with monitored(store, work) as (it, at):
        await until(lambda: it.worker.state == "running")
        assert (await scrape(at)).value("pulsed_listener_connected") in (None, 1)
        store.publish_listening(connected=is_connected)
        assert (await scrape(at)).value("pulsed_listener_connected") == is_connected


async def test_probes_alone_need_no_extra(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingDriver, match=r"\[metrics\]"):
        HERE.check()
    probes = Monitoring(health=HERE.metrics)
    probes.check()

    async def work() -> None: ...

    async with probes.of_worker(a_worker(store, work)) as served:
        assert (await get(served["health"], "/healthz")).status == 200
        assert (await get(served["health"], "/metrics")).status == 404
