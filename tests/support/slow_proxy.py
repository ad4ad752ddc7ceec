"""A TCP proxy that is slow: what passes arrives later, each time a little differently, or by drips.

Nothing is lost or reordered, as on a connection that is only bad.
"""

from __future__ import annotations

import contextlib
import queue
import random
import socket
import threading
import time
from dataclasses import dataclass

from tests.support.relay import Relay, close


@dataclass(frozen=True)
class Pace:
    """How slow it is: seconds of delay for all that passes, and bytes in each drip."""

    latency: float = 0.0
    jitter: float = 0.0
    drip: int = 0
    """0: all that is there at once."""
    every: float = 0.01
    """Seconds between two drips."""


class SlowProxy(Relay):
    """Stands between a client and ``host:port``; as quick as it can be until ``slow_down()``."""

    def __init__(self, host: str, port: int, pace: Pace | None = None) -> None:
        super().__init__()
        self._server = (host, port)
        self._random = random.Random(1)
        self._now = _Changing(pace or Pace())
        self.url = f"pulse://127.0.0.1:{self.port}"
        self.accepted = 0

    def slow_down(self, pace: Pace) -> None:
        """Be so slow from now on, on every connection."""
        self._now.pace = pace

    def slow_down_what_is_open(self, pace: Pace) -> None:
        """Be so slow on the connections there are; new ones are quick."""
        self._now.pace = pace
        self._now = _Changing(Pace())

    def hold(self) -> None:
        """Keep what is in flight until ``let_go()``."""
        self._now.flows.clear()

    def let_go(self) -> None:
        """Deliver what was kept, in its order."""
        self._now.flows.set()

    def __exit__(self, *_: object) -> None:
        self.let_go()
        super().__exit__()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                for source, target in ((client, server), (server, client)):
                    target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    under_way: queue.Queue[tuple[float, bytes]] = queue.Queue()
                    self._start(self._take, source, under_way, self._now)
                    self._start(self._deliver, target, under_way, self._now)

    def _take(
        self, source: socket.socket, under_way: queue.Queue[tuple[float, bytes]], now: _Changing
    ) -> None:
        data = b"x"
        while data:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            pace = now.pace
            delay = pace.latency + self._random.uniform(0, pace.jitter)
            under_way.put((time.monotonic() + delay, data))

    def _deliver(
        self, target: socket.socket, under_way: queue.Queue[tuple[float, bytes]], now: _Changing
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = under_way.get()
                time.sleep(max(0.0, due - time.monotonic()))
                now.flows.wait()
                if not data:
                    break
                while data:
                    pace = now.pace
                    size = pace.drip or len(data)
                    target.sendall(data[:size])
                    data = data[size:]
                    if pace.drip:
                        time.sleep(pace.every)
        close(target)


class _Changing:
    """The pace of some connections, which may change under them."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.flows = threading.Event()
        self.flows.set()
