"""A URL with several hosts: the primary is found, also when another of them hangs."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from pulsed.errors import TransientStorageError
from pulsed.store.blocking import run_blocking
from pulsed.store.postgres import address as postgres_address
from pulsed.store.postgres import hosts
from pulsed.store.postgres.address import PostgresAddress
from pulsed.store.postgres.hosts import Hosts
from pulsed.store.postgres.store import PostgresOptions, PostgresStore
from pulsed.store.verbs.script import Verb, VerbKind
from tests.support.backends import AT_ONCE_OPTIONS, PostgresBackend
from tests.support.checkpoints import a_step
from tests.support.clock import Clock
from tests.support.jobs import a_job, running
from tests.support.raw_verbs import a_verb
from tests.support.scratch_postgres import ScratchPostgres, free_port
from tests.support.silent_proxy import SilentProxy
from tests.support.waiting import until


def url_of(*ports: int, database: str = "postgres", user: str = "postgres") -> str:
    return f"postgresql://{user}@{','.join(f'127.0.0.1:{port}' for port in ports)}/{database}"


def a_store(url: str) -> PostgresStore:
    # A statement that is not ended would take an hour here.
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
        assert (await store.submit([job])).new == 1
    else:
        assert await asyncio.to_thread(lambda: run_blocking(store.submit([job])).new) == 1
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
        assert (await store.submit([job])).new == 1
    else:
        assert await asyncio.to_thread(lambda: run_blocking(store.submit([job])).new) == 1
    await store.aclose()
    proxy.close()


async def test_a_standby_is_passed_over():
    with ScratchPostgres() as primary, primary.standby() as standby:
        store = a_store(url_of(standby.port, primary.port))
        assert (await store.submit([a_job()])).new == 1
        job = a_job()
        assert await asyncio.to_thread(lambda: run_blocking(store.submit([job])).new) == 1
        await store.aclose()


# -- a host that goes silent under a statement ----------------------------------------------------


class Failing(SilentProxy):
    """A host that goes silent. As long as it works, connections get the usual time."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(url)
        self._monkeypatch = monkeypatch

    def fail(self) -> None:
        # libpq takes it for 2 seconds.
        self._monkeypatch.setattr(postgres_address, "HOST_WITHIN", 1.0)
        self.silence(also_new=True)


@pytest.fixture
def silent(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Failing, Any]]:
    """Two hosts of which the first one works, until it is silenced; and a store for both."""
    monkeypatch.setattr(hosts, "SILENT_AFTER", 0.1)
    monkeypatch.setattr(hosts, "CHECK_EVERY", 0.3)
    real = urlsplit(postgres_url)
    backend = PostgresBackend(postgres_url, Clock())
    if backend.execute("SELECT 1 WHERE to_regclass('pulse_jobs') IS NOT NULL"):
        backend.empty()
    with Failing(postgres_url, monkeypatch) as proxy:
        ports = (proxy.port, real.port or 5432)
        url = url_of(*ports, database=real.path[1:], user=real.username or "postgres")
        yield proxy, a_store(url)


async def run(store: PostgresStore, how: str, verb: Verb[Any]) -> Any:
    if how == "async":
        return await store.run(verb)
    return await asyncio.to_thread(lambda: run_blocking(store.run(verb)))


both = pytest.mark.parametrize("how", ["async", "blocking"])


@both
async def test_what_waits_for_a_silent_host_is_tried_on_the_one_that_took_over(
    silent: Any, how: str, caplog: pytest.LogCaptureFixture
):
    """Without that it waits for its statement timeout and five seconds: an hour, here."""
    proxy, store = silent
    await run(store, how, a_verb("SELECT 1"))
    proxy.fail()
    async with asyncio.timeout(60):
        assert await run(store, how, a_verb("SELECT 1", VerbKind.TRANSACTION)) == [(1,)]
        accepted = proxy.accepted
        await store.aclose()
        assert await run(store, how, a_verb("SELECT 1")) == [(1,)]
    assert proxy.accepted == accepted, "the silent host is tried last for a while"
    told = [each for each in caplog.records if "does not answer" in each.getMessage()]
    assert len(told) == 1
    await store.aclose()


