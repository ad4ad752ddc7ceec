"""Sandboxes: an app is redirected for a while, and tests see what it enqueued."""

from __future__ import annotations

import unittest
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pulsed import Pulse, testing
from pulsed.errors import ConfigError, InvalidOption
from pulsed.rpc.open import open_store
from pulsed.store.open import StoreSettings
from pulsed.store.postgres import scratch
from pulsed.testing import Clock, Sandbox
from tests.support.sandboxes import START, outcomes

# -- redirection ----------------------------------------------------------------------------------


def test_an_app_that_is_in_use_is_redirected_and_comes_back(tmp_path: Path, sandbox_url: str):
    with Pulse(f"sqlite:///{tmp_path}/real.db") as app:

        @app.job
        def work(n: int) -> None: ...

        work.enqueue(1)
        with testing.override(app, sandbox_url) as sandbox:
            work.enqueue(2)
            with testing.override(app) as inner:
                work.enqueue(3)
                assert [job.payload for job in inner.enqueued()] == [{"n": 3}]
            assert [job.payload for job in sandbox.enqueued()] == [{"n": 2}]
            assert len(sandbox.drain()) == 1
        work.enqueue(4)
        assert [job.payload for job in app.jobs.list()] == [{"n": 4}, {"n": 1}]
        assert app.url.endswith("real.db")
        assert app.settings.clock is None
        with testing.override(app, sandbox_url) as sandbox:
            assert sandbox.enqueued() == []


def test_the_statistics_of_a_sandbox_stay_in_it(tmp_path: Path):
    with Pulse(f"sqlite:///{tmp_path}/real.db") as app:

        @app.job
        def work() -> None: ...

        work.enqueue()
        with testing.override(app) as sandbox:
            work.enqueue_many([()] * 5)
            sandbox.drain()
        work.enqueue()
        app.close()
        assert app.stats.totals().stats.submitted == 2


def test_the_app_comes_back_after_an_error(app: Pulse):
    with pytest.raises(KeyError), testing.override(app):
        {"jobs": app.jobs.list()}["missing"]
    assert app.url == "sqlite:////no/such/folder/jobs.db"


async def test_a_sandbox_of_an_async_test(app: Pulse, sandbox_url: str):
    @app.job
    async def work() -> int:
        return 1

    async with testing.override(app, sandbox_url) as sandbox:
        job = await work.aenqueue()
        assert outcomes(await sandbox.adrain()) == ["work succeeded"]
        assert sandbox.assert_enqueued(work).id == job.id  # assertions need no twin
    assert app.url == "sqlite:////no/such/folder/jobs.db"


def test_what_a_sandbox_cannot_use(app: Pulse, tmp_path: Path):
    file = tmp_path / "jobs.db"
    file.touch()
    with pytest.raises(ConfigError, match="exists"), testing.override(app, f"sqlite:///{file}"):
        pass
    with pytest.raises(ConfigError, match=r"pulsed\.testing\.drain"):
        testing.override(app, "pulse://localhost:1")
    with pytest.raises(ConfigError, match="clock"):
        open_store("pulse://localhost:1", StoreSettings(clock=Clock()))


class TestOfTheStandardLibrary(unittest.TestCase):
    """pytest is not needed; this one only runs it."""

    app = Pulse("sqlite:////no/such/folder/jobs.db")

    def setUp(self) -> None:
        self.sandbox = self.enterContext(testing.override(self.app))

    def test_a_job(self) -> None:
        job = self.app.job(len_of).enqueue("four")
        assert len(self.sandbox.drain()) == 1
        assert job.result() == 4


def len_of(text: str) -> int:
    return len(text)


# -- schemas --------------------------------------------------------------------------------------


def schemas(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(scratch._SCHEMAS, (scratch.PREFIX,)).fetchall()
    return {name for (name,) in rows}


def test_postgres_gets_a_schema_for_each_sandbox_that_is_open(app: Pulse, postgres_url: str):
    other = Pulse("sqlite:////no/such/folder/jobs.db")
    with testing.override(app, postgres_url) as one, testing.override(other, postgres_url) as two:
        app.enqueue("work", unknown=True)
        assert (len(one.enqueued()), len(two.enqueued())) == (1, 0)
        assert app.settings.schema != other.settings.schema
    before = schemas(postgres_url)
    with testing.override(app, postgres_url) as again:
        assert again.enqueued() == []
    assert schemas(postgres_url) == before  # one of these was used again


def test_a_schema_whose_session_was_cut_off_is_replaced(postgres_url: str):
    with scratch.scratch_schema(postgres_url) as lost:
        pass
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks "
            "JOIN pg_database ON pg_database.oid = database "
            "WHERE datname = current_database() AND classid = %s",
            (scratch.LOCKS,),
        )
    with scratch.scratch_schema(postgres_url) as name:
        assert name != lost
        assert lost not in schemas(postgres_url)


