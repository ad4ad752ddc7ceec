"""Faults that drains inject: a workflow that is not idempotent is found, one that is passes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import pytest

from pulsed import Context, Pulse, Status, testing
from pulsed.errors import LeaseLost
from pulsed.testing import Sandbox
from pulsed.testing.faults import Crash
from tests.support.sandboxes import outcomes

CRASHES = get_args(Crash)


class Bank:
    """An outside world that notices when it is asked twice."""

    def __init__(self) -> None:
        self.charges: Counter[str] = Counter()
        self.mails: Counter[str] = Counter()
        self._seen: set[str] = set()

    def charge(self, order: str) -> str:
        self.charges[order] += 1
        return f"charged {order}"

    def charge_once(self, order: str, key: str) -> str:
        if key not in self._seen:
            self._seen.add(key)
            self.charge(order)
        return f"charged {order}"

    def mail(self, order: str) -> None:
        self.mails[order] += 1


@pytest.fixture
def bank() -> Bank:
    return Bank()


# -- crashes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", CRASHES)
def test_an_idempotent_workflow_passes(app: Pulse, sandbox: Sandbox, bank: Bank, crash: Crash):
    @app.job
    async def order(ctx: Context, name: str) -> str:
        paid = await ctx.step(bank.charge_once, name, str(ctx.job_id))
        await ctx.step(bank.mail, name)
        return paid

    job = order.enqueue("book")
    runs = sandbox.drain(crash=crash)
    assert outcomes(runs) == ["order crashed"] * 2 + ["order succeeded"]
    assert bank.charges == {"book": 1}
    assert job.result() == "charged book"
    assert job.refresh().attempts == 1  # a crash of the test kit costs no attempt


def test_a_side_effect_outside_of_a_step_is_found(app: Pulse, sandbox: Sandbox, bank: Bank):
    @app.job
    async def order(ctx: Context, name: str) -> None:
        bank.charge(name)  # the bug
        await ctx.step(bank.mail, name)

    order.enqueue("book")
    sandbox.drain()
    assert bank.charges == {"book": 1}  # an ordinary test does not find it
    order.enqueue("pen")
    sandbox.drain(crash="after_every_checkpoint")
    assert bank.charges["pen"] == 2


def test_a_step_that_is_not_idempotent_is_found(app: Pulse, sandbox: Sandbox, bank: Bank):
    @app.job
    async def order(ctx: Context, name: str) -> None:
        await ctx.step(bank.charge, name)  # the bug: no idempotency key

    order.enqueue("book")
    sandbox.drain(crash="after_every_checkpoint")
    assert bank.charges == {"book": 1}
    order.enqueue("pen")
    sandbox.drain(crash="before_every_checkpoint")
    assert bank.charges["pen"] == 2


def drained(sandbox: Sandbox, crash: Crash, *, on_a_loop: bool) -> list[str]:
    """Drain; if that is on a loop of the test's own, the loop is closed afterwards."""

    async def main() -> list[testing.Ran]:
        return await sandbox.adrain(crash=crash)

    return outcomes(asyncio.run(main()) if on_a_loop else sandbox.drain(crash=crash))


@pytest.mark.parametrize("on_a_loop", [True, False])
def test_a_crash_runs_no_code_of_the_handler(app: Pulse, sandbox: Sandbox, on_a_loop: bool):
    seen: list[str] = []

    @app.job
    async def work(ctx: Context) -> None:
        try:
            await ctx.step(seen.append, "step", name="step")
            seen.append("after")
        finally:
            seen.append("finally")

    work.enqueue()
    drained(sandbox, "after_every_checkpoint", on_a_loop=on_a_loop)
    assert seen == ["step", "after", "finally"]  # once each: the first run was not unwound


@pytest.mark.parametrize("on_a_loop", [True, False])
def test_what_runs_beside_a_handler_crashes_with_it(app: Pulse, sandbox: Sandbox, on_a_loop: bool):
    seen: list[str] = []
    tasks: set[Any] = set()

    async def quick() -> None:
        seen.append("quick")

    async def slow() -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    async def noted(awaitable: Any) -> None:
        try:
            await awaitable
        except BaseException:
            seen.append("unwound")
            raise

    @app.job
    async def work(ctx: Context) -> None:
        if not on_a_loop and not seen:
            tasks.add(asyncio.create_task(noted(asyncio.sleep(3600))))
        await asyncio.gather(noted(ctx.step(quick)), noted(ctx.step(slow)))

    work.enqueue()
    runs = drained(sandbox, "after_every_checkpoint", on_a_loop=on_a_loop)
    assert runs == ["work crashed", "work crashed", "work succeeded"]
    assert seen == ["quick"]


