"""What a handler returns or raises, and what becomes of its job."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from pulsed.engine.context import Context
from pulsed.engine.worker import settler as settling
from pulsed.errors import NoRetry, RetryAfter, Snooze, StorageError, StorageRefused
from pulsed.model.backoff import Backoff, RetryPolicy
from pulsed.model.job import Status
from pulsed.store.sql_store.store import SqlStore
from tests.support.clock import Clock
from tests.support.workers import (
    finished,
    handler,
    in_status,
    outcome,
    result,
    submit,
    submit_with,
    until,
    working,
)


async def test_a_failed_attempt_is_tried_again_after_its_backoff(store: SqlStore, clock: Clock):
    calls: list[int] = []

    async def flaky(ctx: Context) -> int:
        calls.append(ctx.attempt)
        if len(calls) < 3:
            raise ConnectionError("not yet")
        return len(calls)

    job_id = await submit(store, "flaky")
    backoff = Backoff.linear(30, jitter=0)
    async with working(store, handler(flaky, backoff=backoff)):
        for attempt in (1, 2):
            await until(lambda n=attempt: len(calls) == n)  # type: ignore[misc]
            job = await in_status(store, job_id, Status.RETRYING)
            assert job.next_run_at == clock.after(30 * attempt)
            assert job.last_error == "ConnectionError: not yet"
            clock.advance(30 * attempt)
        assert result(await finished(store, job_id)) == 3
    failures = await store.failures(job_id)
    assert [failure.attempt for failure in failures] == [1, 2]
    assert all("in flaky" in (failure.traceback or "") for failure in failures)


def plain() -> None:
    raise ConnectionError("503")


async def at_once() -> None:
    plain()


async def later() -> None:
    await asyncio.sleep(0)
    plain()


@pytest.mark.parametrize("fails", [plain, at_once, later])
async def test_a_traceback_begins_in_the_handler(store: SqlStore, fails: Callable[[], Any]):
    job_id = await submit(store, fails.__name__)
    async with working(store, handler(fails, max_attempts=1)):
        await in_status(store, job_id, Status.DEAD_LETTERED)
    (failure,) = await store.failures(job_id)
    lines = (failure.traceback or "").splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith(f"in {fails.__name__}")
    assert lines[-1] == "ConnectionError: 503"


async def test_a_traceback_of_a_call_that_did_not_get_there_is_whole(store: SqlStore):
    async def greet(name: str) -> None: ...

    job_id = await submit(store, "greet", nobody=1)
    async with working(store, handler(greet, max_attempts=1)):
        await in_status(store, job_id, Status.DEAD_LETTERED)
    (failure,) = await store.failures(job_id)
    assert "in decode" in (failure.traceback or "")


async def test_retry_after_overrules_the_backoff(store: SqlStore, clock: Clock):
    async def limited() -> None:
        raise RetryAfter(120, "slow down")

    job_id = await submit(store, "limited")
    async with working(store, limited):
        job = await in_status(store, job_id, Status.RETRYING)
    assert (job.next_run_at, job.attempts) == (clock.after(120), 1)
    assert job.last_error == "slow down"


async def test_no_retry_parks_at_once(store: SqlStore):
    def hopeless() -> None:
        raise NoRetry("the address does not exist")

    job_id = await submit_with(store, "hopeless", {"max_attempts": 10})
    async with working(store, hopeless):
        job = await finished(store, job_id)
    assert (job.status, job.attempts) == (Status.DEAD_LETTERED, 1)
    assert job.last_error == "the address does not exist"


async def test_a_snooze_gives_the_attempt_back(store: SqlStore, clock: Clock):
    calls: list[int] = []

    async def patient(ctx: Context) -> None:
        calls.append(ctx.attempt)
        if len(calls) < 3:
            raise Snooze(60)

    job_id = await submit_with(store, "patient", {"max_attempts": 1})
    async with working(store, patient):
        for turn in (1, 2):
            await until(lambda n=turn: len(calls) == n)  # type: ignore[misc]
            job = await in_status(store, job_id, Status.PENDING)
            assert (job.attempts, job.next_run_at) == (0, clock.after(60))
            clock.advance(60)
        assert (await finished(store, job_id)).status is Status.SUCCEEDED
    assert calls == [1, 1, 1]
    assert await store.failures(job_id) == []


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Ruder(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


ERRORS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "exit": (lambda: SystemExit(3), "SystemExit: 3"),
    "interrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "cancelled": (lambda: asyncio.CancelledError("mine"), "CancelledError: mine"),
    "generator exit": (lambda: GeneratorExit("odd"), "GeneratorExit: odd"),
    "own root": (lambda: type("Odd", (BaseException,), {})("x"), "Odd: x"),
    "unprintable": (Rude, "Rude: (its message cannot be shown)"),
    "exits when printed": (Ruder, "Ruder: (its message cannot be shown)"),
    "nul": (lambda: ValueError("a\0b"), "ValueError: a\ufffdb"),
    "surrogate": (lambda: ValueError("a\udc80b"), "ValueError: a\ufffdb"),
    "reason is no text": (lambda: NoRetry(17), "17"),  # type: ignore[arg-type]
    "group": (lambda: ExceptionGroup("all", [ValueError(1)]), "all (1 sub-exception)"),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_whatever_a_handler_raises_is_a_failure_of_its_job_only(
    store: SqlStore, name: str, plain: bool, caplog: pytest.LogCaptureFixture
):
    make, said = ERRORS[name]
    caplog.set_level(logging.CRITICAL, "pulsed.job")  # xdist cannot send a surrogate in a log

    async def bad() -> None:
        raise make()

    def bad_in_thread() -> None:
        raise make()

    async def good() -> None:
        pass

    fn: Callable[..., Any] = bad_in_thread if plain else bad
    first = await submit_with(store, fn.__name__, {"max_attempts": 1})
    async with working(store, fn, good, concurrency=1):
        job = await finished(store, first)
        second = await submit(store, "good")
        assert (await finished(store, second)).status is Status.SUCCEEDED
    assert job.status is Status.DEAD_LETTERED
    assert said in (job.last_error or "")


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_stop_iteration_is_a_failure_too(store: SqlStore, plain: bool):
    async def bad() -> None:
        raise StopIteration(5)

    def bad_in_thread() -> None:
        raise StopIteration(5)

    job = await outcome(store, bad_in_thread if plain else bad)
    assert job.status is Status.DEAD_LETTERED
    assert "StopIteration" in (job.last_error or "")


async def test_a_huge_error_is_cut_and_reported(store: SqlStore):
    async def verbose() -> None:
        raise ValueError("é" * 5_000_000 + "the end")

    job = await outcome(store, verbose)
    assert job.status is Status.DEAD_LETTERED
    assert len((job.last_error or "").encode()) < 100_000
    assert (job.last_error or "").endswith("the end")
    (failure,) = await store.failures(job.id)
    assert len((failure.traceback or "").encode()) < 100_000


async def test_endless_recursion_is_a_failure(store: SqlStore):
    def deep(n: int) -> int:
        return deep(n + 1) + 1

    job = await outcome(store, deep, n=0)
    assert (job.last_error or "").startswith("RecursionError")


# -- outcomes that the database does not take -----------------------------------------------------


def failing_settle(store: SqlStore, monkeypatch: pytest.MonkeyPatch, error: StorageError) -> None:
    """Make the first try of storing an outcome fail."""
    errors = [error]
    settle = store.settle

    async def fail_once(reports: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return await settle(reports, **options)

    monkeypatch.setattr(store, "settle", fail_once)


async def test_an_outcome_survives_any_trouble_of_the_database(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    """A disk error, a missing privilege: nothing that says anything about this job."""
    monkeypatch.setattr(settling, "OUTAGE_BACKOFF", RetryPolicy(initial=0.01))

    async def answer() -> int:
        return 42

    failing_settle(store, monkeypatch, StorageError("disk I/O error"))
    job_id = await submit(store, "answer")
    async with working(store, answer):
        job = await finished(store, job_id)
    assert (job.status, job.result) == (Status.SUCCEEDED, "42")


async def test_an_outcome_that_can_never_be_stored_parks_its_job_and_says_why(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    async def answer() -> int:
        return 42

    failing_settle(store, monkeypatch, StorageRefused("no such character"))
    job_id = await submit(store, "answer")
    async with working(store, answer):
        job = await finished(store, job_id)
    assert job.status is Status.DEAD_LETTERED
    assert job.last_error == "the outcome could not be stored: no such character"
