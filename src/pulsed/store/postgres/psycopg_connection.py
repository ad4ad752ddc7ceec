"""Opens psycopg connections, with a deadline for every answer.

libpq waits for an answer until the network reports an error, which may be never. So every wait has
a deadline here; a connection that misses it is dropped.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.pq import ConnStatus

from pulsed.store.fork import Gate
from pulsed.store.postgres import address as addresses
from pulsed.store.postgres import hosts as silence
from pulsed.store.postgres.address import PostgresAddress, PostgresOptions
from pulsed.store.postgres.errors import is_crowded
from pulsed.store.postgres.hosts import Hosts
from pulsed.store.postgres.session import Lane, Sessions

T = TypeVar("T")

A_MOMENT = 100
"""Milliseconds that most statements take at most."""
CANCEL_WITHIN = 5.0
"""Seconds for the cancellation of an interrupted statement."""

Prepared: TypeAlias = dict[str, bytes]
"""The names of one connection's prepared statements, by text; the driver keeps its own."""


class NoAnswer(psycopg.OperationalError):
    """The server, or the network before it, did not answer in time."""


class PsycopgConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection with a deadline for every answer."""

    answer_timeout: float = math.inf
    """Seconds that a statement may take."""
    is_replaced: Callable[[], bool] | None = None
    """Whether another host has replaced its own, if there are several."""
    opened_by = 0
    """The thread that has opened it; any other may use it later."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prepared: Prepared | None = {}
        """None behind a transaction pooler, where nothing is prepared."""
        self.encoding = self.info.encoding
        """Python's name of the client's encoding; nothing changes that later."""
        self._hears = _ear(self.fileno())

    @property
    def is_quiet(self) -> bool:
        """Whether there is no unread input, which on an idle session means that it was ended."""
        return self.pgconn.status != ConnStatus.BAD and not self._hears(0)

    def hears_soon(self) -> bool:
        """Wait a moment for input; an interrupt cancels the statement, as in ``wait``."""
        try:
            return bool(self._hears(A_MOMENT))
        except KeyboardInterrupt:
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=CANCEL_WITHIN)
            raise

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Run a statement, or any other wait of the driver, within the deadline."""
        return super().wait(_within(self.answer_timeout, gen, self.is_replaced), *args, **options)


def _within(
    seconds: float, gen: Generator[Any, Any, T], is_replaced: Callable[[], bool] | None
) -> Generator[Any, Any, T]:
    """Wrap a driver's generator, which is resumed ten times a second, with a deadline."""
    now = time.monotonic()
    deadline, check_at = now + seconds, now + silence.SILENT_AFTER
    replaced = False
    try:
        state = next(gen)
        while True:
            ready = yield state
            if replaced and not ready:  # no answer came during the check either
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
    """Opens connections, but not during a fork or while the server has no slot left."""

    def __init__(
        self, address: PostgresAddress, options: PostgresOptions, sessions: Sessions
    ) -> None:
        self._options = options
        self._sessions = sessions
        self.hosts = Hosts(address, self._accepts)
        self.gate = Gate()
        """Shut by a fork: libpq and its libraries hold locks while they open a first connection."""

    def forget_inherited(self) -> None:
        """Reset the state in a forked child."""
        self.gate.reset()
        self.hosts.forget_inherited()

    def open(
        self, lane: Lane, *, within: float, urgent: bool = False, **options: Any
    ) -> PsycopgConnection:
        """Open a connection to the first suitable host; ``urgent`` ignores the crowding backoff."""
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

    def _watch(self, connection: PsycopgConnection, *, urgent: bool) -> None:
        place = self.hosts.address.place_of(connection.info.host, connection.info.port)
        self.hosts.connected(place)
        if not urgent:  # an urgent verb's own timeout is shorter
            connection.is_replaced = lambda: self.hosts.is_replaced(place)

    def _connect(
        self, address: PostgresAddress, lane: Lane, within: float, **options: Any
    ) -> PsycopgConnection:
        settings, timeout = self._sessions.at_connect(lane), self._options.connect_timeout
        with self.gate:
            return PsycopgConnection.connect(
                **address.for_psycopg(settings, timeout, most=within), **options
            )

    def _accepts(self, host: PostgresAddress) -> bool | None:
        """Whether a host accepts a connection as the URL requires; None: it is up, but full."""
        try:
            self._connect(host, Lane.CHECK, addresses.HOST_WITHIN).close()
        except psycopg.Error as error:
            return None if is_crowded(error) else False
        return True


def _ear(descriptor: int) -> Callable[[int], object]:
    """Return a function that waits some milliseconds for unread input of a socket."""
    if not hasattr(select, "poll"):  # Windows
        return lambda within: select.select([descriptor], [], [], within / 1000)[0]
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll.poll
