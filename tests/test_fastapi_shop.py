"""The shop of examples/fastapi_shop, as a reader starts it: real processes, a real database."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import Any

import httpx2
import psycopg
import pytest

from tests.support.programs import ROOT
from tests.support.scratch_postgres import free_port
from tests.support.waiting import PATIENCE, until

SHOP = ROOT / "examples" / "fastapi_shop"
_processes: list[subprocess.Popen[bytes]] = []
"""Those that should be running."""


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator[None]:
    """A process that ends well when it is told to."""
    paths = os.pathsep.join([str(ROOT / "src"), str(SHOP)])
    with TemporaryFile("w+") as log:  # a pipe that nobody reads would hold it up
        started = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": paths, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        _processes.append(started)
        try:
            yield
        finally:
            _processes.remove(started)
            started.send_signal(signal.SIGTERM)
            code = started.wait(PATIENCE)
            log.seek(0)
            print(log.read())  # noqa: T201 - shown if the test fails
        assert code in (0, -signal.SIGTERM)


class Customer:
    """Places orders and approves them, again and again while the shop cannot."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    response = await self._client.request(method, path, **options)
                except httpx2.TransportError:
                    pass
                else:
                    if response.status_code < 500:
                        response.raise_for_status()
                        return response.json()
                assert not any(each.poll() for each in _processes)
                await asyncio.sleep(0.05)

    async def order(self, item: str, cents: int) -> int:
        placed = await self.ask("POST", "/orders", json={"item": item, "cents": cents})
        return int(placed["order"])

    async def status(self, order: int) -> str:
        return str((await self.ask("GET", f"/orders/{order}"))["status"])


@pytest.fixture
async def customer():
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=PATIENCE) as client:
        yield Customer(client), str(port)


async def test_an_order_waits_for_its_approval_and_is_shipped(tmp_path, customer):
    """By one command, on SQLite, with the worker inside."""
    shopper, port = customer
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    with process(str(SHOP), SHOP_PORT=port, SHOP_URL=url):
        order = await shopper.order("lamp", 12_000)
        states = [state async for state in followed(shopper, order)]
        assert states[-1] == "SUCCEEDED"
        assert "WAITING" in states
        assert await shopper.status(order) == "shipped"
        small = await shopper.order("pen", 100)
        assert "WAITING" not in [state async for state in followed(shopper, small)]
        refused = await shopper._client.get("/orders/99/events")
        assert refused.status_code == 404
        dashboard = await shopper._client.get("/jobs-admin/jobs")
        assert "fulfil" in dashboard.text


async def followed(shopper: Customer, order: int):
    """Yield the states of an order's job, and approve it when it waits."""
    async with shopper._client.stream("GET", f"/orders/{order}/events") as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            job = json.loads(line.removeprefix("data: "))
            yield job["status"]
            if job["status"] == "WAITING":
                await shopper.ask("POST", f"/orders/{order}/approval/true")


async def test_a_restart_of_the_database_under_load_loses_and_parks_nothing(
    postgres_server, customer
):
    """A shop and a worker in processes of their own, on PostgreSQL."""
    shopper, port = customer
    environment = {"SHOP_URL": postgres_server.url, "SHOP_WORKER": "no", "SHOP_PORT": port}
    worker = ("-m", "pulsed", "worker", "orders:pulse", "--poll", "0.1")
    with process(str(SHOP), **environment), process(*worker, **environment):
        await shopper.order("first", 1)
        load = [
            asyncio.create_task(shopper.order(f"item {n}", 12_000 if n % 4 == 0 else 100))
            for n in range(60)
        ]
        await until(lambda: sum(task.done() for task in load) > 10)
        await asyncio.to_thread(postgres_server.restart)
        orders = await asyncio.gather(*load)
        for order in orders[::4]:
            await shopper.ask("POST", f"/orders/{order}/approval/true")
        with psycopg.connect(postgres_server.url, autocommit=True) as admin:
            await until(lambda: set(answered(admin, orders)) == {("shipped", "SUCCEEDED")})
            # An order whose answer was lost by the restart has its job, too.
            assert unpaired(admin) == []
            assert dead_letters(admin) == []


def answered(admin: psycopg.Connection[Any], orders: list[int]) -> list[Any]:
    """The states of these orders and of their jobs."""
    return admin.execute(
        "SELECT o.status, j.status FROM orders o JOIN pulse_jobs j ON j.id = o.job_id::uuid "
        "WHERE o.id = ANY(%s)",
        [orders],
    ).fetchall()


def unpaired(admin: psycopg.Connection[Any]) -> list[Any]:
    """Orders without a job, and jobs without an order."""
    return admin.execute(
        "SELECT o.id, j.id FROM orders o FULL JOIN pulse_jobs j ON j.id = o.job_id::uuid "
        "WHERE o.id IS NULL OR j.id IS NULL"
    ).fetchall()


def dead_letters(admin: psycopg.Connection[Any]) -> list[Any]:
    return admin.execute(
        "SELECT id, last_error FROM pulse_jobs WHERE status = 'DEAD_LETTERED'"
    ).fetchall()
