"""Fan-outs: many children, and when enough of them have ended."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from pulsed.batches import Limits
from pulsed.engine.context import Context
from pulsed.engine.workflow import fan_out as fan_out_module
from pulsed.engine.workflow.fan_out import FanOut
from pulsed.errors import FanOutFailed, InvalidOption, NoRetry, WaitTimeout
from pulsed.handler import Handler
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, JobRow, Status
from pulsed.model.step import StepState
from pulsed.model.workflow import child_id, child_ids, collect_all, threshold
from pulsed.store.sql_store.store import SqlStore
from tests.support.clock import Clock
from tests.support.jobs import NO_WAIT
from tests.support.parts import part_with
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
from tests.support.workflows import call_of, names_of, steps_of


async def _child(n: int) -> int:
    if n < 0:
        raise NoRetry(f"no {n}")
    return n * n


CHILD = handler(_child, topic="child", queue="lane")
BOTH: dict[str, Any] = {"queues": ["default", "lane"]}


def calls(*numbers: int) -> list[Any]:
    return [call_of(CHILD, n=n) for n in numbers]


async def children(store: SqlStore, job_id: UUID) -> list[JobRow]:
    """Return the children in the order of their calls."""
    rows = await store.list_jobs(JobFilter(parent=job_id))
    return sorted(rows, key=lambda row: int(row.payload[5:-1]) if row.payload[5] != "-" else 0)


async def test_a_fan_out_returns_the_values_in_the_order_of_the_calls(store: SqlStore):
    async def work(ctx: Context) -> list[int]:
        squares = await ctx.fan_out(calls(1, 2, 3))
        assert (squares.ok, squares.total) == (True, 3)
        assert (squares.failures, squares.left) == ([], [])
        if ctx.attempt == 1:
            raise ConnectionError
        return squares.values

    job_id = await submit(store, "work")
    async with working(store, handler(work, backoff=NO_WAIT)):
        job = await in_status(store, job_id, Status.WAITING)
        assert (job.attempts, job.wait_kind) == (0, "FAN_OUT")
        async with working(store, CHILD, **BOTH):
            assert result(await finished(store, job_id)) == [1, 4, 9]
    rows = await children(store, job_id)
    assert [row.id for row in rows] == [child_id(job_id, "fan_out|1", n) for n in range(3)]
    assert {(row.parent_step, row.queue) for row in rows} == {("fan_out|1", "lane")}
    assert await names_of(store, job_id) == ["fan_out"]


def test_the_ids_of_many_children_are_those_of_each():
    parent = new_job_id()
    for family in ("fan_out|1", "ships|2|3", "größe|1"):
        each = [child_id(parent, family, index) for index in range(1_001)]
        assert child_ids(parent, family, 1_001) == each
        assert {made.version for made in each} == {8}
        assert {made.int >> 80 for made in each} == {parent.int >> 80}
        assert len(set(each)) == len(each)


def test_the_id_of_a_child_never_changes():
    parent = UUID("01a1e3d0-72cc-729d-a090-a62dcece4ce7")
    assert str(child_id(parent, "fan_out|1", 0)) == "01a1e3d0-72cc-8f66-a64f-62a6b15ca053"


async def test_an_empty_fan_out_is_over_at_once(store: SqlStore):
    async def work(ctx: Context) -> int:
        assert await ctx.fan_out([]) == FanOut([], [], [], 0)
        assert await ctx.step(lambda: 1, name="after") == 1
        return 1

    job = await outcome(store, work)
    assert result(job) == 1
    assert [step.seq for step in await steps_of(store, job.id)] == [2]


async def test_the_first_failure_fails_it_and_stops_the_rest(store: SqlStore):
    errors: list[FanOutFailed] = []

    async def work(ctx: Context) -> None:
        late = call_of(handler(_child, topic="nobody's"), n=5)
        try:
            await ctx.fan_out([*calls(-1, 2), late])
        except FanOutFailed as error:
            errors.append(error)
        if len(errors) < 2:
            raise ConnectionError

    job_id = await submit(store, "work")
    async with working(store, handler(work, backoff=NO_WAIT), CHILD, **BOTH):
        assert (await finished(store, job_id)).status is Status.SUCCEEDED
    first, second = errors
    assert str(first) == str(second)
    assert "1 of 3 children did not succeed" in str(first)
    assert "no -1" in str(first)
    results = first.results
    assert isinstance(results, FanOut)
    assert results == second.results
    assert [(f.index, f.topic, f.status, f.error) for f in results.failures] == [
        (0, "child", Status.DEAD_LETTERED, "no -1")
    ]
    assert not results.ok
    (last,) = await store.list_jobs(JobFilter(topic="nobody's"))
    assert last.status is Status.CANCELLED


async def test_an_uncaught_failure_of_a_fan_out_parks_the_job(store: SqlStore):
    async def work(ctx: Context) -> None:
        await ctx.fan_out(calls(-1))

    job_id = await submit(store, "work")
    async with working(store, work, CHILD, **BOTH):
        job = await finished(store, job_id)
    assert (job.status, job.attempts) == (Status.DEAD_LETTERED, 1)


async def test_collect_all_waits_for_every_child(store: SqlStore):
    async def work(ctx: Context) -> list[Any]:
        got = await ctx.fan_out(calls(-1, 2, -3, 4), strategy=collect_all)
        return [got.values, [failure.index for failure in got.failures], got.ok, got.left]

    job_id = await submit(store, "work")
    async with working(store, work, CHILD, **BOTH):
        assert result(await finished(store, job_id)) == [[4, 16], [0, 2], False, []]


async def test_a_threshold_goes_on_when_enough_have_succeeded(store: SqlStore, clock: Clock):
    """Those that are left go on; a replay does not see what they came to later."""
    late = handler(_child, topic="late")

    async def work(ctx: Context) -> list[Any]:
        got = await ctx.fan_out([call_of(late, n=9), *calls(1, 2, 3, 4)], strategy=threshold(0.8))
        await ctx.sleep(60)
        return [got.values, got.left, got.ok]

    job_id = await submit(store, "work")
    async with working(store, work, CHILD, **BOTH):
        await until(lambda: _waits_for(store, job_id, "SLEEP"))
        (row,) = await store.list_jobs(JobFilter(topic="late"))
        assert row.status is Status.PENDING
        async with working(store, late):
            await finished(store, row.id)
        clock.advance(60)
        assert result(await finished(store, job_id)) == [[1, 4, 9, 16], [0], False]


async def _waits_for(store: SqlStore, job_id: UUID, kind: str) -> bool:
    row = (await store.get([job_id]))[job_id]
    return (row.status, row.wait_kind) == (Status.WAITING, kind)


async def test_a_threshold_that_cannot_be_reached_any_more_fails(store: SqlStore):
    async def work(ctx: Context) -> str:
        late = call_of(handler(_child, topic="nobody's"), n=5)
        try:
            await ctx.fan_out([late, *calls(-1, -2, 3)], strategy=threshold(0.75))
        except FanOutFailed as error:
            return str(error)
        return ""

    job_id = await submit(store, "work")
    async with working(store, work, CHILD, **BOTH):
        assert "2 of 4 children" in result(await finished(store, job_id))


async def test_a_fan_out_that_takes_too_long_stops_its_children(store: SqlStore, clock: Clock):
    errors: list[str] = []

    async def work(ctx: Context) -> None:
        try:
            await ctx.fan_out(calls(1, 2), timeout=60)
        except WaitTimeout as error:
            errors.append(str(error))
        if len(errors) < 2:
            raise ConnectionError

    job_id = await submit(store, "work")
    async with working(store, handler(work, backoff=NO_WAIT)):  # no worker runs the children
        await in_status(store, job_id, Status.WAITING)
        clock.advance(60)
        assert (await finished(store, job_id)).status is Status.SUCCEEDED
    assert errors[0] == errors[1]
    assert "2 of 2 children did not end in time" in errors[0]
    assert [row.status for row in await children(store, job_id)] == [Status.CANCELLED] * 2
    assert [step.state for step in await steps_of(store, job_id)] == [StepState.TIMED_OUT]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", ["record", "cancel"])
async def test_a_run_that_dies_while_it_times_out_comes_to_the_same_end(
    store: SqlStore, clock: Clock, monkeypatch: pytest.MonkeyPatch, verb: str, when: str
):
    """Stopped children must not be taken for children that ended by themselves."""
    crashes = [ConnectionError("the worker died")]
    part = part_with(store, verb)
    perform = getattr(part, verb)

    async def dying(*args: Any) -> Any:
        if when == "before" and crashes:
            raise crashes.pop()
        answer = await perform(*args)
        if crashes:
            raise crashes.pop()
        return answer

    async def work(ctx: Context) -> str:
        try:
            await ctx.fan_out(calls(1, 2, 3), strategy=collect_all, timeout=60)
        except WaitTimeout as error:
            return str(error)
        return "all have ended"

    monkeypatch.setattr(part, verb, dying)
    job_id = await submit(store, "work")
    async with working(store, handler(work, backoff=NO_WAIT)):  # no worker runs the children
        await in_status(store, job_id, Status.WAITING)
        clock.advance(60)
        said = result(await finished(store, job_id))
    assert "3 of 3 children did not end in time" in said
    assert crashes == []
    assert [row.status for row in await children(store, job_id)] == [Status.CANCELLED] * 3


async def test_children_take_the_options_of_the_fan_out(store: SqlStore):
    async def work(ctx: Context) -> None:
        await ctx.fan_out(
            calls(1), queue="other", max_attempts=9, cancel_on_parent_failure=False, name="some"
        )

    job_id = await submit(store, "work")
    async with working(store, work):
        await in_status(store, job_id, Status.WAITING)
    (row,) = await children(store, job_id)
    assert (row.queue, row.max_attempts, row.parent_step) == ("other", 9, "some|1")


@pytest.mark.parametrize("outlives", [False, True])
async def test_a_parent_that_fails_takes_its_children_along_unless_told_otherwise(
    store: SqlStore, clock: Clock, outlives: bool
):
    async def work(ctx: Context) -> None:
        await ctx.fan_out(
            calls(1, 2, 3, 4),
            strategy=threshold(0.5),
            cancel_on_parent_failure=not outlives,
        )
        raise NoRetry("enough")

    job_id = await submit(store, "work")
    async with working(store, work):
        await in_status(store, job_id, Status.WAITING)
        some = [child_id(job_id, "fan_out|1", n) for n in (0, 1)]
        for row in await children(store, job_id):
            if row.id not in some:
                await store.delete([row.id])
                await submit_with(store, "nobody's", {"parent_id": job_id, "parent_step": "x|1",
                                                      "outlives": outlives or None})  # fmt: skip
        async with working(store, CHILD, **BOTH):
            assert (await finished(store, job_id)).last_error == "enough"
    left = await store.list_jobs(JobFilter(topic="nobody's"))
    expected = Status.PENDING if outlives else Status.CANCELLED
    assert [row.status for row in left] == [expected] * 2


async def test_children_that_were_made_before_a_crash_are_not_made_twice(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    """The run ends between storing them and suspending."""
    crashes = [ConnectionError("the worker died")]
    add_children = store.workflows.add_children

    async def add(*args: Any) -> None:
        await add_children(*args)
        if crashes:
            raise crashes.pop()

    monkeypatch.setattr(store.workflows, "add_children", add)

    async def work(ctx: Context) -> list[int]:
        return (await ctx.fan_out(calls(1, 2))).values

    job_id = await submit(store, "work")
    async with working(store, handler(work, backoff=NO_WAIT), CHILD, **BOTH):
        assert result(await finished(store, job_id)) == [1, 4]
    assert len(await children(store, job_id)) == 2


def counting(verb: Any, sizes: list[int]) -> Any:
    """Note how many jobs each call of a verb is about."""

    def counted(*args: Any) -> Any:
        sizes.append(len(args[-1]))
        return verb(*args)

    return counted


async def test_many_children_are_stored_and_read_in_batches(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fan_out_module, "FIRST_BATCH", 2)
    monkeypatch.setattr(fan_out_module, "CHILDREN", Limits(3, 1_000_000))
    sizes: list[int] = []
    for verb in ("add_children", "outcomes"):
        part = store.workflows
        monkeypatch.setattr(part, verb, counting(getattr(part, verb), sizes))

    async def work(ctx: Context) -> list[int]:
        return (await ctx.fan_out(calls(*range(10)))).values

    job_id = await submit(store, "work")
    async with working(store, work, CHILD, **BOTH):
        assert result(await finished(store, job_id)) == [n * n for n in range(10)]
    assert sizes == [2, 3, 3, 2, *(3, 3, 3, 1)]


async def test_a_fan_out_beside_the_handler_is_refused(store: SqlStore):
    async def work(ctx: Context) -> None:
        await asyncio.gather(ctx.fan_out(calls(1)), ctx.fan_out(calls(2)))

    job_id = await submit(store, "work")
    async with working(store, work):
        job = await finished(store, job_id)
    assert (job.last_error or "").startswith("CannotSuspend: ")
    assert await children(store, job_id) == []


async def test_what_is_no_call_or_no_strategy_is_refused(store: SqlStore):
    async def work(ctx: Context) -> None:
        not_a_call: Any = (1,)
        with pytest.raises(InvalidOption, match=r"ship\.bind"):
            _ = ctx.fan_out([not_a_call])
        not_a_strategy: Any = "fail_fast"
        with pytest.raises(InvalidOption, match="strategy"):
            _ = ctx.fan_out([], strategy=not_a_strategy)

    assert (await outcome(store, work)).last_error is None


async def test_workflows_fan_out_into_workflows(store: SqlStore):
    async def tree(ctx: Context, depth: int) -> int:
        if depth == 0:
            return 1
        below = [call_of(whole_tree, depth=depth - 1) for _ in range(2)]
        return sum((await ctx.fan_out(below)).values)

    whole_tree: Handler[Any] = handler(tree)
    job_id = await submit(store, "tree", depth=3)
    async with working(store, whole_tree, concurrency=2):  # fewer slots than running workflows
        assert result(await finished(store, job_id)) == 8
