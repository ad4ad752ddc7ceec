"""What a service manager such as systemd hears from its process: ready, alive, stopping.

The protocol is ``sd_notify``: a datagram of ``NAME=value`` lines to the socket that the environment
names. It is for the process that was started, so the variables are removed: job processes, worker
processes of a supervisor and programs that handlers start would report to it as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable

log = logging.getLogger("pulsed.service")

REPORT_EVERY = 5.0
"""Seconds between two reports of the state, or less if the watchdog of the manager wants it."""
LONGEST_STATUS = 500
"""Characters of a status line."""


class ServiceManager:
    """The manager of this process. Without one, every call does nothing."""

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self._address = address
        self.interval = min(REPORT_EVERY, watchdog / 2) if watchdog else REPORT_EVERY
        """Seconds between two reports: two for each period of the manager's watchdog."""

    @property
    def listens(self) -> bool:
        """Whether there is one."""
        return bool(self._address)

    @classmethod
    def take(cls) -> ServiceManager:
        """Return the manager that the environment names, and remove it from there."""
        address = os.environ.pop("NOTIFY_SOCKET", None)
        microseconds = os.environ.pop("WATCHDOG_USEC", "")
        is_watched = os.environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        if not (is_watched and microseconds.isdecimal()):
            return cls(address)
        return cls(address, int(microseconds) / 1_000_000)

    def ready(self, status: str) -> None:
        """Say that the process works."""
        self._send("READY=1", _status(status))

    def alive(self, *status: str) -> None:
        """Say that it still does; the manager restarts a process that says so too rarely."""
        self._send("WATCHDOG=1", *map(_status, status))

    def stopping(self, status: str) -> None:
        """Say that it ends; while it drains, it still has to be ``alive``."""
        self._send("STOPPING=1", _status(status))

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # An address that begins with @ is not in the file system.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), address)
        except (OSError, ValueError) as error:
            log.debug("the service manager at %s does not listen: %s", self._address, error)


@contextlib.asynccontextmanager
async def reporting(manager: ServiceManager, status: Callable[[], str]) -> AsyncIterator[None]:
    """Say that the process is ready, then from the event loop that it is alive, until the end.

    A loop that is stuck reports nothing, which is what the manager's watchdog has to see.
    """
    manager.ready(status())
    task = asyncio.create_task(_report(manager, status), name="pulsed-service")
    try:
        yield
    finally:
        task.cancel()


async def _report(manager: ServiceManager, status: Callable[[], str]) -> None:
    while manager.listens:
        await asyncio.sleep(manager.interval)
        manager.alive(status())


def _status(text: str) -> str:
    return "STATUS=" + " ".join(text.split())[:LONGEST_STATUS]
