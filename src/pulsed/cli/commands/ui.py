"""``pulsed ui``: serve the dashboard."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from pulsed.app import Pulse
from pulsed.cli.exits import Code, say
from pulsed.cli.logs import log_options, set_up_logs
from pulsed.cli.options.dashboard import ROLES
from pulsed.cli.options.database import Database, point
from pulsed.cli.options.loading import load_app
from pulsed.cli.variables import APP_VARIABLE
from pulsed.engine.process import event_loop as loop
from pulsed.engine.process.stop_signals import on_stop_signals
from pulsed.store.open import where

FILE = click.Path(dir_okay=False, path_type=Path)

EXAMPLES = """\b
examples:
  pulsed ui shop.jobs:app
  pulsed ui --url postgresql://localhost/shop --role operator
  pulsed ui shop.jobs:app --listen 0.0.0.0:8484 --tls-cert cert.pem --tls-key key.pem
  pulsed token new ada --role operate

\b
roles:
  viewer     sees everything, payloads only on this machine; changes nothing
  operator   retries, cancels and signals jobs, pauses and runs schedules
  admin      enqueues, edits and deletes, too

\b
environment:
  PULSED_APP     the app, when none is given
  PULSED_URL     the database, when neither --url nor the app says
  DATABASE_URL   the database, when PULSED_URL is not set either"""


@click.command(epilog=EXAMPLES)
@click.argument("app", required=False, metavar="[MODULE:APP]")
@click.option("--url", metavar="URL", help="The database, instead of the app's.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8484",
    show_default=True,
    help="Where to serve; port 0 takes a free one.",
)
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="viewer",
    show_default=True,
    help="What visitors from this machine may do.",
)
@click.option(
    "--auth/--no-auth",
    default=None,
    help="Ask for a token [default: unless on a loopback address].",
)
@click.option("--tls-cert", type=FILE, metavar="FILE", help="Serve with TLS: the certificate.")
@click.option("--tls-key", type=FILE, metavar="FILE", help="Its private key.")
@click.option(
    "--behind-proxy",
    metavar="ADDRESS",
    help="A proxy with this address terminates TLS; trust its X-Forwarded headers.",
)
@click.option(
    "--root-path", metavar="PATH", default="", help="The path that a proxy serves it under."
)
@click.option("--environment", metavar="TEXT", default="", help="Shown below the navigation.")
@log_options
def ui(
    app: str | None, url: str | None, role: str, log_level: str, log_format: str, **options: Any
) -> int:
    """Serve the dashboard: watch and manage jobs in a browser."""
    set_up_logs(log_level, log_format)
    from pulsed.web.access import Role  # noqa: PLC0415 - only with the extra
    from pulsed.web.serve import Serving  # noqa: PLC0415

    serving = Serving(role=Role[role.upper()], **options)
    serving.access  # noqa: B018 - refuses what is unsafe before anything is opened
    return loop.run(_serve(_app(app, url), serving))


def _app(name: str | None, url: str | None) -> Pulse:
    if name or (os.environ.get(APP_VARIABLE) and not url):
        app = load_app(name)
        point(app, url)
        return app
    found, settings = Database(url).resolved()
    app = Pulse(found)
    app.settings = settings
    return app


async def _serve(app: Pulse, how: Any) -> int:
    from pulsed.web.serve import serving  # noqa: PLC0415 - only with the extra

    asked = asyncio.Event()

    def stop(*, abort: bool) -> None:  # noqa: ARG001 - nothing is left undone either way
        asked.set()

    async with app:
        await app.store.now()  # report now what a retry cannot fix
        with on_stop_signals(asyncio.get_running_loop(), stop):
            async with serving(app, how) as served:
                say(f"dashboard of {where(app.url)}: {served.url}")
                was_asked = await loop.ends_first(asked.wait(), served.ended.wait())
    return Code.OK if was_asked else Code.FAILURE
