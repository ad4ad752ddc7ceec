"""An ASGI application behind a real HTTP server in a thread of the test's process."""

from __future__ import annotations

import socket
import threading
from typing import Any

import uvicorn


class WebServer:
    """Serves an application on a free port of the loopback address until ``stop()``."""

    def __init__(self, app: Any) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"http://{self.host}"
        # A page that is still open, with its stream of events, must not hold up the end.
        options: dict[str, Any] = {"ws": "none", "timeout_graceful_shutdown": 2}
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **options))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        # It listens already, so requests wait until it has started; if that fails they are refused.
        with self._listener:
            self._server.run(sockets=[self._listener])
