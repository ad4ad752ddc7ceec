"""Storage retry: brief troubles of the database are ridden out, everything else passes through."""

import asyncio
import itertools
from typing import Any

import pytest

from pulsed.errors import (
    CalledInEventLoop,
    InvalidOption,
    LeaseLost,
    StorageError,
    StorageFull,
    StorageReadOnly,
    TransientStorageError,
)
from pulsed.model.backoff import RetryPolicy
from pulsed.model.ids import new_job_id
from pulsed.model.job import Lease
from pulsed.model.outcome import Report, Succeeded
from pulsed.store import retrying as module
from pulsed.store.blocking import blocking, run_blocking
from pulsed.store.retrying import QUIET, RetryLog, retrying
from pulsed.store.sql_store.store import StoreOptions
from pulsed.store.sqlite.connections import SqliteOptions
from pulsed.store.sqlite.store import SqliteStore
from tests.support.jobs import ALICE, POLICIES, a_job
from tests.support.waiting import until

LOW, MIDDLE, HIGH = (lambda: 0.0), (lambda: 0.5), (lambda: 1.0)


# -- the policy -----------------------------------------------------------------------------------


def test_the_defaults():
    policy = RetryPolicy()
    assert (policy.max_attempts, policy.initial, policy.max) == (5, 0.1, 5.0)
    assert (policy.multiplier, policy.jitter) == (2.0, 0.1)


def test_dequeue_is_more_patient_by_default():
    policy = RetryPolicy.dequeue()
    assert (policy.max_attempts, policy.initial, policy.max) == (3, 0.5, 10.0)
    assert (policy.multiplier, policy.jitter) == (2.0, 0.2)


def test_each_wait_is_a_multiple_of_the_one_before_up_to_the_cap():
    waits = [RetryPolicy().delay(n, MIDDLE) for n in range(1, 9)]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_jitter_is_a_fraction_of_the_wait_in_both_directions():
    policy = RetryPolicy(initial=1, jitter=0.1)
    assert policy.delay(1, LOW) == pytest.approx(0.9)
    assert policy.delay(1, HIGH) == pytest.approx(1.1)
    waits = [policy.delay(1) for _ in range(200)]
    assert all(0.9 <= wait <= 1.1 for wait in waits)
    assert max(waits) - min(waits) > 0.1


def test_without_jitter_the_wait_is_exact():
    assert {RetryPolicy(initial=1, jitter=0).delay(1) for _ in range(20)} == {1.0}


def test_a_thousand_failures_do_not_overflow():
    policy = RetryPolicy(max_attempts=1_000, multiplier=100)
    assert policy.delay(1_000, MIDDLE) == 5.0


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"initial": -1},
        {"max": float("nan")},
        {"max": float("inf")},
        {"multiplier": 0.5},
        {"jitter": 1.5},
        {"jitter": -0.1},
    ],
    ids=str,
)
def test_a_policy_out_of_range_is_refused(options: dict[str, Any]):
    with pytest.raises(InvalidOption):
        RetryPolicy(**options)


# -- the loop -------------------------------------------------------------------------------------


class Trouble:
    """An operation that fails so many times, or for ever."""

    def __init__(self, *errors: BaseException, for_ever: bool = False) -> None:
        self.errors = itertools.cycle(errors) if for_ever else iter(errors)
        self.tries = 0

    async def __call__(self) -> str:
        self.tries += 1
        for error in self.errors:
            raise error
        return "done"


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """The waits of the loop, which then take no time."""
    waited: list[float] = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(module, "pause", pause)
    return waited


BLINK = TransientStorageError("the connection was reset")


async def test_a_brief_trouble_is_ridden_out(waits):
    trouble = Trouble(BLINK, BLINK)
    assert await retrying(RetryPolicy(jitter=0), trouble, what="settle") == "done"
    assert trouble.tries == 3
    assert waits == pytest.approx([0.1, 0.2])


async def test_the_first_try_counts_and_the_last_error_is_raised(waits):
    trouble = Trouble(BLINK, for_ever=True)
    with pytest.raises(TransientStorageError, match="reset"):
        await retrying(RetryPolicy(max_attempts=5, jitter=0), trouble, what="settle")
    assert trouble.tries == 5
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8])


async def test_disabled_means_once(waits):
    trouble = Trouble(BLINK)
    with pytest.raises(TransientStorageError):
        await retrying(RetryPolicy.disabled(), trouble, what="settle")
    assert (trouble.tries, waits) == (1, [])