def test_a_dead_worker_makes_no_calls(app: Pulse, sandbox: Sandbox):
    seen: list[str] = []
    crashed = asyncio.Event()

    @app.job
    async def crashes(ctx: Context) -> None:
        await ctx.step(abs, -1)
        crashed.set()

    @app.job
    async def beside(ctx: Context) -> None:
        await crashed.wait()
        seen.append("calls")
        try:
            await ctx.aprogress(1)
        except BaseException:
            seen.append("unwound")
            raise

    beside.enqueue()
    crashes.enqueue()
    runs = sandbox.drain(crash="after_every_checkpoint", concurrency=2)
    assert sorted(outcomes(runs)) == [
        "beside crashed",
        "beside succeeded",
        "crashes crashed",
        "crashes succeeded",
    ]
    assert seen == ["calls"] * 2  # also in the dead worker, where it had no answer


@pytest.mark.parametrize("crash", CRASHES)
def test_jobs_beside_a_job_that_crashes_run_again(app: Pulse, sandbox: Sandbox, crash: Crash):
    @app.job
    async def work(ctx: Context, n: int) -> int:
        await asyncio.sleep(0)
        return await ctx.step(abs, -n)

    jobs = work.enqueue_many([(n,) for n in range(5)])
    runs = sandbox.drain(crash=crash, concurrency=3)
    assert [job.result(timeout=10) for job in jobs] == [0, 1, 2, 3, 4]
    assert outcomes(runs).count("work succeeded") == 5


def test_a_claim_that_outlives_its_worker_is_handed_back(
    app: Pulse, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
):
    """As in a database that commits what a process asked for just before it was killed."""
    store, crashed = sandbox.app.store, asyncio.Event()
    claim, held, read = store.claim, store.held, asyncio.Event()
    claims, late = asyncio.Event(), list[asyncio.Task[Any]]()

    async def after_the_crash(*asked: Any) -> Any:
        await crashed.wait()
        with contextlib.suppress(TimeoutError):  # its leases must not be read before this
            await asyncio.wait_for(read.wait(), 0.2)
        return await claim(*asked)

    async def reading(worker_id: UUID) -> Any:
        found = await held(worker_id)
        read.set()
        return found

    async def claiming(*asked: Any) -> Any:
        if not late and runs:
            late.append(asyncio.create_task(after_the_crash(*asked)))
            claims.set()
            return await asyncio.shield(late[0])
        return await claim(*asked)

    monkeypatch.setattr(store, "claim", claiming)
    monkeypatch.setattr(store, "held", reading)
    runs: list[int] = []

    @app.job
    async def work(ctx: Context, n: int) -> int:
        runs.append(n)
        if n == 1:
            return n  # its slot is free, so the next claim is sent
        await claims.wait()
        crashed.set()
        return await ctx.step(abs, -n)

    jobs = work.enqueue_many([(1,), (2,), (3,)])
    sandbox.drain(crash="before_every_checkpoint", concurrency=2)
    assert [job.refresh().status for job in jobs] == [Status.SUCCEEDED] * 3


async def test_a_drain_that_is_cancelled_cancels_its_claim(
    app: Pulse, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
):
    claiming, ended = asyncio.Event(), list[str]()

    async def claim(*_: Any) -> Any:
        claiming.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("claim")

    monkeypatch.setattr(sandbox.app.store, "claim", claim)

    @app.job
    async def work() -> None: ...

    draining = asyncio.create_task(sandbox.adrain())
    await claiming.wait()
    draining.cancel()
    await asyncio.wait([draining])
    assert draining.cancelled()
    assert ended == ["claim"]


@pytest.mark.parametrize("crash", CRASHES)
def test_signals_and_children_survive_crashes(app: Pulse, sandbox: Sandbox, crash: Crash):
    children: Counter[int] = Counter()

    @app.job
    async def child(n: int) -> int:
        children[n] += 1
        return n

    @app.job
    async def parent(ctx: Context) -> list[Any]:
        names = [await ctx.wait_signal("name", str) for _ in range(2)]
        done = await ctx.fan_out([child.bind(n) for n in (1, 2)])
        return [*names, *done.values]

    job = parent.enqueue()
    app.signal(job.id, "name", "ada")
    app.signal(job.id, "name", "bob")
    runs = sandbox.drain(crash=crash)
    assert job.result() == ["ada", "bob", 1, 2]
    assert children == {1: 1, 2: 1}
    assert outcomes(runs).count("parent crashed") == 4  # two signals, the children, their results


