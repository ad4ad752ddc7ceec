"""A TCP proxy that cuts a connection at a chosen message: before it arrives, just after it was
forwarded, or when the server has answered but the client has not received the answer.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal

from tests.support.relay import Relay, close

Moment = Literal["before", "during", "after"]


class CuttingProxy(Relay):
    """Stands between a client and ``host:port``; ``arm()`` it for one cut."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self._server = (host, port)
        self.cuts = 0
        self._marker: bytes | None = None
        self._moment: Moment = "before"
        self._lock = threading.Lock()

    def arm(self, marker: bytes, moment: Moment) -> None:
        """Cut the next connection on which the client sends ``marker``."""
        with self._lock:
            self._marker, self._moment = marker, moment

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                doomed = threading.Event()
                self._start(self._to_server, client, server, doomed)
                self._start(self._to_client, client, server, doomed)

    def _to_server(
        self, client: socket.socket, server: socket.socket, doomed: threading.Event
    ) -> None:
        waits_for_the_answer = False
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                moment = self._take(data)
                if moment == "before":
                    break
                if moment is not None:
                    doomed.set()  # before the answer can come
                server.sendall(data)
                if moment == "during":
                    break
                waits_for_the_answer |= moment == "after"
        if not waits_for_the_answer:
            close(client)
            close(server)

    def _to_client(
        self, client: socket.socket, server: socket.socket, doomed: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if doomed.is_set():
                    break
                client.sendall(data)
        close(client)
        close(server)

    def _take(self, data: bytes) -> Moment | None:
        with self._lock:
            if self._marker is None or self._marker not in data:
                return None
            self._marker = None
            self.cuts += 1
            return self._moment
