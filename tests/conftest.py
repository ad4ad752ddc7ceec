"""Fixtures that every test may use; a PostgreSQL server is started only if one asks for it."""

import gc
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from hypothesis import settings
from psycopg import sql

from pulsed import Pulse
from pulsed.rpc.client.store import RemoteStore
from pulsed.store.blocking import run_blocking
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import BACKENDS, QUICK, Backend, close_blocking
from tests.support.clock import Clock
from tests.support.faults import When
from tests.support.kept_sessions import forget_sessions
from tests.support.known_types import know_types
from tests.support.memory_folder import use_memory
from tests.support.own_sessions import administering
from tests.support.raw_streams import RawClient, raw_client
from tests.support.rewriting import rewrite_tests
from tests.support.scratch_postgres import ScratchPostgres
from tests.support.servers import FreshAuthenticator, ServerThread
from tests.support.session_postgres import SessionPostgres
from tests.support.spare_sessions import end_spare_sessions, keep_sessions_of, share_sessions
from tests.support.tokens import given

SESSION_POSTGRES = pytest.StashKey[SessionPostgres]()

# The suite draws the same examples every time. `--hypothesis-profile=long` searches for new ones.
settings.register_profile("suite", derandomize=True, deadline=None, database=None)
settings.register_profile("long", deadline=None, max_examples=5_000, stateful_step_count=100)
settings.load_profile("suite")

# Until all tests are collected: next to nothing of that is garbage, but looking for it takes a
# fifth of the time, in each process of a run.
gc.disable()

use_memory()
know_types()
share_sessions()


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # It runs in the background. Processes that tests start would ignore it as well.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses", None):  # those of xdist, which begin after this
        rewrite_tests(config)
    shared = getattr(config, "workerinput", {}).get("pulsed_postgres")
    config.stash[SESSION_POSTGRES] = (
        SessionPostgres.join(shared) if shared else SessionPostgres.prepare()
    )


@pytest.hookimpl(optionalhook=True)  # xdist's: in the main process, for each worker
def pytest_configure_node(node: Any) -> None:
    node.workerinput["pulsed_postgres"] = node.config.stash[SESSION_POSTGRES].share()


def pytest_collection_finish() -> None:
    """Let no later collection of garbage go through the suite itself, which takes 0.3 s."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[SESSION_POSTGRES].close()


def pytest_report_header() -> str:
    return f"postgres: {SessionPostgres.describe()}"


@pytest.fixture(scope="session")
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a database of this test process's own, empty at first."""
    server = request.config.stash[SESSION_POSTGRES].url()
    name = f"pulsed_test_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    url = urlsplit(server)._replace(path=f"/{name}").geturl()
    keep_sessions_of(url)
    yield url
    end_spare_sessions()
    forget_sessions()
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that sees and can end the others, on a database with tables and without jobs."""
    with administering(postgres_url) as connection:
        yield connection


@pytest.fixture
def postgres_server() -> Iterator[ScratchPostgres]:
    """A running server of the test's own, to kill and restart; takes 0.4 s."""
    with ScratchPostgres() as server:
        yield server


# -- stores ---------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    """The time, as far as ``store`` is concerned; ``clock.advance(30)`` lets it pass."""
    return Clock()


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Backend]:
    """An empty database of each kind: what is written against it holds for every store."""
    embedded = request.node.get_closest_marker("embedded")
    if request.param == "remote" and embedded is not None:
        pytest.skip(embedded.args[0])
    with BACKENDS[request.param](request, clock) as backend:
        yield backend


@pytest.fixture
async def store(backend: Backend) -> AsyncIterator[SqlStore]:
    """A store on an empty database of each kind, on the test's clock."""
    store = backend.open()
    yield store
    await store.aclose()


@pytest.fixture
def url(backend: Backend) -> str:
    """Where an app finds the database."""
    return backend.app_url


@pytest.fixture
def app(url: str) -> Iterator[Pulse]:
    """An app on that database, without jobs."""
    with Pulse(url) as app:
        yield app


@pytest.fixture
def live(backend: Backend) -> Iterator[SqlStore]:
    """A store with its tables on the real clock, for tests without an event loop."""
    store = backend.open(own_clock=False)
    run_blocking(store.now())
    yield store
    close_blocking(store)


# -- answers that get lost ------------------------------------------------------------------------


@pytest.fixture(params=["before", "after"])
def when(request: pytest.FixtureRequest) -> When:
    """Whether a connection is lost before or after the commit."""
    value: When = request.param
    return value


@pytest.fixture(params=[1, 2], ids=["once", "twice"])
def times(request: pytest.FixtureRequest) -> int:
    """How often it is lost."""
    count: int = request.param
    return count


# -- servers --------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The SQLite file that a test's server serves."""
    return tmp_path / "jobs.db"


@pytest.fixture
def server(database: Path) -> Iterator[ServerThread]:
    """A server of that file, in this process."""
    with ServerThread(lambda: SqliteStore(database)) as server:
        yield server


@pytest.fixture
async def far(server: ServerThread) -> AsyncIterator[RemoteStore]:
    """That file as a worker has it, through the server."""
    store = RemoteStore(server.url, QUICK)
    yield store
    await store.aclose()


@pytest.fixture
async def client(server: ServerThread) -> AsyncIterator[RawClient]:
    """A client that knows nothing but the contract."""
    async with raw_client(server.host) as client:
        yield client


@pytest.fixture
async def near(database: Path) -> AsyncIterator[SqliteStore]:
    """That file itself, as another process on the server's side of the network has it."""
    store = SqliteStore(database)
    yield store
    await store.aclose()


@pytest.fixture
def guarded(database: Path) -> Iterator[ServerThread]:
    """A server that asks for tokens."""
    store = SqliteStore(database)
    with ServerThread(lambda: store, authenticator=FreshAuthenticator(store)) as server:
        yield server


@pytest.fixture
def keys(database: Path) -> dict[str, str]:
    """A secret for each of three roles, by role."""
    store = SqliteStore(database)
    return {role: given(store, role, role) for role in ("produce", "work", "admin")}