def test_the_schema_of_a_process_that_was_killed_is_dropped(postgres_url: str):
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {scratch.PREFIX}orphan")
        admin.execute(f"CREATE SCHEMA {scratch.PREFIX}in_use")
        admin.execute(scratch._TAKE, (scratch.LOCKS, f"{scratch.PREFIX}in_use"))
        schema = scratch.ScratchSchema(postgres_url)
        left = schemas(postgres_url)
        schema.drop()
        assert f"{scratch.PREFIX}orphan" not in left
        assert f"{scratch.PREFIX}in_use" in left
        admin.execute(f"DROP SCHEMA {scratch.PREFIX}in_use")


# -- assertions -----------------------------------------------------------------------------------


@dataclass
class Address:
    city: str


def test_jobs_are_found_by_some_of_their_arguments(app: Pulse, sandbox: Sandbox):
    @app.job
    def ship(order: int, to: Address, at: datetime | None = None) -> int:
        return order

    @app.job
    def other(order: int) -> None: ...

    london = Address("London")
    first = ship.enqueue(1, london, at=START)
    ship.using(tags=["fast"]).enqueue(2, Address("Paris"))
    assert sandbox.assert_enqueued(ship, order=1, to=london).id == first.id
    assert sandbox.assert_enqueued(ship, at=START).id == first.id
    assert sandbox.assert_enqueued(ship, to={"city": "London"}).id == first.id
    assert sandbox.assert_enqueued("ship").tags == ("fast",)  # the newest
    assert [job.payload["order"] for job in sandbox.enqueued(ship)] == [1, 2]
    sandbox.assert_not_enqueued(ship, order=3)
    sandbox.assert_not_enqueued(ship, order=1, to=Address("Paris"))
    sandbox.assert_not_enqueued(ship, nothing=None)
    sandbox.assert_not_enqueued(ship, to=object())
    sandbox.assert_not_enqueued(other)
    sandbox.drain()
    assert sandbox.assert_enqueued(ship, order=1).result_value == 1  # it stays when it has run


def test_a_failed_assertion_says_what_there_is(app: Pulse, sandbox: Sandbox):
    with pytest.raises(AssertionError, match=r"send\(to='ada'\) was not enqueued.*: nothing"):
        sandbox.assert_enqueued("send", to="ada")
    for n in range(12):
        app.enqueue("send", {"to": f"user {n}"}, unknown=True)
    with pytest.raises(AssertionError) as raised:
        sandbox.assert_enqueued("send", to="ada")
    lines = str(raised.value).splitlines()
    assert lines[1] == "  send(to='user 0'): PENDING"
    assert lines[-1] == "  and 2 more"
    with pytest.raises(AssertionError, match=r"send\(to='user 3'\) was enqueued"):
        sandbox.assert_not_enqueued("send", to="user 3")


# -- the clock ------------------------------------------------------------------------------------


def test_the_clock_stands_still_until_it_is_moved():
    clock = Clock(START)
    assert clock.now == clock() == START
    assert clock.advance("1h 30m") == START + timedelta(minutes=90)
    assert clock.advance(30) == START + timedelta(minutes=90, seconds=30)
    clock.move_to(datetime(2030, 2, 1, tzinfo=UTC))
    assert clock.advance(timedelta(days=1)) == datetime(2030, 2, 2, tzinfo=UTC)
    assert abs(Clock().now - datetime.now(UTC)) < timedelta(minutes=5)


@pytest.mark.parametrize("span", [-1, "soon", float("nan"), timedelta(-1), None, float("inf")])
def test_a_clock_refuses_what_is_no_time(span: Any):
    clock = Clock(START)
    with pytest.raises(InvalidOption, match="is no time"):
        clock.advance(span)
    with pytest.raises(InvalidOption, match="time zone"):
        clock.move_to(datetime(2031, 1, 1))  # noqa: DTZ001 - that is the mistake
    assert clock.now == START
