"""How a worker's runs share tasks and threads without affecting one another."""

import asyncio
import threading
from collections.abc import Sequence
from contextvars import ContextVar, copy_context
from typing import Any
from uuid import UUID

import pytest

from pulsed.engine.context import Context, current_context
from pulsed.engine.worker.run import Run, StopReason, call
from pulsed.engine.worker.runs import Runner
from pulsed.errors import RunEnded, Snooze
from pulsed.handler import Handler
from pulsed.model.job import Assignment, Lease
from pulsed.model.outcome import Cancelled, Failed, Outcome, Released, Succeeded
from tests.support.clock import Clock
from tests.support.jobs import ALICE
from tests.support.workers import until

NOW = Clock().now
SLOTS = 400
TURN = 200


class Running:
    """A runner, and how the runs ended that it was given."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[Run, Outcome | None]] = []
        self.runner = Runner(
            SLOTS, on_ended=self.note, on_free_slot=lambda: None, on_stuck=lambda: None
        )

    def note(self, runs: Sequence[Run]) -> None:
        self.outcomes += [(run, run.outcome) for run in runs]

    async def ends(self, *runs: Run) -> list[Outcome | None]:
        self.runner.start(runs)
        async with asyncio.timeout(30):
            await self.runner.until_idle()
        outcomes = dict(self.outcomes)
        return [outcomes[run] for run in runs]


@pytest.fixture
async def running():
    it = Running()
    yield it
    await it.runner.close()


def a_run(fn: Any, number: int = 1, *, timeout: float | None = None) -> Run:
    handler: Handler[Any] = Handler(fn, topic="t")
    lease = Lease(UUID(int=number), number, ALICE)
    job = Assignment(lease, "t", "default", 0, "{}", 1, 3, 30, timeout, {}, NOW, NOW)
    return Run(job, handler, lambda job: Context(job, None))  # type: ignore[arg-type]


def some_runs(fn: Any, count: int) -> list[Run]:
    return [a_run(fn, number) for number in range(count)]


async def test_handlers_that_never_wait_share_a_task(running):
    tasks = []

    async def quick() -> None:
        tasks.append(asyncio.current_task())

    await running.ends(*some_runs(quick, SLOTS))
    assert len(tasks) == SLOTS
    assert len(set(tasks)) < SLOTS / 4


async def test_a_handler_that_waits_has_its_task_to_itself(running):
    tasks, proceed = [], asyncio.Event()

    async def patient() -> None:
        before = asyncio.current_task()
        await proceed.wait()
        assert asyncio.current_task() is before
        tasks.append(before)

    running.runner.start(runs := some_runs(patient, SLOTS))
    await until(lambda: all(run.task for run in runs))
    proceed.set()
    await running.runner.until_idle()
    assert len(set(tasks)) == SLOTS


async def test_others_get_their_turn_between_handlers_that_never_wait(running):
    order: list[str] = []

    async def quick() -> None:
        order.append("run")
        if len(order) == 1:
            asyncio.get_running_loop().call_soon(order.append, "other")

    await running.ends(*some_runs(quick, SLOTS))
    assert order.index("other") <= TURN


async def test_context_variables_are_a_runs_own_before_and_after_its_first_wait(running):
    colour: ContextVar[str] = ContextVar("colour", default="none")
    seen: list[str] = []

    async def child() -> None:
        seen.append(colour.get())

    async def waits() -> None:
        colour.set("red")
        await asyncio.sleep(0)
        seen.append(colour.get())
        await asyncio.create_task(child())
        colour.set("blue")
        await asyncio.sleep(0)
        seen.append(colour.get())

    async def looks() -> None:
        seen.append(f"fresh {colour.get()}")
        colour.set("green")

    await running.ends(a_run(looks, 1), a_run(looks, 2), a_run(waits, 3), a_run(looks, 4))
    assert sorted(seen) == ["blue", "fresh none", "fresh none", "fresh none", "red", "red"]


async def test_a_timeout_inside_a_handler_is_about_that_handler(running):
    async def hasty() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "late"
        return "never"

    async def calm() -> str:
        await asyncio.sleep(0.02)
        return "calm"

    ended = await running.ends(a_run(hasty, 1), a_run(calm, 2))
    assert ended == [Succeeded('"late"'), Succeeded('"calm"')]


async def test_a_handler_that_cancels_its_own_task_hurts_no_other(running):
    async def self_destructive() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def innocent() -> str:
        await asyncio.sleep(0)
        return "fine"

    first, *rest = await running.ends(
        a_run(self_destructive, 1), *(a_run(innocent, number) for number in range(2, 6))
    )
    assert first == Succeeded("null")
    assert rest == [Succeeded('"fine"')] * 4


async def test_a_run_that_is_stopped_while_it_waits_takes_nobody_with_it(running):
    proceed = asyncio.Event()

    async def patient() -> str:
        await proceed.wait()
        return "done"

    runs = some_runs(patient, 3)
    running.runner.start(runs)
    await until(lambda: all(run.task for run in runs))
    runs[1].tell_to_stop(StopReason.CANCELLED)
    await asyncio.sleep(0)
    proceed.set()
    await running.runner.until_idle()
    ended = dict(running.outcomes)
    assert [ended[run] for run in runs] == [Succeeded('"done"'), Cancelled(), Succeeded('"done"')]


async def test_a_timeout_counts_from_the_begin_also_of_a_handler_that_waits_late(running):
    async def blocks_then_waits() -> None:
        pause = threading.Event()
        pause.wait(0.05)
        await asyncio.Event().wait()

    (ended,) = await running.ends(a_run(blocks_then_waits, timeout=0.05))
    assert ended == Failed("timed out after 0.05 s")


@pytest.mark.parametrize("then", ["return", "snooze"])
async def test_a_handler_that_catches_its_timeout_has_failed_all_the_same(running, then):
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if then == "snooze":
                raise Snooze(1) from None
        return "as if nothing had happened"

    assert await running.ends(a_run(stubborn, timeout=0.05)) == [Failed("timed out after 0.05 s")]


async def test_an_async_handler_may_return_any_awaitable(running):
    async def real() -> str:
        return "by a wrapper"

    run = a_run(real)
    run.handler.fn = lambda: asyncio.ensure_future(real())
    assert await running.ends(run) == [Succeeded('"by a wrapper"')]


async def test_a_wrapper_that_raises_stop_iteration_has_failed(running):
    async def real() -> None: ...

    def wrapper() -> None:
        raise StopIteration("no")

    run = a_run(real)
    run.handler.fn = wrapper
    (ended,) = await running.ends(run)
    assert isinstance(ended, Failed)
    assert "StopIteration" in ended.error


async def test_short_functions_share_few_threads(running):
    threads = set()

    def quick() -> None:
        threads.add(threading.get_ident())

    await running.ends(*some_runs(quick, 400))
    assert len(threads) < 100


async def test_functions_that_block_get_a_thread_each(running):
    meeting = threading.Barrier(50)

    def blocks() -> int:
        return meeting.wait(60) * 0

    assert await running.ends(*some_runs(blocks, 50)) == [Succeeded("0")] * 50


async def test_a_function_is_not_kept_waiting_by_others_that_block(running):
    release = threading.Event()

    def blocks() -> None:
        release.wait(60)

    def quick() -> str:
        release.set()
        return "done"

    runs = [*some_runs(blocks, 6), a_run(quick, 7)]
    assert (await running.ends(*runs))[-1] == Succeeded('"done"')


async def test_an_end_that_cannot_be_noted_keeps_nobody_waiting(running):
    def note(runs: Sequence[Run]) -> None:
        running.note(runs)
        raise RuntimeError("a mistake")

    running.runner._on_ended = note

    async def quick() -> None: ...

    def plain() -> None: ...

    await running.ends(*some_runs(quick, 3), *some_runs(plain, 3))
    assert len(running.outcomes) == 6


async def test_threads_that_cannot_be_started_are_tried_again(running, monkeypatch):
    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def sometimes(thread: threading.Thread) -> None:
        if len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", sometimes)

    async def sibling() -> None: ...

    def plain() -> str:
        return "after all"

    ended = await running.ends(a_run(plain, 1), a_run(sibling, 2))
    assert ended == [Succeeded('"after all"'), Succeeded("null")]
    assert len(refused) == 3


async def test_plain_functions_see_the_context_variables_of_who_started_them(running):
    colour: ContextVar[str] = ContextVar("colour", default="none")
    colour.set("of the lifespan")

    def looks() -> str:
        return colour.get()

    assert await running.ends(a_run(looks)) == [Succeeded('"of the lifespan"')]


async def test_a_slot_is_free_before_its_report_is_on_the_way(monkeypatch):
    """The next claim is to be sent first, and the reports written while the database has it."""
    monkeypatch.setattr("pulsed.engine.worker.runs.SLICE", 3600)  # one turn, on any machine
    heard: list[str] = []
    runner = Runner(
        SLOTS,
        on_ended=lambda runs: heard.append(f"{len(runs)} reports"),
        on_free_slot=lambda: heard.append(f"free with {len(runner.runs)} left"),
        on_stuck=lambda: None,
    )

    async def quick() -> None:
        pass

    runner.start(some_runs(quick, 2))
    await runner.until_idle()
    await runner.close()
    assert heard == ["free with 0 left", "2 reports"], "once for a turn"


async def test_a_context_is_made_only_if_somebody_asks_for_it(running):
    async def indifferent() -> None: ...

    def plain() -> None: ...

    async def curious() -> None:
        assert current_context() is current_context()

    runs = [a_run(indifferent, 1), a_run(plain, 2), a_run(curious, 3)]
    assert await running.ends(*runs) == [Succeeded("null")] * 3
    assert [run.made_context is None for run in runs] == [True, True, False]


async def test_a_context_that_is_made_late_knows_that_its_run_is_over(running):
    late: list[asyncio.Task[None]] = []

    async def leaves_a_task() -> None:
        late.append(asyncio.create_task(reports_later()))

    async def reports_later() -> None:
        await until(lambda: bool(running.outcomes))
        context = current_context()
        assert context is not None
        await context.aprogress("too late")

    assert await running.ends(a_run(leaves_a_task)) == [Succeeded("null")]
    with pytest.raises(RunEnded):
        await late[0]


def test_a_context_that_is_made_late_knows_that_its_run_was_stopped():
    def long() -> bool:
        it.tell_to_stop(StopReason.CANCELLED)
        context = current_context()
        return context is not None and context.cancelled

    it = a_run(long)
    assert copy_context().run(call, it) == Succeeded("true")


async def test_a_context_that_is_made_late_belongs_to_the_handlers_task(running):
    async def waits() -> bool:
        await asyncio.sleep(0)
        return await asyncio.create_task(looks()) is asyncio.current_task()

    async def looks() -> object:
        context = current_context()
        return context and context._task

    assert await running.ends(a_run(waits)) == [Succeeded("true")]


@pytest.mark.parametrize(
    "why, outcome",
    [
        (StopReason.LOST, None),
        (StopReason.CANCELLED, Cancelled()),
        (StopReason.TIMED_OUT, Failed("timed out after 3 s")),
        (StopReason.ABORTED, Released()),
    ],
)
def test_a_check_ends_the_run_as_the_reason_demands(why: StopReason, outcome: object):
    def long(ctx: Context) -> None:
        ctx.check()
        it.tell_to_stop(why)
        ctx.check()

    it = a_run(long, timeout=3.0)
    assert copy_context().run(call, it) == outcome  # as its thread does: nothing stays behind