@pytest.fixture(params=["sqlite", "postgres"])
def tx_sandbox(request: pytest.FixtureRequest, app: Pulse, tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox with step transactions, which need a file or PostgreSQL."""
    url = f"sqlite:///{tmp_path}/sandbox.db"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    with testing.override(app, url) as sandbox:
        yield sandbox


@pytest.mark.parametrize("crash", CRASHES)
def test_a_step_in_a_transaction_has_its_effect_once(app: Pulse, tx_sandbox: Sandbox, crash: Crash):
    calls: Counter[str] = Counter()

    async def add(conn: Any, n: int) -> None:
        calls["add"] += 1
        statement = f"INSERT INTO tx_effects VALUES ({n})"
        await (conn.execute(statement) if hasattr(conn, "fetchval") else ran(conn, statement))

    async def ran(conn: Any, statement: str) -> None:
        conn.execute(statement)

    async def create(conn: Any) -> None:
        statement = "CREATE TABLE tx_effects (n int)"
        await (conn.execute(statement) if hasattr(conn, "fetchval") else ran(conn, statement))

    async def effects(conn: Any) -> list[int]:
        statement = "SELECT n FROM tx_effects ORDER BY n"
        rows = (
            await conn.fetch(statement)
            if hasattr(conn, "fetchval")
            else conn.execute(statement).fetchall()
        )
        return [row[0] for row in rows]

    async def drop(conn: Any) -> None:
        statement = "DROP TABLE tx_effects"
        await (conn.execute(statement) if hasattr(conn, "fetchval") else ran(conn, statement))

    @app.job
    async def work(ctx: Context) -> list[int]:
        await ctx.step(create, tx=True)
        for n in (1, 2):
            await ctx.step(add, n, tx=True)
        stored = await ctx.step(effects, tx=True)
        await ctx.step(drop, tx=True)
        return stored

    job = work.enqueue()
    runs = tx_sandbox.drain(crash=crash)
    assert job.result() == [1, 2]
    assert outcomes(runs) == ["work crashed"] * 5 + ["work succeeded"]
    assert calls["add"] == (2 if crash == "after_every_checkpoint" else 4)


# -- reports and leases ---------------------------------------------------------------------------


def test_every_success_is_delivered_twice(app: Pulse, sandbox: Sandbox, bank: Bank):
    @app.job
    def charge(order: str) -> str:
        return bank.charge(order)

    @app.job
    async def mail(ctx: Context, order: str) -> None:
        await ctx.step(bank.mail, order)

    jobs = [charge.enqueue("book"), mail.enqueue("book")]
    runs = sandbox.drain(deliver_twice=True)
    assert sorted(outcomes(runs)) == [
        "charge lost",
        "charge succeeded",
        "mail lost",
        "mail succeeded",
    ]
    assert bank.charges == {"book": 2}  # not idempotent
    assert bank.mails == {"book": 1}  # its step is
    assert {job.refresh().status for job in jobs} == {Status.SUCCEEDED}


def test_a_run_that_loses_its_lease_is_refused(app: Pulse, sandbox: Sandbox, bank: Bank):
    errors: list[BaseException] = []
    tokens: list[int] = []

    @app.job
    async def order(ctx: Context, name: str) -> int:
        tokens.append(ctx.lease_token)
        bank.charge(name)
        try:
            await ctx.step(bank.mail, name)
        except BaseException as error:
            errors.append(error)
            raise
        return ctx.lease_token

    @app.job
    def other() -> None: ...

    job = order.enqueue("book")
    other.enqueue()
    runs = sandbox.drain(lose_lease_of=order)
    assert sorted(outcomes(runs)) == ["order lost", "order succeeded", "other succeeded"]
    assert [type(error) for error in errors] == [LeaseLost]
    assert job.result() == tokens[1] > tokens[0]
    assert bank.charges == {"book": 2}


def test_the_report_of_a_run_without_its_lease_does_not_count(app: Pulse, sandbox: Sandbox):
    results = iter(["of the zombie", "of the second run"])

    @app.job
    def work() -> str:
        return next(results)

    job = work.enqueue()
    assert outcomes(sandbox.drain(lose_lease_of=["work"])) == ["work lost", "work succeeded"]
    assert job.result() == "of the second run"
    assert job.refresh().attempts == 1
