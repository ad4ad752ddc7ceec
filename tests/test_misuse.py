"""What cannot work says so: pickling, another event loop, a context whose run has ended."""

import asyncio
import gc
import pickle
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from pulsed import Context, Pulse, Router
from pulsed.errors import InvalidHandler, InvalidOption, NoEventLoop, RunEnded
from tests.support.apps import declare_add, work_off


def test_a_job_an_app_and_a_context_are_not_pickled(app: Pulse) -> None:
    errors: list[Exception] = []

    @app.job
    def pickles(ctx: Context) -> None:
        with pytest.raises(TypeError, match=r"ctx\.job_id") as refused:
            pickle.dumps(ctx)
        errors.append(refused.value)

    job = pickles.enqueue()
    with pytest.raises(TypeError, match=r"pass job\.id.*app\.jobs\.get"):
        pickle.dumps(job)
    with pytest.raises(TypeError, match="import it in the other process"):
        pickle.dumps(app)
    work_off(app, job)
    assert len(errors) == 1


def test_an_async_method_without_asyncio_says_what_to_do(app: Pulse) -> None:
    """As under trio, which drives coroutines itself."""
    coroutine = declare_add(app).aenqueue(1)
    with pytest.raises(NoEventLoop, match=r"Under trio, .*to_thread\.run_sync"):
        coroutine.send(None)


def test_a_context_is_of_no_use_after_its_handler(app: Pulse) -> None:
    left: list[Context] = []

    @app.job
    async def leaves(ctx: Context) -> None:
        left.append(ctx)

    job = leaves.enqueue()
    work_off(app, job)
    (ctx,) = left
    with pytest.raises(RunEnded, match=r"\(leaves\): ctx\.progress\(\) was called after the handl"):
        ctx.progress(1)

    async def later() -> None:
        with pytest.raises(RunEnded, match=r"ctx\.sleep\(\)"):
            await ctx.sleep(1)

    asyncio.run(later())
    assert ctx.job_id == job.id


def test_cancelled_calls_leave_nothing_in_the_log(url: str) -> None:
    chance = random.Random(1)
    complaints: list[dict[str, Any]] = []

    async def cancel_some() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: complaints.append(what))
        app = Pulse(url)
        add = declare_add(app)
        await add.aenqueue(1)
        for _ in range(15):
            calls = [asyncio.create_task(add.aenqueue(1)) for _ in range(20)]
            await asyncio.sleep(chance.random() * 0.004)  # at any point of it
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        del calls, call
        await add.aenqueue(1)
        await app.aclose()
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(cancel_some())
    assert complaints == []


OF_ONE_JOB: list[tuple[str, Any]] = [
    ("conn", object()),
    ("id", "0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69"),
    ("delay", 5),
    ("at", datetime(2030, 1, 1, tzinfo=UTC)),
    ("headers", {"trace": "1"}),
    ("tags", ["urgent"]),
]


@pytest.mark.parametrize("name, value", OF_ONE_JOB, ids=[name for name, _ in OF_ONE_JOB])
def test_a_decorator_refuses_what_only_one_job_can_have(name: str, value: Any) -> None:
    def job() -> None:
        pass

    declarations: list[Any] = [Pulse("sqlite://").job, Router().job]
    for declare in declarations:
        with pytest.raises(InvalidHandler, match=rf"{name}= is for one job.*using\({name}="):
            declare(**{name: value})(job)
        declare(**{name: None})(job)


def test_a_connection_of_a_bound_call_is_not_forgotten() -> None:
    """Wherever it could not be used, it is refused."""
    app = Pulse("sqlite://")
    add = declare_add(app)
    mine, other = object(), object()
    bound = add.using(conn=mine).bind(1)
    with pytest.raises(InvalidOption, match="another conn="):
        add.enqueue_many([bound])
    with pytest.raises(InvalidOption, match="another conn="):
        add.using(conn=other).enqueue_many([bound])
    with pytest.raises(InvalidOption, match="neither conn="):
        app.schedules.put("often", bound, every=60)
    with pytest.raises(InvalidOption, match="neither conn="):
        app.schedule("often", add.using(conn=mine).bind(2), every=60)
    with pytest.raises(InvalidOption, match="conn= says where"):
        bound.new_job()
    app.close()
