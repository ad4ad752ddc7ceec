"""The storm with servers in between: workers and producers reach the database only through two of
them, and each second a worker or a server dies by SIGKILL.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

from tests.chaos import TICK, Storm, end

SERVERS = 2
QUIET = ["--log-level", "error"]


@dataclass
class ServerStorm(Storm):
    """Kills servers as well."""

    ports: list[int] = field(default_factory=list)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    servers_killed: int = 0

    def __post_init__(self) -> None:
        self.ports = _free_ports(SERVERS)
        self.servers = [self._start_server(port) for port in self.ports]
        for port in self.ports:
            _wait_for(port)

    @property
    def app_url(self) -> str:
        return "pulse://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def _start_server(self, port: int) -> subprocess.Popen[bytes]:
        listen = ["--listen", f"127.0.0.1:{port}", "--tick", f"{TICK}s"]
        return subprocess.Popen(
            [sys.executable, "-m", "pulsed", "server", "--url", self.url, *listen, *QUIET]
        )

    def _kill_one(self) -> None:
        super()._kill_one()
        victim = self.rng.choice(self.servers)
        if all(map(_is_up, self.ports)):  # never the last that answers
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            self.servers_killed += 1

    def _replace_the_dead(self) -> None:
        super()._replace_the_dead()
        self.servers = [
            server if server.poll() is None else self._start_server(port)
            for server, port in zip(self.servers, self.ports, strict=True)
        ]

    def _end(self) -> None:
        super()._end()
        end(self.servers)

    @property
    def has_killed(self) -> bool:
        return super().has_killed and self.servers_killed > 0

    @property
    def casualties(self) -> str:
        return f"{super().casualties} and {self.servers_killed} servers"


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _wait_for(port: int) -> None:
    give_up_at = time.monotonic() + 120
    while not _is_up(port):
        assert time.monotonic() < give_up_at, "the server never came up"
        time.sleep(0.05)


def _is_up(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
