"""Faults that drains inject: a workflow that is not idempotent is found, one that is passes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

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


def test_a_crash_runs_no_code_of_the_handler(app: Pulse, sandbox: Sandbox):
    seen: list[str] = []

    @app.job
    async def work(ctx: Context) -> None:
        try:
            await ctx.step(seen.append, "step", name="step")
            seen.append("after")
        finally:
            seen.append("finally")

    work.enqueue()
    sandbox.drain(crash="after_every_checkpoint")
    assert seen == ["step", "after", "finally"]  # once each: the first run was not unwound


async def test_steps_side_by_side_crash_on_the_loop_of_the_test(app: Pulse, sandbox: Sandbox):
    calls: Counter[str] = Counter()

    async def step(name: str) -> str:
        calls[name] += 1
        await asyncio.sleep(0)
        return name

    @app.job
    async def work(ctx: Context) -> list[str]:
        return list(await asyncio.gather(*(ctx.step(step, each) for each in "abc")))

    job = await work.aenqueue()
    runs = await sandbox.adrain(crash="after_every_checkpoint")
    assert outcomes(runs)[-1] == "work succeeded"
    assert "work crashed" in outcomes(runs)
    assert await job.aresult() == ["a", "b", "c"]


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
    async def add(conn: Any, n: int) -> None:
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
