"""Sessions of stores on PostgreSQL that outlive their test and serve the next one.

A new session costs the server 4 ms, and as much again with its first statements, before which it
has to read about our tables. So a session that a store closes in good order is reset, as poolers
do it, and kept: the next store that opens a session with the same settings gets it. To drivers,
stores and queries for a store's sessions, it has ended and begins anew. Only sessions of the
database that all tests of a process share are kept, and only in this process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache, partial
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import asyncpg
import psycopg
from asyncpg import connect_utils
from asyncpg.protocol import Protocol as AsyncpgProtocol
from psycopg import pq

from pulsed.store.postgres.asyncpg_connection import AsyncpgConnection
from pulsed.store.postgres.psycopg_connection import PsycopgConnection

T = TypeVar("T", bound="Session")

AWAY = b"SET application_name = 'spare'"
BACK = b"RESET application_name"
PATIENCE = 10.0
"""Seconds for the answer to these, which the server gives at once."""

MOST = 8
"""Sessions of each driver that are kept, of the last tests: most tests open the same ones."""

_databases: set[tuple[str | None, int | None, str]] = set()
"""Those whose sessions are kept: host, port and name."""


def keep_sessions_of(url: str) -> None:
    """Keep sessions of this database from now on."""
    parts = urlsplit(url)
    _databases.add((parts.hostname, parts.port, parts.path.removeprefix("/")))


def end_spare_sessions() -> None:
    """Close all: for a test whose sessions must begin anew, and at the end."""
    for spares in (_sockets, _libpq):
        spares.close()


class Session(Protocol):
    """What can be kept."""

    def ask(self, *statements: bytes) -> bool:
        """Whether these end well, outside of a transaction."""

    def close(self) -> None:
        """End it."""


class Spares(Generic[T]):
    """Idle sessions of one driver, with the settings that they began with; the oldest first."""

    def __init__(self) -> None:
        self._kept: list[tuple[Hashable, T]] = []
        self._lock = threading.Lock()
        self._inherited: list[object] = []
        # Not closed in a forked child: that would tell the server to end its parent's sessions.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._inherited.append(self._kept)
        self._kept, self._lock = [], threading.Lock()

    def put(self, key: Hashable, session: T) -> None:
        """Reset a session and keep it, in the place of the oldest if there are too many."""
        if not session.ask(b"DISCARD ALL", AWAY):
            session.close()
            return
        with self._lock:
            self._kept.append((key, session))
            surplus = self._kept.pop(0)[1] if len(self._kept) > MOST else None
        if surplus is not None:
            surplus.close()

    def take(self, key: Hashable) -> T | None:
        """Return the last one with these settings that still lives."""
        while session := self._last(key):
            if session.ask(BACK):
                return session
            session.close()
        return None

    def _last(self, key: Hashable) -> T | None:
        with self._lock:
            for place in reversed(range(len(self._kept))):
                if self._kept[place][0] == key:
                    return self._kept.pop(place)[1]
        return None

    def close(self) -> None:
        """Close all."""
        while self._kept:
            self._kept.pop()[1].close()


# -- asyncpg --------------------------------------------------------------------------------------


class Spare:
    """The socket of a session, and how the server greeted whoever opened it."""

    def __init__(self, sock: socket.socket, greeting: bytes) -> None:
        self.socket = sock
        self.greeting = greeting

    def ask(self, *statements: bytes) -> bool:
        """Whether these end well, outside of a transaction."""
        ends: list[bytes] = []
        try:
            self.socket.sendall(b"".join(message(b"Q", text + b"\0") for text in statements))
            with self.socket.makefile("rb") as answer:
                while len(ends) < len(statements):
                    kind, size = struct.unpack("!cI", answer.read(5))
                    content = answer.read(size - 4)
                    if kind in b"EZ":
                        ends.append(kind + content)
        except (OSError, struct.error):  # it was cut off
            return False
        return ends == [b"ZI"] * len(statements)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.sendall(message(b"X"))
        self.socket.close()


def message(kind: bytes, content: bytes = b"") -> bytes:
    """Write a message of PostgreSQL's protocol."""
    return kind + struct.pack("!I", 4 + len(content)) + content


