"""The state of the process that is scraped: of its worker, or of its server."""

from __future__ import annotations

from typing import NamedTuple

from pulsed.model.job import WorkerInfo


class ServerState(NamedTuple):
    """The state of a server."""

    streams: int
    """Workers that are connected."""
    refused: int
    """Calls that it refused since its start."""


class ProcessState(NamedTuple):
    """The state of a process."""

    state: str
    """As ``Worker.state`` and ``Server.state``."""
    worker: WorkerInfo | None = None
    server: ServerState | None = None

    @property
    def is_draining(self) -> bool:
        """Whether it takes no more work."""
        return self.state == "draining"