@pytest.mark.parametrize(
    "error",
    [
        StorageError("UNIQUE constraint failed"),
        StorageFull("no room"),
        StorageReadOnly("read only"),
        LeaseLost("lost", job_id=new_job_id()),
        ValueError("data"),
        TimeoutError(),
        asyncio.CancelledError(),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_only_transient_errors_are_tried_again(waits, error):
    trouble = Trouble(error)
    with pytest.raises(type(error)):
        await retrying(RetryPolicy(), trouble, what="settle")
    assert (trouble.tries, waits) == (1, [])


async def test_a_cancelled_caller_leaves_the_loop_while_it_waits():
    trouble = Trouble(BLINK, for_ever=True)
    policy = RetryPolicy(initial=3_600, max=3_600)
    task = asyncio.create_task(retrying(policy, trouble, what="settle"))
    await until(lambda: trouble.tries)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert trouble.tries == 1


async def test_a_deadline_ends_the_loop_while_it_waits():
    trouble = Trouble(BLINK, for_ever=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await retrying(RetryPolicy(initial=3_600, max=3_600), trouble, what="settle")
    assert trouble.tries == 1


async def test_it_gives_up_before_its_budget_is_spent(waits, monkeypatch):
    now = 1_000.0
    monkeypatch.setattr("pulsed.store.retrying.time.monotonic", lambda: now + sum(waits))
    trouble = Trouble(BLINK, for_ever=True)
    policy = RetryPolicy(max_attempts=100, initial=1, max=100, jitter=0)
    with pytest.raises(TransientStorageError):
        await retrying(policy, trouble, what="settle", within=10.0)
    assert waits == [1, 2, 4]  # the next, 8 s, would end after the tenth second
    assert trouble.tries == 4


async def test_a_budget_of_nothing_means_once(waits):
    trouble = Trouble(BLINK, for_ever=True)
    with pytest.raises(TransientStorageError):
        await retrying(RetryPolicy(), trouble, what="settle", within=0)
    assert (trouble.tries, waits) == (1, [])


class TestComplaints:
    def test_a_retry_is_logged_with_its_reason(self, caplog):
        RetryLog().add("settle", BLINK, 0.5)
        RetryLog().add("settle", TransientStorageError("settle failed on the moon: dust."), 0.5)
        assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
            ("WARNING", "settle failed (the connection was reset); trying again in 0.50 s"),
            ("WARNING", "settle failed on the moon: dust; trying again in 0.50 s"),
        ]

    def test_an_outage_is_one_line_now_and_then(self, caplog):
        now = 0.0
        retry_log = RetryLog(lambda: now)
        for now in range(int(3 * QUIET)):  # noqa: B007 - what the clock says
            retry_log.add("beat", BLINK, 0.5)
        told = [each.getMessage() for each in caplog.records]
        assert len(told) == 3
        assert "more retries" not in told[0]
        assert all("(9 more retries since the last time)" in line for line in told[1:])

    async def test_retries_of_whatever_kind_are_logged(self, waits, caplog, monkeypatch):
        monkeypatch.setattr("pulsed.store.retrying.retry_log", RetryLog())
        await retrying(RetryPolicy(), Trouble(BLINK), what="settle")
        (record,) = caplog.records
        assert "settle failed (the connection was reset); trying again in 0." in record.getMessage()


def test_a_blocking_caller_waits_in_its_own_thread():
    trouble = Trouble(BLINK, BLINK)
    policy = RetryPolicy(initial=0.001)
    assert run_blocking(retrying(policy, trouble, what="settle")) == "done"
    assert trouble.tries == 3


# -- in a store -----------------------------------------------------------------------------------


class Troubled(SqliteStore):
    """A store whose database is down."""

    tries = 0

    async def perform(self, verb: Any) -> Any:
        if verb.name in {"schema_check", "migrate"}:
            return await super().perform(verb)
        self.tries += 1
        raise BLINK


async def tried(verb_of, waits, **options: Any) -> tuple[int, list[float]]:
    store = Troubled(None, SqliteOptions(**options))
    with pytest.raises(TransientStorageError):
        await verb_of(store)
    await store.aclose()
    return store.tries, waits


async def test_claims_have_a_policy_of_their_own(waits):
    assert StoreOptions().dequeue_retry == RetryPolicy.dequeue()
    tries, waited = await tried(
        lambda store: store.claim(ALICE, "default", POLICIES, 1),
        waits,
        dequeue_retry=RetryPolicy(max_attempts=3, initial=7, max=100, jitter=0),
        retry=RetryPolicy(max_attempts=9),
    )
    assert (tries, waited) == (3, [7, 14])


async def test_everything_but_claims_follows_the_storage_policy(waits):
    assert StoreOptions().retry == RetryPolicy()
    tries, waited = await tried(
        lambda store: store.submit([a_job()]),
        waits,
        retry=RetryPolicy(max_attempts=4, initial=1, max=3, jitter=0),
        dequeue_retry=RetryPolicy(max_attempts=9),
    )
    assert (tries, waited) == (4, [1, 2, 3])


async def test_a_settle_stays_within_the_time_that_its_lease_has_left(waits, monkeypatch):
    monkeypatch.setattr("pulsed.store.retrying.time.monotonic", lambda: sum(waits))
    report = Report(Lease(new_job_id(), 1, ALICE), Succeeded())
    tries, waited = await tried(
        lambda store: store.settle([report], within=5),
        waits,
        retry=RetryPolicy(max_attempts=50, initial=1, max=1, jitter=0),
    )
    assert (tries, waited) == (5, [1, 1, 1, 1])


async def test_a_disabled_store_tries_once(waits):
    off = RetryPolicy.disabled()
    for verb_of in (
        lambda store: store.submit([a_job()]),
        lambda store: store.claim(ALICE, "default", POLICIES, 1),
    ):
        waits.clear()
        assert await tried(verb_of, waits, retry=off, dequeue_retry=off) == (1, [])


# -- blocking twins -------------------------------------------------------------------------------


class Twins:
    async def aanswer(self, value: int) -> int:
        return value + 1

    answer = blocking(aanswer)


def test_a_blocking_twin_needs_no_loop():
    assert Twins().answer(1) == 2
    assert Twins.answer.__name__ == "answer"


async def test_a_blocking_twin_refuses_to_freeze_a_loop_and_names_the_other():
    with pytest.raises(CalledInEventLoop, match=r"await aanswer"):
        Twins().answer(1)
