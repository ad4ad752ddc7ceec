"""``pulsed server``: serve a database's jobs to producers and workers that do not hold it."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pulsed.app import Pulse
from pulsed.cli.exits import Code, CommandError
from pulsed.cli.logs import log_options, set_up_logs
from pulsed.cli.options.dashboard import dashboard_beside, dashboard_options
from pulsed.cli.options.database import Database, database_options, limited, max_connections_option
from pulsed.cli.options.durations import time_option
from pulsed.cli.options.keep import changed, keep_option
from pulsed.cli.options.monitoring import monitoring_options
from pulsed.engine.process import event_loop as loop
from pulsed.engine.process.collector import collect_less_often
from pulsed.engine.process.service_manager import ServiceManager, reporting
from pulsed.engine.process.stop_signals import on_stop_signals
from pulsed.errors import MissingDriver
from pulsed.extras import install_command
from pulsed.metrics.monitoring import Monitoring
from pulsed.metrics.process import ProcessState, ServerState
from pulsed.model.retention import Retention
from pulsed.rpc.open import is_remote
from pulsed.rpc.server.exposure import check_exposure, parsed
from pulsed.store.open import open_store, require_for, where
from pulsed.store.sql_store.store import SqlStore
from pulsed.version import __version__
from pulsed.wording import counted

if TYPE_CHECKING:
    from pulsed.rpc.server.server import Server

log = logging.getLogger("pulsed.server")

SHARE = 0.0005
"""Seconds for which a thread with a large request keeps the loop with all the others waiting."""

FILE = click.Path(dir_okay=False, path_type=Path)

EXAMPLES = """\b
examples:
  pulsed server --url sqlite:///jobs.db
  pulsed server --url postgresql://localhost/shop --listen 127.0.0.1:50051
  PULSED_URL=pulse://127.0.0.1:50051 pulsed worker shop.jobs:app
  pulsed server --listen 0.0.0.0:50051 --tls-cert cert.pem --tls-key key.pem

\b
signals:
  SIGTERM or Ctrl-C   send the workers to other servers, finish calls; exits with 0
  SIGHUP              the same, when the terminal is closed; ignored under nohup
  the same again      end at once; exits with 130

\b
environment:
  PULSED_URL, DATABASE_URL, PULSED_APP   the database, when --url and --app are not given
  PULSED_KEEP                            the default of --keep"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:50051",
    show_default=True,
    help="Where to serve; port 0 takes a free one.",
)
@click.option("--tls-cert", type=FILE, metavar="FILE", help="Serve with TLS: the certificate.")
@click.option("--tls-key", type=FILE, metavar="FILE", help="Its private key.")
@click.option(
    "--client-ca", type=FILE, metavar="FILE", help="Ask clients for certificates of this authority."
)
@click.option(
    "--auth/--no-auth",
    default=None,
    help="Ask for a token or a certificate [default: unless on a loopback address].",
)
@click.option(
    "--insecure", is_flag=True, help="Serve other machines without TLS or authentication."
)
@click.option(
    "--no-upkeep",
    "upkeep",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Leave recovery, schedules and retention to other servers or workers.",
)
@time_option("--tick", "Interval between two scans for expired leases.", default="10s")
@time_option("--drain-timeout", "Time for workers to move to another server.", default="10s")
@click.option(
    "--max-message",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    metavar="MIB",
    help="The largest request.",
)
@click.option(
    "--max-streams",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Workers connected at a time.",
)
@click.option("--reflection", is_flag=True, help="Enable reflection, for tools like grpcurl.")
@monitoring_options
@dashboard_options(default=False)
@max_connections_option
@keep_option
@database_options
@log_options
def server(
    database: Database,
    insecure: bool,
    monitoring: Monitoring,
    max_connections: int | None,
    log_level: str,
    log_format: str,
    **options: Any,
) -> int:
    """Serve a database's jobs over gRPC, to workers in any language."""
    set_up_logs(log_level, log_format)
    # Before gRPC is imported: it would write a line about every compressed request it refuses.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    url, settings = database.resolved()
    if is_remote(url):
        raise CommandError(
            "a server needs a database, not another server; give its URL.", Code.USAGE
        )
    require_for("A server", "server", "grpc", "grpc_health")
    if options["reflection"]:
        _require_reflection()
    options["credentials"] = _credentials(options)
    if options["auth"] is None:
        options["auth"] = not (parsed(options["listen"]).is_loopback or insecure)
    tls = options["credentials"] is not None
    check_exposure(options["listen"], tls=tls, credentials=options["auth"], insecure=insecure)
    return loop.run(_serve(url, limited(settings, max_connections), monitoring, options))


