"""``pulsed worker``: run an app's jobs, in this process or in several."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

import click

from pulsed.app import Pulse
from pulsed.cli.banner import announce
from pulsed.cli.logs import log_options, set_up_logs
from pulsed.cli.options.database import limited, point
from pulsed.cli.options.keep import changed
from pulsed.cli.options.loading import check_handlers, load_app
from pulsed.cli.options.monitoring import monitoring_options
from pulsed.cli.options.working import GIVEN, Forwarding, working_options
from pulsed.cli.variables import APP_VARIABLE
from pulsed.engine.process.collector import collect_less_often
from pulsed.engine.process.event_loop import run as run_loop
from pulsed.engine.process.supervisor import ABORT, DISMISSED, Supervisor
from pulsed.engine.worker.options import WorkerSettings
from pulsed.engine.worker.worker import Worker
from pulsed.metrics.monitoring import Monitoring
from pulsed.model.retention import Age

log = logging.getLogger("pulsed.worker")

EXAMPLES = """\b
examples:
  pulsed worker shop.jobs:app
  pulsed worker shop.jobs:app -q mail=3,default=1 -c 200
  pulsed worker shop.jobs:app --processes 4 --log-format json
  pulsed worker shop.jobs:app --metrics 127.0.0.1:9464

\b
signals:
  SIGTERM or Ctrl-C   finish what runs, claim nothing more; exits with 0
  SIGHUP              the same, when the terminal is closed; ignored under nohup
  the same again      hand back what runs, its attempt not counted; exits with 130
                      (within a second of the first it is taken for an echo, and ignored)

\b
environment:
  PULSED_APP         the app, when none is given
  PULSED_URL         the database, when neither --url nor the app names one
  DATABASE_URL       the database, when PULSED_URL is not set either
  PULSED_KEEP        the default of --keep
  PULSED_LOG_LEVEL   the default of --log-level
  PULSED_LOG_FORMAT  the default of --log-format
  PULSED_JOB_LOG     the default of --job-log"""


@click.command(cls=Forwarding, epilog=EXAMPLES)
@click.argument("app", required=False, metavar="[MODULE:APP]")
@working_options
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=1,
    show_default=True,
    help="Worker processes; dead ones are replaced.",
)
@click.option("--url", metavar="URL", help="The database, instead of the app's.")
@monitoring_options
@click.option("--supervised", type=click.IntRange(1), hidden=True)
@log_options
def worker(
    app: str | None,
    processes: int,
    url: str | None,
    keep: Mapping[str, Age] | None,
    max_connections: int | None,
    monitoring: Monitoring,
    supervised: int | None,
    log_level: str,
    log_format: str,
    **options: Any,
) -> int:
    """Run the jobs of an app until told to stop."""
    commands = _own_stdin() if supervised else None
    set_up_logs(log_level, log_format, with_pid=bool(supervised) or processes > 1)
    working = WorkerSettings(**options)  # type: ignore[typeddict-item]
    if processes > 1 and not supervised:
        monitoring.of_process(processes - 1)  # raises if there are not enough ports
        given = click.get_current_context().meta[GIVEN]
        begin = [sys.executable, "-m", "pulsed", "worker", "--supervised"]
        return Supervisor(lambda number: [*begin, str(number), *given], processes).run()
    loaded = loaded_for_work(app, url, keep, max_connections)
    announce(loaded, working, quiet=bool(supervised) or log_format == "json")
    monitored = monitoring.of_process(supervised - 1) if supervised else monitoring
    return run_loop(_run(loaded, working, monitored, commands))


def loaded_for_work(
    name: str | None,
    url: str | None,
    keep: Mapping[str, Age] | None = None,
    max_connections: int | None = None,
) -> Pulse:
    """Load an app, with all its handlers, on the database that the command line says."""
    app = load_app(name)
    point(app, url)
    app.settings = limited(app.settings, max_connections)
    app.retention = changed(app.retention, keep)
    check_handlers(app, name or os.environ[APP_VARIABLE])
    return app


async def _run(
    app: Pulse, working: WorkerSettings, monitoring: Monitoring, commands: int | None
) -> int:
    async with app:
        worker = app.worker(**working)
        if commands is not None:
            _obey_supervisor(worker, commands)
        async with monitoring.of_worker(worker):
            collect_less_often()
            ended = await worker.run(handle_signals=True)
        if worker.request is None:
            return ended.value
        return 0 if commands is None else DISMISSED


def _own_stdin() -> int:
    """Take the supervisor's pipe from stdin, where programs that handlers start would read it."""
    commands = os.dup(0)  # which no program inherits
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return commands


def _obey_supervisor(worker: Worker, commands: int) -> None:
    """Do what the supervisor writes to its pipe; when it has gone, however it died, drain."""
    loop = asyncio.get_running_loop()

    def tell(*, abort: bool) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            loop.call_soon_threadsafe(functools.partial(worker.stop, abort=abort))

    def listen() -> None:
        while heard := os.read(commands, 64):
            tell(abort=ABORT in heard)
        log.warning("the supervisor has exited; draining")
        tell(abort=False)

    threading.Thread(target=listen, name="pulsed-supervisor", daemon=True).start()
