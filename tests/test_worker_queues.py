"""Which queues a worker takes from, and what is said of those that no worker takes from."""

import logging
from typing import Any

import pytest

from pulsed.engine.upkeep.unserved import CHECK_EVERY, REPEAT_AFTER, UnservedQueues
from pulsed.engine.worker.worker import Worker
from pulsed.store.base import Store
from pulsed.store.sql_store.store import SqlStore
from tests.support.clock import Clock
from tests.support.jobs import submitted
from tests.support.workers import a_worker, finished, handler, result, submit_with, working


async def encode(name: str) -> str:
    return f"encoded {name}"


async def plain(name: str) -> str:
    return f"did {name}"


async def test_a_worker_without_queues_takes_every_queue_that_its_handlers_declare(store: Store):
    jobs = [
        await submit_with(store, "encode", {"queue": "encode"}, name="a"),
        await submit_with(store, "encode", {}, name="b"),  # by name, as producers without the code
        await submit_with(store, "plain", {}, name="c"),
    ]
    async with working(store, handler(encode, queue="encode"), plain) as it:
        assert it.worker.queues == {"default": 1.0, "encode": 1.0}
        assert it.worker.describe().queues == ("default", "encode")
        results = [result(await finished(store, job)) for job in jobs]
    assert results == ["encoded a", "encoded b", "did c"]


def said_by(worker: Worker) -> str:
    return worker.options.summary(worker.registry)


def test_of_hundreds_of_topics_and_queues_the_start_line_names_some(live):
    many = [handler(plain, topic=f"t{n:03}", queue=f"q{n % 100:03}") for n in range(300)]
    said = said_by(a_worker(live, *many))
    assert "queues default, q000, q001, " in said
    assert "q018 and 81 more; 10 slots; topics t000, " in said
    assert said.endswith("t019 and 280 more")
    said = said_by(a_worker(live, *many, queues=["q000"]))
    assert "topics t000, t100, t200; left to workers of other queues: t001 (queue q001), " in said
    assert said.endswith("t020 (queue q020) and 277 more")


async def test_a_worker_takes_only_from_the_queues_that_it_is_given(store: Store):
    elsewhere = await submit_with(store, "encode", {"queue": "encode"}, name="a")
    here = await submit_with(store, "plain", {}, name="b")
    async with working(store, handler(encode, queue="encode"), plain, queues=["default"]):
        await finished(store, here)
    assert (await store.get([elsewhere]))[elsewhere].attempts == 0


@pytest.mark.parametrize(
    "queues, said",
    [
        (None, "queues default, encode; 10 slots; topics encode, plain"),
        (
            ["default"],
            (
                "queues default; 10 slots; topics plain; left to workers of other queues: "
                "encode (queue encode)"
            ),
        ),
    ],
)
async def test_the_start_line_names_what_is_served(store: Store, caplog, queues, said):
    caplog.set_level(logging.INFO, logger="pulsed.worker")
    async with working(store, handler(encode, queue="encode"), plain, queues=queues):
        pass
    assert any(record.getMessage().endswith(said) for record in caplog.records)


def blocking(name: str) -> str:
    return name


async def test_the_start_line_says_how_many_threads_plain_handlers_may_take(store: Store, caplog):
    """A thread may hold a connection to the user's database, so their number matters."""
    caplog.set_level(logging.INFO, logger="pulsed.worker")
    for handlers in ((plain,), (plain, blocking)):
        async with working(store, *handlers):
            pass
    without, having = [line for line in caplog.messages if "started: " in line]
    assert "threads" not in without
    assert having.endswith("; up to 10 threads for plain def handlers")


# -- queues that no live worker takes -------------------------------------------------------------


@pytest.mark.embedded("a server checks its own database")
async def test_due_queues_are_those_with_due_jobs(store: SqlStore, clock: Clock):
    await submitted(store, queue="mail", priority=-5)
    clock.advance(20)
    await submitted(store, queue="mail", priority=7)
    await submitted(store, queue="later", delay=60)
    await submitted(store)
    assert await store.due_queues(besides=["default"]) == {"mail": clock.after(-20)}
    assert set(await store.due_queues(besides=[])) == {"mail", "default"}
    clock.advance(60)
    assert await store.due_queues(besides=["default", "mail"]) == {"later": clock.now}
    assert await store.due_queues(besides=["default", "mail", "later"]) == {}


@pytest.mark.embedded("a server checks its own database")
async def test_a_queue_that_no_live_worker_takes_is_a_warning_now_and_then(
    store: SqlStore, clock: Clock, caplog
):
    await store.announce(a_worker(store, plain).describe())
    await submitted(store)
    await submitted(store, queue="encode")
    unserved = UnservedQueues(store, lambda: clock().timestamp())
    clock.advance(30)
    assert await unserved.tick() == ["encode"]
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage() == (
        "queue 'encode': jobs are due, the oldest for 30 s, and no live worker takes from it (they "
        "take from default): start one with `pulsed worker module:app -q encode`"
    )
    clock.advance(CHECK_EVERY)
    await store.announce(a_worker(store, plain).describe())
    assert await unserved.tick() == []
    clock.advance(REPEAT_AFTER.total_seconds())
    await store.announce(a_worker(store, plain).describe())
    assert await unserved.tick() == ["encode"]
    clock.advance(REPEAT_AFTER.total_seconds())
    await store.announce(a_worker(store, handler(encode, queue="encode")).describe())
    assert await unserved.tick() == []


@pytest.mark.embedded("a server checks its own database")
async def test_nothing_is_asked_between_two_checks_of_the_queues(store: SqlStore, monkeypatch):
    asked: list[str] = []
    run = store.run

    async def counted(verb: Any) -> Any:
        asked.append(verb.name)
        return await run(verb)

    monkeypatch.setattr(store, "run", counted)
    seconds = 0.0
    unserved = UnservedQueues(store, lambda: seconds)
    await unserved.tick()
    assert asked
    asked.clear()
    for seconds in (1.0, 30.0, CHECK_EVERY - 1):  # noqa: B007 - the clock reads it
        await unserved.tick()
    assert asked == []
    seconds = CHECK_EVERY
    await unserved.tick()
    assert "due_queues" in asked