@both
async def test_a_statement_that_is_only_slow_is_waited_for(
    silent: Any, how: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    """Another host would do as well, as with two poolers; but the first one accepts it."""
    proxy, store = silent
    await run(store, how, a_verb("SELECT 1"))
    monkeypatch.setattr(postgres_address, "HOST_WITHIN", 60.0)
    before, began = proxy.accepted, time.monotonic()
    slow = a_verb("SELECT 1 FROM pg_advisory_xact_lock_shared(7)")
    with psycopg.connect(postgres_url) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(7)")
        statements = [asyncio.create_task(run(store, how, slow)) for _ in range(4)]
        others = 3  # more connections
        await until(lambda: proxy.accepted > before + others)
    assert await asyncio.gather(*statements) == [[(1,)]] * 4
    checks = proxy.accepted - before - others
    assert checks <= (time.monotonic() - began) / hosts.CHECK_EVERY + 1, "one check for all"
    await store.aclose()


async def test_a_submit_on_a_host_that_goes_silent_is_stored_once(silent: Any):
    proxy, store = silent
    await store.submit([a_job()])
    proxy.fail()
    job = a_job()
    async with asyncio.timeout(60):
        assert (await store.submit([job])).new == 1
    assert set(await store.get([job.id])) == {job.id}
    await store.aclose()


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
async def test_the_commit_of_a_step_does_not_wait_for_a_silent_host(silent: Any, plain: bool):
    """Whether it was committed is then asked on the new primary."""
    proxy, store = silent
    claimed = await running(store)
    async with asyncio.timeout(60):
        async with store.workflows.transaction(claimed.lease, plain=plain) as transaction:
            proxy.fail()
            with pytest.raises(TransientStorageError):
                await transaction.commit(a_step())
            assert await transaction.was_committed(a_step()) is False
        await store.aclose()


def test_a_host_is_given_up_only_if_it_lets_nobody_in_and_another_one_does():
    address = PostgresAddress.parse("postgresql://a,b:1,c/jobs")
    now = 100.0
    answers: dict[str, bool | None] = {}
    asked: list[str] = []

    def accepts(host: PostgresAddress) -> bool | None:
        asked.append(host.at)
        return answers[host.at]

    known = Hosts(address, accepts, lambda: now)
    for own, b, c, replaced in (
        (True, True, True, False),
        (None, True, True, False),  # full, but there
        (False, False, None, False),  # no other host
        (False, False, True, True),
    ):
        answers |= {"a": own, "b:1": b, "c": c}
        asked.clear()
        assert known.is_replaced(0) is replaced
        assert asked == (["a", "b:1", "c"] if own is False else ["a"])
        assert known.is_replaced(0) is replaced
        assert len(asked) <= 3, "not asked again at once"
        now += hosts.CHECK_EVERY
    assert known.in_order() == [1, 2, 0]
    assert known.preferred().at == "b:1,c,a"
    assert known.is_replaced(1) is True  # c accepts the connection
    assert known.in_order() == [2, 0, 1]
    known.connected(0)
    assert known.in_order() == [0, 2, 1]
    now += hosts.AVOID_FOR
    assert known.preferred() is address


def test_one_of_several_hosts_has_less_time_than_the_only_one():
    only, several = (
        PostgresAddress.parse("postgresql://a/jobs"),
        PostgresAddress.parse("postgresql://a,b/jobs"),
    )
    assert only.connect_timeout(10) == 10
    assert several.connect_timeout(10) == postgres_address.HOST_WITHIN
    assert PostgresAddress.parse("postgresql://a,b/jobs?connect_timeout=7").connect_timeout(10) == 7
    assert "target_session_attrs" not in only.keywords
    assert several.keywords["target_session_attrs"] == "read-write"
    said = PostgresAddress.parse("postgresql://a,b/jobs?target_session_attrs=any")
    assert said.keywords["target_session_attrs"] == "any"
