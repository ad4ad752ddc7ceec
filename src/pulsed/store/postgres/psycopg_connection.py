"""One psycopg connection: how it is opened, and how long it waits for an answer.

libpq waits for an answer as long as the network takes to say that there will be none, which may be
for ever. So every wait has a deadline here; a connection that missed it is dropped.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import psycopg

from pulsed.store.fork import Gate
from pulsed.store.postgres import address as addresses
from pulsed.store.postgres import hosts as silence
from pulsed.store.postgres.address import Address, PostgresOptions
from pulsed.store.postgres.direct import Prepared
from pulsed.store.postgres.errors import is_crowded
from pulsed.store.postgres.hosts import Hosts
from pulsed.store.postgres.session import Lane, Sessions

T = TypeVar("T")


class NoAnswer(psycopg.OperationalError):
    """The server, or the network before it, was silent for too long."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for an answer for only so long."""

    patience: float = math.inf
    """Seconds that a statement may take."""
    is_replaced: Callable[[], bool] | None = None
    """Whether its host was replaced by another one, if there are several to go to."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prepared: Prepared = {}
        self._hears = _ear(self.fileno())

    @property
    def is_quiet(self) -> bool:
        """Whether the server has sent nothing since: what an idle session hears is its end."""
        return not self.closed and not self._hears()

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Run a statement, or whatever else the driver waits for."""
        return super().wait(_within(self.patience, gen, self.is_replaced), *args, **options)


def _within(
    seconds: float, gen: Generator[Any, Any, T], is_replaced: Callable[[], bool] | None
) -> Generator[Any, Any, T]:
    """Pass on a driver's generator, which hears ten times a second that nothing has come yet."""
    now = time.monotonic()
    deadline, check_at = now + seconds, now + silence.SILENT_AFTER
    replaced = False
    try:
        state = next(gen)
        while True:
            ready = yield state
            if replaced and not ready:  # nothing has come while we looked either
                raise NoAnswer("the host went silent, and another one has taken over")
            state = gen.send(ready)
            now = time.monotonic()
            if now >= deadline:
                raise NoAnswer(f"no answer within {seconds:g} s")
            if is_replaced is not None and now >= check_at:
                replaced = is_replaced()
                check_at = time.monotonic() + silence.SILENT_AFTER
    except StopIteration as finished:
        value: T = finished.value
        return value


class Connector:
    """Opens connections: none while a fork is under way, and none while the server is full."""

    def __init__(self, address: Address, options: PostgresOptions, sessions: Sessions) -> None:
        self._options = options
        self._sessions = sessions
        self.hosts = Hosts(address, self._accepts)
        self.gate = Gate()
        """libpq and what it loads have locks that are held while the first connection is made."""

    def forget_inherited(self) -> None:
        """Start afresh in a forked child."""
        self.gate.reset()
        self.hosts.forget_inherited()

    def open(
        self, lane: Lane, *, within: float, urgent: bool = False, **options: Any
    ) -> Connection:
        """Open a connection to the first host that will do; one that is urgent asks in any case."""
        crowding = self._sessions.crowding
        if not urgent:
            crowding.check()
        try:
            connection = self._connect(self.hosts.preferred(), lane, within, **options)
        except psycopg.Error as error:
            crowding.note(error)
            raise
        crowding.note(None)
        if self.hosts.several:
            self._watch(connection, urgent=urgent)
        return connection

    def _watch(self, connection: Connection, *, urgent: bool) -> None:
        place = self.hosts.address.place_of(connection.info.host, connection.info.port)
        self.hosts.connected(place)
        if not urgent:  # it gives up in its own time, and that is sooner
            connection.is_replaced = lambda: self.hosts.is_replaced(place)

    def _connect(self, address: Address, lane: Lane, within: float, **options: Any) -> Connection:
        settings, timeout = self._sessions.at_connect(lane), self._options.connect_timeout
        with self.gate:
            return Connection.connect(
                **address.for_psycopg(settings, timeout, most=within), **options
            )

    def _accepts(self, host: Address) -> bool | None:
        """Whether a host lets us in as the URL wants it; None: it is there, but is full."""
        try:
            self._connect(host, Lane.CHECK, addresses.HOST_WITHIN).close()
        except psycopg.Error as error:
            return None if is_crowded(error) else False
        return True


def _ear(descriptor: int) -> Callable[[], object]:
    """Return what tells whether the server has sent something that nobody has read."""
    if not hasattr(select, "poll"):  # Windows
        return lambda: select.select([descriptor], [], [], 0)[0]
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return lambda: poll.poll(0)
