"""A URL with several hosts: the primary is found, also when another of them hangs."""

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from pulsed.store.blocking import run_blocking
from pulsed.store.postgres import address as postgres_address
from pulsed.store.postgres.address import Address
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from tests.support.backends import AT_ONCE_OPTIONS
from tests.support.jobs import a_job
from tests.support.scratch_postgres import ScratchPostgres, free_port
from tests.support.silent_proxy import SilentProxy


def url_of(*ports: int, database: str = "postgres", user: str = "postgres") -> str:
    return f"postgresql://{user}@{','.join(f'127.0.0.1:{port}' for port in ports)}/{database}"


def a_store(url: str) -> PostgresStore:
    # A statement that nobody ended would take an hour here.
    return PostgresStore(url, PostgresOptions(statement_timeout=3600, **AT_ONCE_OPTIONS))


@pytest.fixture
def behind(postgres_url: str) -> Iterator[tuple[SilentProxy, Any]]:
    """A host that hangs: it accepts connections and answers none."""
    with SilentProxy(postgres_url) as proxy:
        proxy.silence(also_new=True)
        yield proxy, urlsplit(postgres_url)


@pytest.mark.parametrize("how", ["async", "blocking"])
async def test_a_host_that_hangs_is_passed_over(
    behind: Any, monkeypatch: pytest.MonkeyPatch, how: str
):
    proxy, real = behind
    monkeypatch.setattr(postgres_address, "HOST_WITHIN", 0.2)
    ports = (free_port(), proxy.port, real.port)
    store = a_store(url_of(*ports, database=real.path[1:], user=real.username or "postgres"))
    job = a_job()
    if how == "async":
        assert await store.submit([job]) == 1
    else:
        assert await asyncio.to_thread(lambda: run_blocking(store.submit([job]))) == 1
    assert proxy.accepted > 0
    await store.aclose()


@pytest.mark.parametrize("how", ["async", "blocking"])
async def test_a_host_that_hangs_up_is_passed_over(postgres_url: str, how: str):
    """As a proxy does that has no server behind it."""
    real = urlsplit(postgres_url)
    proxy = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1")
    ports = (proxy.sockets[0].getsockname()[1], real.port or 5432)
    url = url_of(*ports, database=real.path[1:], user=real.username or "postgres")
    store = a_store(f"{url}?sslmode=disable")
    job = a_job()
    if how == "async":
        assert await store.submit([job]) == 1
    else:
        assert await asyncio.to_thread(lambda: run_blocking(store.submit([job]))) == 1
    await store.aclose()
    proxy.close()


async def test_a_standby_is_passed_over():
    with ScratchPostgres() as primary, primary.standby() as standby:
        store = a_store(url_of(standby.port, primary.port))
        assert await store.submit([a_job()]) == 1
        job = a_job()
        assert await asyncio.to_thread(lambda: run_blocking(store.submit([job]))) == 1
        await store.aclose()


def test_one_of_several_hosts_has_less_time_than_the_only_one():
    only, several = Address.parse("postgresql://a/jobs"), Address.parse("postgresql://a,b/jobs")
    assert only.connect_timeout(10) == 10
    assert several.connect_timeout(10) == postgres_address.HOST_WITHIN
    assert Address.parse("postgresql://a,b/jobs?connect_timeout=7").connect_timeout(10) == 7
    assert "target_session_attrs" not in only.keywords
    assert several.keywords["target_session_attrs"] == "read-write"
    said = Address.parse("postgresql://a,b/jobs?target_session_attrs=any")
    assert said.keywords["target_session_attrs"] == "any"
