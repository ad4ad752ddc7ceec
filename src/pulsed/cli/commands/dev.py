"""``pulsed dev``: a worker for the desk, which starts afresh when its source changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from pulsed.app import Pulse
from pulsed.cli.banner import announce
from pulsed.cli.commands.worker import loaded_for_work
from pulsed.cli.exits import CommandError, say
from pulsed.cli.logs import log_options, set_up_logs
from pulsed.cli.options.dashboard import dashboard_beside, dashboard_options
from pulsed.cli.options.monitoring import monitoring_options
from pulsed.cli.options.working import working_options
from pulsed.cli.reloading import SourceWatch, imported_under, sources_under
from pulsed.cli.view.suggestions import suggestions
from pulsed.engine.worker.options import WorkerSettings
from pulsed.engine.worker.worker import Exit, Worker
from pulsed.errors import ConfigError
from pulsed.metrics.monitoring import Monitoring
from pulsed.model.retention import Age
from pulsed.store.encoded import bare
from pulsed.store.sql_store.store import SqlStore

log = logging.getLogger("pulsed.dev")

POLL_INTERVAL = 0.2
DRAIN_TIMEOUT = 5.0
"""Seconds a reload waits for running jobs; then they are handed back, no attempt counted."""

RESTARTED = "--restarted"
"""Tells an interpreter that took the place of another one; it introduces itself no more."""

EXAMPLES = """\b
examples:
  pulsed dev shop.jobs:app
  pulsed dev shop.jobs:app --reload -c 10

\b
environment:
  PULSED_APP     the app, when none is given
  PULSED_URL     the database, when neither --url nor the app names one
  DATABASE_URL   the database, when PULSED_URL is not set either
  PULSED_KEEP    the default of --keep"""


@click.command(epilog=EXAMPLES)
@click.argument("app", required=False, metavar="[MODULE:APP]")
@click.option("--reload", is_flag=True, help="Restart when a source file changes.")
@working_options
@click.option("--url", metavar="URL", help="The database, instead of the app's.")
@dashboard_options(default=True)
@monitoring_options
@click.option(RESTARTED, is_flag=True, hidden=True)
@log_options
def dev(
    app: str | None,
    reload: bool,
    restarted: bool,
    url: str | None,
    ui: bool,
    ui_role: str,
    monitoring: Monitoring,
    keep: Mapping[str, Age] | None,
    max_connections: int | None,
    log_level: str,
    log_format: str,
    **options: Any,
) -> int:
    """Run a worker for development: creates the tables, and can reload when you edit."""
    set_up_logs(log_level, log_format)
    logging.getLogger("pulsed.job").setLevel(logging.DEBUG)  # how every job ends
    working = WorkerSettings(**options)  # type: ignore[typeddict-item]
    if working["drain_timeout"] is None:
        working["drain_timeout"] = DRAIN_TIMEOUT
    # From before they are read: an edit that comes meanwhile is a change, too.
    sources = SourceWatch(lambda: sources_under(Path.cwd())) if reload else None
    with _restart_after_repair(sources):
        loaded = loaded_for_work(app, url, keep, max_connections)
    if not restarted:  # then the log says what changed, and what runs now
        commands = suggestions(loaded, app, url)
        quiet = log_format == "json"
        announce(loaded, working, quiet=quiet, title="dev worker", try_next=commands)
    role = ui_role if ui else None
    running = _run(loaded, working, monitoring, reload=reload, dashboard_role=role)
    ended, changed = asyncio.run(running)
    if changed:
        _start_afresh()
    return ended.value


@contextlib.contextmanager
def _restart_after_repair(sources: SourceWatch | None) -> Iterator[None]:
    """With sources to watch, wait for an edit if the app cannot be loaded, and start afresh."""
    try:
        yield
    except (CommandError, ConfigError) as error:
        if sources is None:
            raise
        say(str(error))
        say("waiting for a change…")
        _wait_for_change(sources)
        _start_afresh()


async def _run(
    app: Pulse,
    working: WorkerSettings,
    monitoring: Monitoring,
    *,
    reload: bool,
    dashboard_role: str | None,
) -> tuple[Exit, set[Path]]:
    """Work until told to stop, or until a source changes; returns what changed."""
    async with app:
        store = bare(app.store)
        if isinstance(store, SqlStore):
            await store.migrate()
        async with dashboard_beside(app, dashboard_role):
            worker = app.worker(**working)
            async with monitoring.of_worker(worker):
                return await _work(worker, reload=reload)


async def _work(worker: Worker, *, reload: bool) -> tuple[Exit, set[Path]]:
    if not reload:
        return await worker.run(handle_signals=True), set()
    watching = asyncio.create_task(_stop_when_changed(worker))
    ended = await worker.run(handle_signals=True)
    if watching.done():
        return ended, watching.result()
    watching.cancel()
    return ended, set()


async def _stop_when_changed(worker: Worker) -> set[Path]:
    watch = SourceWatch(lambda: imported_under(Path.cwd()))
    while not (changed := watch.tick()):  # noqa: ASYNC110 - the file system sends no events
        await asyncio.sleep(POLL_INTERVAL)
    names = ", ".join(sorted(str(path.relative_to(Path.cwd())) for path in changed)[:5])
    log.info("changed: %s; restarting", names)
    worker.stop()
    return changed


def _wait_for_change(sources: SourceWatch) -> None:
    while not sources.tick():
        time.sleep(POLL_INTERVAL)


def _start_afresh() -> NoReturn:
    """Become a new interpreter with the same arguments."""
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [argument for argument in sys.argv[1:] if argument != RESTARTED]
    command = [sys.executable, "-m", "pulsed", *arguments, RESTARTED]
    if os.name == "nt":  # there, exec would leave the console to the shell
        sys.exit(subprocess.call(command))
    os.execv(sys.executable, command)
