"""A TCP proxy that falls silent: its connections stay open, and nothing passes any more.

So does a firewall that forgot them, or a machine that lost its power. New connections work.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self
from urllib.parse import urlsplit


class SilentProxy:
    """Stands between a client and the server of ``url``."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._server = (address.hostname, address.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", 0))
        login, at, _ = address.netloc.rpartition("@")
        place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = address._replace(netloc=f"{login}{at}{place}").geturl()
        self.accepted = 0
        self._silent = threading.Event()
        self._deaf = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def silence(self, *, also_new: bool = False) -> None:
        """Let nothing more pass on the connections there are, and perhaps on later ones."""
        self._silent.set()
        self._silent = threading.Event()
        self._deaf = also_new

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for each in [self._listener, *self._sockets]:
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
                self.accepted += 1
                self._sockets.append(client)
                if self._deaf:
                    continue
                server = socket.create_connection(self._server)
                self._sockets.append(server)
                self._start(_pump, client, server, self._silent)
                self._start(_pump, server, client, self._silent)


def _pump(source: socket.socket, target: socket.socket, silent: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            if not silent.is_set():
                target.sendall(data)
    if not silent.is_set():
        _close(source)
        _close(target)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
