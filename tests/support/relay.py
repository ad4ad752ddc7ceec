"""What every TCP proxy of the tests has: a port, threads, and sockets to close at the end."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Relay:
    """Listens on a port of its own; a proxy says what becomes of a connection in ``_accept``."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()
        for thread in self._threads:
            thread.join(60)

    def hang_up(self) -> None:
        """Close every connection, and listen no more."""
        for each in [self._listener, *self._sockets]:
            close(each)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        raise NotImplementedError


def close(each: socket.socket) -> None:
    """Close a socket, also under a thread that waits for it."""
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
