"""A TCP proxy that falls silent: its connections stay open, and nothing passes any more.

So does a firewall that forgot them, or a machine that lost its power. New connections work.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit

from tests.support.relay import Relay, close


class SilentProxy(Relay):
    """Stands between a client and the server of ``url``."""

    def __init__(self, url: str) -> None:
        super().__init__()
        address = urlsplit(url)
        self._server = (address.hostname, address.port or 5432)
        login, at, _ = address.netloc.rpartition("@")
        place = f"127.0.0.1:{self.port}"
        self.url = address._replace(netloc=f"{login}{at}{place}").geturl()
        self.accepted = 0
        self._silent = threading.Event()
        self._deaf = False

    def silence(self, *, also_new: bool = False) -> None:
        """Let nothing more pass on the connections there are, and perhaps on later ones."""
        self._silent.set()
        self._silent = threading.Event()
        self._deaf = also_new

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
        close(source)
        close(target)