TERMINATE = message(b"X")
REPORTED = (
    "application_name", "client_encoding", "DateStyle", "default_transaction_read_only",
    "in_hot_standby", "integer_datetimes", "IntervalStyle", "is_superuser", "scram_iterations",
    "search_path", "server_encoding", "server_version", "session_authorization",
    "standard_conforming_strings", "TimeZone",
)  # fmt: skip
"""Settings that servers report to a client that connects."""


def greeting_of(connection: asyncpg.Connection) -> bytes:
    """Return what a server tells a client that connects, as this one was told."""
    settings, protocol = connection.get_settings(), connection._protocol
    reported = {name: getattr(settings, name, None) for name in REPORTED}
    secret = struct.pack("!I", protocol.backend_pid) + as_bytes(protocol.backend_secret)
    return b"".join(
        [
            message(b"R", struct.pack("!I", 0)),
            *(
                message(b"S", f"{name}\0{value}\0".encode())
                for name, value in reported.items()
                if value is not None
            ),
            message(b"K", secret),
            message(b"Z", b"I"),
        ]
    )


def as_bytes(secret: int | bytes) -> bytes:
    return secret if isinstance(secret, bytes) else struct.pack("!i", secret)


class Transport:
    """asyncpg's way to the server, which can leave its socket to the next connection."""

    def __init__(self, transport: asyncio.Transport, key: Hashable) -> None:
        self._transport = transport
        self._key = key
        self.greet: Callable[[], None] | None = None
        """Answers a client's first message, in which it introduces itself, if nothing else does."""
        self.greeting: bytes | None = None
        """What the next connection is told, if this one leaves its socket."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: Any) -> None:
        if self.greet is not None:
            asyncio.get_running_loop().call_soon(self.greet)
            self.greet = None
        elif self.greeting is not None and bytes(data) == TERMINATE:
            self._leave(self.greeting)
        else:
            self._transport.write(data)

    def _leave(self, greeting: bytes) -> None:
        sock = self._transport.get_extra_info("socket").dup()
        sock.settimeout(PATIENCE)
        spare = Spare(sock, greeting)
        self._transport.abort()
        _sockets.put(self._key, spare)


class Opening(asyncio.Protocol):
    """Puts our transport between asyncpg's protocol and the real one."""

    def __init__(self, protocol: AsyncpgProtocol, key: Hashable, spare: Spare | None) -> None:
        self._protocol = protocol
        self._key = key
        self._spare = spare

    def connection_made(self, transport: Any) -> None:
        self.transport = Transport(transport, self._key)
        if self._spare is not None:
            self.transport.greet = partial(self._protocol.data_received, self._spare.greeting)
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(self.transport)


CONNECT = connect_utils.__dict__["__connect_addr"]


async def connect_with_asyncpg(*given: Any) -> asyncpg.Connection:
    """Connect to a server, or take a session that was kept; in the place of asyncpg's function."""
    params, _, addr, loop, config, connection_class, record_class, params_input = given
    if (*addr, params.database) not in _databases or connection_class is not AsyncpgConnection:
        return await CONNECT(*given)
    key = (addr, params.user, params.database, *sorted(params.server_settings.items()))
    spare = _sockets.take(key)
    connected = loop.create_future()
    opening = Opening(AsyncpgProtocol(addr, connected, params, record_class, loop), key, spare)
    where = {"host": addr[0], "port": addr[1]} if spare is None else {"sock": spare.socket}
    transport, protocol = await loop.create_connection(lambda: opening, **where)
    try:
        await connected
    except BaseException:
        transport.close()
        raise
    connection = connection_class(
        protocol._protocol, opening.transport, loop, addr, config, params_input
    )
    protocol._protocol.set_connection(connection)
    return connection