def _require_reflection() -> None:
    if importlib.util.find_spec("grpc_reflection") is None:
        raise MissingDriver(
            "--reflection needs grpc_reflection, which is not installed: "
            f"{install_command('reflection')}"
        )


def _credentials(options: Mapping[str, Any]) -> Any:
    """Return what TLS needs; None without it."""
    cert, key, authority = options["tls_cert"], options["tls_key"], options["client_ca"]
    if cert is None and key is None and authority is None:
        return None
    if cert is None or key is None:
        raise CommandError("TLS needs both --tls-cert and --tls-key.", Code.USAGE)
    import grpc  # noqa: PLC0415 - after the check that it is there

    try:
        pair = (key.read_bytes(), cert.read_bytes())
        roots = None if authority is None else authority.read_bytes()
    except OSError as error:
        raise CommandError(f"a file for TLS cannot be read: {error}", Code.USAGE) from error
    return grpc.ssl_server_credentials(
        [pair], root_certificates=roots, require_client_auth=authority is not None
    )


async def _serve(
    url: str, settings: Any, monitoring: Monitoring, options: Mapping[str, Any]
) -> int:
    from pulsed.rpc.server.authentication import TokenAuthenticator  # noqa: PLC0415 - heavy, as is the next
    from pulsed.rpc.server.server import Server, ServerOptions  # noqa: PLC0415

    sys.setswitchinterval(SHARE)
    store = open_store(url, settings)
    assert isinstance(store, SqlStore)
    serving = Server(
        store,
        ServerOptions(
            listen=options["listen"],
            credentials=options["credentials"],
            upkeep=options["upkeep"],
            retention=changed(Retention(), options["keep"]),
            tick=options["tick"],
            drain_timeout=options["drain_timeout"],
            largest_message=options["max_message"] * 1024 * 1024,
            most_streams=options["max_streams"],
            reflection=options["reflection"],
        ),
        TokenAuthenticator(store) if options["auth"] else None,
    )
    try:
        await store.now()  # report now what a retry cannot fix
        async with monitoring.serving(store, lambda: _state(serving)):
            await serving.start()
            host = options["listen"].rpartition(":")[0]
            what = f"pulsed {__version__} serves {where(url)} on {host}:{serving.port}"
            role = options["ui_role"] if options["ui"] else None
            async with dashboard_beside(Pulse.over(store, url), role, required=True):
                collect_less_often()
                return await _until_told_to_stop(serving, what)
    finally:
        await store.aclose()


def _state(serving: Server) -> ProcessState:
    state = ServerState(serving.open_streams, serving.refusals.total)
    return ProcessState(serving.state, server=state)


async def _until_told_to_stop(serving: Any, what: str) -> int:
    drain_requested, abort_requested = asyncio.Event(), asyncio.Event()

    def stop(*, abort: bool) -> None:
        (abort_requested if abort else drain_requested).set()

    def status() -> str:
        return f"{serving.state}: {counted(serving.open_streams, 'worker')} connected"

    manager = ServiceManager.take()
    with on_stop_signals(asyncio.get_running_loop(), stop):
        log.info("%s", what)  # from here on a signal drains
        async with reporting(manager, status):
            if not await loop.ends_first(drain_requested.wait(), serving.failed()):
                return Code.FAILURE  # a loop ended, and has logged why
            manager.stopping(status())
            if not await loop.ends_first(serving.drain(), abort_requested.wait()):
                await serving.stop()
                return Code.INTERRUPTED
    log.info("server ended")
    return Code.OK
