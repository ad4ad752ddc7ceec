"""Addresses to listen on: of a server, of the dashboard, of metrics and probes."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from pulsed.errors import ConfigError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def parse(
        cls, text: str, example: str = f"{LOOPBACK}:9464", *, needs_host: bool = False
    ) -> ListenAddress:
        """Return the address in ``host:port``; without a host it is this machine only."""
        host, _, port = text.rpartition(":")
        if (needs_host and not host) or not port.isdecimal() or int(port) > 65_535:
            raise ConfigError(f"{text!r} is not an address to listen on; write {example}.")
        return cls(host.strip("[]") or LOOPBACK, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether it can be reached from this machine only."""
        return is_loopback(self.host)

    def next(self, number: int) -> ListenAddress:
        """Return the address so many ports further; port 0 takes a free one in any case."""
        if self.port + number > 65_535:
            raise ConfigError(f"{self} leaves no {number + 1:,} ports; choose a lower one.")
        return ListenAddress(self.host, self.port + number if self.port else 0)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by an address that no other machine can reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