async def close_asyncpg(connection: AsyncpgConnection, **options: Any) -> None:
    """Close a connection; its session is kept if it is idle."""
    transport = connection._transport
    if isinstance(transport, Transport) and not (
        connection.is_closed() or connection.is_in_transaction()
    ):
        transport.greeting = greeting_of(connection)
    await asyncpg.Connection.close(connection, **options)


# -- psycopg --------------------------------------------------------------------------------------


class SpareLibpq:
    """A connection of libpq, without one of psycopg's around it."""

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self.pgconn = pgconn

    def ask(self, *statements: bytes) -> bool:
        """Whether these end well."""
        return all(
            self.pgconn.exec_(statement).status == pq.ExecStatus.COMMAND_OK
            for statement in statements
        )

    def close(self) -> None:
        self.pgconn.finish()


class Libpq(Spares[SpareLibpq]):
    """Sessions as psycopg left them, for the next test.

    In its own test none may come back: stores close sessions after errors in the same way, and
    tests expect that those are given up.
    """

    def __init__(self) -> None:
        super().__init__()
        self._for_the_next: list[tuple[Hashable, SpareLibpq]] = []

    def put(self, key: Hashable, session: SpareLibpq) -> None:
        session.ask(AWAY)
        self._for_the_next.append((key, session))
        while len(self._for_the_next) > MOST:
            self._for_the_next.pop(0)[1].close()

    def next_test(self) -> None:
        """Offer what the last test left."""
        while self._for_the_next:
            super().put(*self._for_the_next.pop(0))

    def _forget(self) -> None:
        super()._forget()
        self._inherited.append(self._for_the_next)
        self._for_the_next = []

    def close(self) -> None:
        self.next_test()
        super().close()


CONNECT_PSYCOPG = psycopg.Connection.connect.__func__  # type: ignore[attr-defined]
OF_THE_CONNECTION = {"autocommit", "cursor_factory", "prepare_threshold", "connect_timeout"}
"""Arguments of ``connect`` that the server does not learn."""


def connect_with_psycopg(cls: type[PsycopgConnection], /, **options: Any) -> PsycopgConnection:
    """Connect to a server, or take a session that was kept; in the place of psycopg's method."""
    key = frozenset((name, options[name]) for name in options.keys() - OF_THE_CONNECTION)
    if (spare := _libpq.take(key)) is None:
        connection: PsycopgConnection = CONNECT_PSYCOPG(cls, **options)
    else:
        connection = cls(spare.pgconn)
        connection._autocommit = options.get("autocommit", False)
        connection.cursor_factory = options.get("cursor_factory", psycopg.Cursor)
        connection.prepare_threshold = options.get("prepare_threshold", 5)
    if (connection.info.host, connection.info.port, connection.info.dbname) in _databases:
        _keys[connection] = key
    return connection


_keys: WeakKeyDictionary[PsycopgConnection, Hashable] = WeakKeyDictionary()


def close_psycopg(connection: PsycopgConnection) -> None:
    """Close a connection; its session is kept if it is idle."""
    key, pgconn = _keys.pop(connection, None), connection.pgconn
    idle = pgconn.transaction_status == pq.TransactionStatus.IDLE
    if key is not None and idle and connection.is_quiet:
        connection.pgconn = closed_libpq()
        _libpq.put(key, SpareLibpq(pgconn))
    psycopg.Connection.close(connection)


@cache
def closed_libpq() -> pq.abc.PGconn:
    """Return what a connection has that is closed."""
    pgconn = pq.PGconn.connect_start(b"host=127.0.0.1 port=1")
    pgconn.finish()
    return pgconn


_sockets, _libpq = Spares[Spare](), Libpq()
next_test = _libpq.next_test


def share_sessions() -> None:
    """Give stores of this process spare sessions from now on."""
    vars(connect_utils)["__connect_addr"] = connect_with_asyncpg
    replaced: Any = AsyncpgConnection
    replaced.close = close_asyncpg
    replaced = PsycopgConnection
    replaced.connect, replaced.close = classmethod(connect_with_psycopg), close_psycopg
