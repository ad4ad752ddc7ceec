"""Serves the dashboard: over HTTP or HTTPS, alone or beside a worker or a server."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pulsed.app import Pulse
from pulsed.errors import ConfigError, MissingDriver
from pulsed.extras import install_command
from pulsed.listen_address import ListenAddress
from pulsed.web.access import Access, Local, Role, Tokens
from pulsed.web.dashboard import dashboard

STOP_WITHIN = 2
"""Seconds that open requests get at the end; event streams would never end by themselves."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Where the dashboard is served, and to whom."""

    listen: str = "127.0.0.1:8484"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    behind_proxy: str | None = None
    """The proxy's address: its X-Forwarded-For and X-Forwarded-Proto are believed."""
    root_path: str = ""
    """The path under which a proxy shows the dashboard."""
    auth: bool | None = None
    """Ask for a token; None: unless it listens on a loopback address."""
    role: Role = Role.VIEWER
    """The role of visitors without a token."""
    environment: str = ""

    @property
    def address(self) -> ListenAddress:
        """Where to listen."""
        return ListenAddress.parse(self.listen, "127.0.0.1:8484", needs_host=True)

    @property
    def access(self) -> Access:
        """Who is admitted. Refuses what would let other machines in unprotected."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both a certificate and its key.")
        is_local = self.address.is_loopback
        has_tls = self.tls_cert is not None or self.behind_proxy is not None
        if not is_local and not has_tls:
            raise ConfigError(
                f"{self.listen} can be reached from other machines, and tokens would cross the "
                "network in plain text. Give --tls-cert and --tls-key, or say with --behind-proxy "
                "which proxy does TLS; or listen on 127.0.0.1."
            )
        wants_tokens = self.auth if self.auth is not None else not (is_local and not has_tls)
        if wants_tokens:
            return Tokens()
        if not is_local or has_tls:
            raise ConfigError(
                f"{self.listen} can be reached from other machines, so visitors need tokens: leave "
                "--no-auth out, and make tokens with `pulsed token new`."
            )
        return Local(self.role)


class Served:
    """A dashboard that is being served."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ended = asyncio.Event()


@contextlib.asynccontextmanager
async def serving(app: Pulse, where: Serving) -> AsyncIterator[Served]:
    """Serve the dashboard of an app while the block runs; the caller handles signals."""
    if importlib.util.find_spec("uvicorn") is None:
        raise MissingDriver(
            f"The dashboard needs uvicorn, which is not installed: {install_command('ui')}"
        )
    site = dashboard(app, access=where.access, environment=where.environment)
    with _listening(where.address) as listener:
        server = _server(site, where)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        served = Served(_url(where, listener))
        task.add_done_callback(lambda _: served.ended.set())
        try:
            yield served
        finally:
            server.should_exit = True
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()


def _server(site: Any, where: Serving) -> Any:
    """Return uvicorn's server, which leaves the signals to the command that serves it."""
    import uvicorn  # noqa: PLC0415 - only where it is served

    server = uvicorn.Server(
        uvicorn.Config(
            site,
            log_level="warning",
            access_log=False,
            server_header=False,
            root_path=where.root_path.rstrip("/"),
            proxy_headers=where.behind_proxy is not None,
            forwarded_allow_ips=where.behind_proxy,
            ssl_certfile=where.tls_cert,
            ssl_keyfile=where.tls_key,
            timeout_graceful_shutdown=STOP_WITHIN,
            lifespan="off",
        )
    )
    setattr(server, "capture_signals", contextlib.nullcontext)  # noqa: B010 - a method of it
    return server


@contextlib.contextmanager
def _listening(address: ListenAddress) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address.host, address.port))
        except OSError as error:
            raise ConfigError(
                f"The dashboard cannot listen on {address}: {error.strerror}. Choose another "
                "port; port 0 takes a free one."
            ) from error
        listener.listen(128)
        listener.setblocking(False)
        yield listener


def _url(where: Serving, listener: socket.socket) -> str:
    address = replace(where.address, port=listener.getsockname()[1])
    scheme = "http" if where.tls_cert is None else "https"
    return f"{scheme}://{address}{where.root_path.rstrip('/')}/"
