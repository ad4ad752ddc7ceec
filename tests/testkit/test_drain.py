"""Drains of the test kit: what is due runs in the test's own process, until nothing is."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from datetime import timedelta
from typing import Any

import pytest

from pulsed import (
    Backoff,
    Context,
    JobFailed,
    Limit,
    Pulse,
    Rate,
    RetryAfter,
    SignalTimeout,
    Snooze,
    Status,
    collect_all,
    testing,
)
from pulsed.errors import CalledInEventLoop, ConfigError, InvalidOption
from pulsed.testing import DrainLimit, Sandbox
from tests.support.sandboxes import START, outcomes

# -- what runs ------------------------------------------------------------------------------------


def test_a_drain_runs_what_is_due_and_what_that_enqueues(app: Pulse, sandbox: Sandbox):
    done: list[int] = []

    @app.job
    def count_down(n: int) -> None:
        done.append(n)
        if n:
            count_down.enqueue(n - 1)

    count_down.enqueue(2)
    count_down.using(delay=1).enqueue(9)
    assert outcomes(sandbox.drain()) == ["count_down succeeded"] * 3
    assert done == [2, 1, 0]
    assert sandbox.drain() == []


async def test_a_drain_on_an_event_loop(app: Pulse, sandbox: Sandbox):
    @app.job
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    @app.job
    def plain(a: int) -> int:
        return a

    job, other = await add.aenqueue(1, 2), await plain.aenqueue(7)
    assert len(await sandbox.adrain()) == 2
    assert (await job.aresult(), await other.aresult()) == (3, 7)


async def test_the_blocking_drain_names_its_twin(app: Pulse):
    with pytest.raises(CalledInEventLoop, match="adrain"):
        testing.drain(app)


@pytest.mark.parametrize("is_blocking", [True, False])
def test_an_app_outside_of_a_sandbox_can_be_drained(url: str, is_blocking: bool):
    """Also through a server; only its time cannot be skipped."""

    async def on_a_loop(app: Pulse) -> list[testing.Ran]:
        async with app:
            return await testing.adrain(app)

    with Pulse(url) as app:
        job = app.job(add).enqueue(1, 2)
        runs = testing.drain(app) if is_blocking else asyncio.run(on_a_loop(app))
        assert outcomes(runs) == ["add succeeded"]
        assert job.result() == 3
        with pytest.raises(ConfigError, match="override"):
            testing.drain(app, skip_time=True)
        with pytest.raises(ConfigError, match="override"):
            testing.drain(app, until="1 day")


def add(a: int, b: int) -> int:
    return a + b


def test_plain_handlers_run_in_the_thread_of_the_test(app: Pulse, sandbox: Sandbox):
    threads: list[int] = []

    @app.around
    def around(ctx: Context) -> Any:
        threads.append(threading.get_ident())
        yield

    @app.job
    def plain() -> None:
        threads.append(threading.get_ident())

    plain.enqueue()
    sandbox.drain()
    assert threads == [threading.get_ident()] * 2


def test_jobs_run_one_by_one_unless_told_otherwise(app: Pulse, sandbox: Sandbox):
    running = most = 0

    @app.job
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1

    work.enqueue_many([()] * 4)
    sandbox.drain()
    assert most == 1
    work.enqueue_many([()] * 4)
    sandbox.drain(concurrency=4)
    assert most > 1


def test_only_the_given_queues_are_drained(app: Pulse, sandbox: Sandbox):
    @app.job(queue="mail")
    def send() -> None: ...

    @app.job
    def other() -> None: ...

    send.enqueue()
    other.enqueue()
    assert outcomes(sandbox.drain(queues="mail")) == ["send succeeded"]
    assert outcomes(sandbox.drain()) == ["other succeeded"]


async def test_a_drain_that_is_cancelled_hands_its_job_back(app: Pulse, sandbox: Sandbox):
    started = asyncio.Event()

    @app.job
    async def endless() -> None:
        started.set()
        await asyncio.sleep(3600)

    job = await endless.aenqueue()
    draining = asyncio.create_task(sandbox.adrain())
    await started.wait()
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    await job.arefresh()
    assert (job.status, job.attempts) == (Status.PENDING, 0)


def test_upkeep_is_done_as_by_a_worker(app: Pulse, sandbox: Sandbox):
    ran: list[int] = []

    @app.job(max_attempts=1)
    def work(n: int) -> None:
        ran.append(n)
        if ran == [1]:
            raise ValueError

    late = work.using(expires=60, delay=30).enqueue(2)
    work.enqueue(1)
    sandbox.drain(raises=False)
    sandbox.clock.advance("2 min")
    assert sandbox.drain() == []
    assert late.refresh().status is Status.CANCELLED  # it has expired
    app.jobs.bulk.retry(status="DEAD_LETTERED")
    assert outcomes(sandbox.drain()) == ["work succeeded"]
    assert ran == [1, 1]


def test_a_handler_for_another_process_runs_in_that_of_the_test(app: Pulse, sandbox: Sandbox):
    processes: list[int] = []

    @app.job(executor="process")
    def heavy() -> None:
        processes.append(os.getpid())

    heavy.enqueue()
    sandbox.drain()
    assert processes == [os.getpid()]


# -- time -----------------------------------------------------------------------------------------


def test_a_workflow_of_seven_days_is_tested_in_milliseconds(app: Pulse, sandbox: Sandbox):
    sent: list[str] = []

    @app.job
    async def trial(ctx: Context, user: str) -> str:
        await ctx.step(sent.append, f"welcome, {user}", name="welcome")
        try:
            await ctx.wait_signal("paid", timeout=timedelta(days=7))
        except SignalTimeout:
            await ctx.step(sent.append, f"goodbye, {user}", name="goodbye")
            return "gone"
        return "customer"

    ada, bob = trial.enqueue("ada"), trial.enqueue("bob")
    assert outcomes(sandbox.drain()) == ["trial waiting"] * 2
    sandbox.clock.advance("6 days")
    assert sandbox.drain() == []
    app.signal(ada.id, "paid")
    assert outcomes(sandbox.drain()) == ["trial succeeded"]
    sandbox.clock.advance(timedelta(days=1))
    assert outcomes(sandbox.drain()) == ["trial succeeded"]
    assert (ada.result(), bob.result()) == ("customer", "gone")
    assert sent == ["welcome, ada", "welcome, bob", "goodbye, bob"]


def test_time_is_skipped_to_retries_sleeps_and_delays(app: Pulse, sandbox: Sandbox):
    tries: list[float] = []

    @app.job(max_attempts=3, backoff=Backoff.fixed(60))
    def flaky() -> None:
        tries.append((sandbox.clock.now - START).total_seconds())
        if len(tries) < 3:
            raise ConnectionError

    @app.job
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(timedelta(days=400))

    flaky.using(delay=10).enqueue()
    sleeper.enqueue()
    runs = sandbox.drain(skip_time=True)
    assert outcomes(runs) == [
        "sleeper waiting",
        "flaky failed",
        "flaky failed",
        "flaky succeeded",
        "sleeper succeeded",
    ]
    assert tries[0] == 10
    assert 70 <= tries[1] < tries[2] <= 150  # backoffs have jitter
    assert sandbox.clock.now == START + timedelta(days=400)


def test_schedules_fire_until_the_given_time(app: Pulse, sandbox: Sandbox):
    occurrences: list[Any] = []

    @app.schedule("hourly", cron="0 * * * *")
    @app.job
    def tidy(ctx: Context) -> None:
        occurrences.append(ctx.occurrence)

    sandbox.drain(until="2h 30m")
    assert occurrences == [START + timedelta(hours=n) for n in (1, 2)]
    assert sandbox.clock.now == START + timedelta(hours=2, minutes=30)
    sandbox.drain(until=START + timedelta(hours=3))
    assert len(occurrences) == 3
    with pytest.raises(InvalidOption, match="does not go back"):
        sandbox.clock.move_to(START)


def test_skipping_time_ends_although_schedules_do_not(app: Pulse, sandbox: Sandbox):
    fired: list[int] = []

    @app.schedule("hourly", every=timedelta(hours=1))
    @app.job
    def tidy() -> None:
        fired.append(1)

    @app.job
    def later() -> None: ...

    app.enqueue("of_another_app", delay=timedelta(hours=9), unknown=True)
    later.using(delay=timedelta(hours=5)).enqueue()
    assert "later succeeded" in outcomes(sandbox.drain(skip_time=True))
    assert sandbox.clock.now == START + timedelta(hours=5)
    assert 1 <= len(fired) <= 5


def test_time_is_skipped_to_the_permits_of_a_rate(app: Pulse, sandbox: Sandbox):
    @app.job(limit=Limit(rate=Rate(1, per=60)))
    def ask() -> None: ...

    for _ in range(3):
        ask.enqueue()
    assert outcomes(sandbox.drain()) == ["ask succeeded"], "time stands still"
    assert outcomes(sandbox.drain(skip_time=True)) == ["ask succeeded"] * 2
    assert (sandbox.clock.now - START).total_seconds() == pytest.approx(120, abs=0.01)


def test_the_pause_between_tries_of_a_step_takes_no_time(app: Pulse, sandbox: Sandbox):
    tries: list[int] = []

    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return len(tries)

    @app.job
    async def work(ctx: Context) -> int:
        return await ctx.step(flaky, retry=5)

    job = work.enqueue()
    sandbox.drain()
    assert job.result() == 3
    assert sandbox.clock.now > START + timedelta(milliseconds=100)


def test_a_job_that_goes_on_for_ever_is_an_error(app: Pulse, sandbox: Sandbox):
    runs = 0

    @app.job
    def again() -> None:
        nonlocal runs
        runs += 1
        if runs < 25:
            raise Snooze(1) if runs % 2 else RetryAfter(1)

    @app.job
    def echo() -> None:
        echo.enqueue()

    again.using(max_attempts=100).enqueue()
    with pytest.raises(DrainLimit, match=r"after 11 runs.*again snoozed") as raised:
        sandbox.drain(skip_time=True, limit=10)
    assert "drain(until=…)" in str(raised.value)
    assert runs == 11
    assert len(sandbox.drain(skip_time=True, limit=14)) == 14  # no more than are needed
    echo.enqueue()
    with pytest.raises(DrainLimit, match=r"times echo succeeded"):
        sandbox.drain(limit=30)


# -- failures -------------------------------------------------------------------------------------


def test_the_error_of_a_handler_is_raised_in_the_test(app: Pulse, sandbox: Sandbox):
    error = ValueError("no such customer")
    ran: list[int] = []

    @app.job
    def fails() -> None:
        raise error

    @app.job
    def works() -> None:
        ran.append(1)

    job = fails.enqueue()
    works.enqueue()
    with pytest.raises(ValueError) as raised:
        sandbox.drain()
    assert raised.value is error
    assert f"fails ({job.id}) in attempt 1" in error.__notes__[0]
    assert ran == [1]  # it is raised at the end
    assert job.refresh().status is Status.RETRYING
    with pytest.raises(ValueError):
        sandbox.drain(skip_time=True)
    assert job.refresh().status is Status.DEAD_LETTERED
    fails.enqueue()
    (run,) = sandbox.drain(raises=False)
    assert (run.outcome, run.error, run.attempt) == ("failed", error, 1)


def test_a_retry_that_a_handler_asks_for_is_no_error(app: Pulse, sandbox: Sandbox):
    @app.job(max_attempts=2)
    def later() -> None:
        raise RetryAfter(5)

    later.enqueue()
    assert outcomes(sandbox.drain()) == ["later failed"]
    with pytest.raises(RetryAfter):  # now it is dead-lettered
        sandbox.drain(skip_time=True)


def test_a_failed_child_is_its_parents_to_handle(app: Pulse, sandbox: Sandbox):
    @app.job(max_attempts=1)
    def child(n: int) -> int:
        return 1 // n

    @app.job
    async def parent(ctx: Context) -> int:
        done = await ctx.fan_out([child.bind(n) for n in (0, 1)], strategy=collect_all)
        return len(done.failures)

    job = parent.enqueue()
    assert "child failed" in outcomes(sandbox.drain())
    assert job.result() == 1


@pytest.mark.parametrize("how", ["exit", "result"])
def test_a_failure_without_an_exception_of_its_own_is_raised(
    app: Pulse, sandbox: Sandbox, how: str
):
    @app.job(max_attempts=1)
    def ends() -> Any:
        if how == "exit":
            raise SystemExit(3)
        return object()

    ends.enqueue()
    with pytest.raises(JobFailed, match=r"SystemExit\(3\)" if how == "exit" else "object"):
        sandbox.drain()


def test_options_are_checked(app: Pulse, sandbox: Sandbox):
    bad: list[dict[str, Any]] = [
        {"limit": 0},
        {"crash": "now"},
        {"until": "soon"},
        {"until": -1},
        {"concurrency": 0},
    ]
    app.job(add)
    for options in bad:
        with pytest.raises(InvalidOption):
            sandbox.drain(**options)


# -- Ctrl-C ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
def test_an_interrupt_ends_the_drain(app: Pulse, sandbox: Sandbox, is_async: bool):
    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    @app.job(topic="work")
    async def on_the_loop() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        await asyncio.sleep(3600)

    app.job(topic="plain")(interrupt)
    job = app.enqueue("work" if is_async else "plain")
    with pytest.raises(KeyboardInterrupt):
        sandbox.drain(raises=False)
    expected = (Status.PENDING, 0) if is_async else (Status.RETRYING, 1)
    assert (job.refresh().status, job.attempts) == expected
