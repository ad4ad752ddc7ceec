"""A TCP proxy that cuts a connection at a chosen message: before it arrives, just after it was
forwarded, or when the server has answered but the client has not heard.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal, Self

Moment = Literal["before", "during", "after"]


class CuttingProxy:
    """Stands between a client and ``host:port``; ``arm()`` it for one cut."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._marker: bytes | None = None
        self._moment: Moment = "before"
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def arm(self, marker: bytes, moment: Moment) -> None:
        """Cut the next connection on which the client sends ``marker``."""
        with self._lock:
            self._marker, self._moment = marker, moment

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._listener)
        for each in self._sockets:
            _close(each)
        for thread in self._threads:
            thread.join(5)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

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
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                moment = self._take(data)
                if moment == "before":
                    break
                if moment == "after":
                    doomed.set()  # before the answer can come
                server.sendall(data)
                if moment == "during":
                    break
        if not doomed.is_set():
            _close(client)
            _close(server)

    def _to_client(
        self, client: socket.socket, server: socket.socket, doomed: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                if doomed.is_set():
                    break
                client.sendall(data)
        _close(client)
        _close(server)

    def _take(self, data: bytes) -> Moment | None:
        with self._lock:
            if self._marker is None or self._marker not in data:
                return None
            self._marker = None
            self.cuts += 1
            return self._moment


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
