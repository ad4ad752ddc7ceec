"""``pulsed jobs watch``: follow one job to its end."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from uuid import UUID

import click

from pulsed.cli.exits import Code
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.options.durations import time_option
from pulsed.cli.options.job_ids import find_id
from pulsed.cli.view.job_progress import JobBar, ProgressJson, ProgressLines, ProgressView, Sighting
from pulsed.cli.view.output import console, for_people, json_option
from pulsed.client.one_job import read_one
from pulsed.engine.held_back import why
from pulsed.engine.process.stop_signals import stop_signals
from pulsed.errors import StorageError
from pulsed.model.job import JobRow, Status
from pulsed.model.lifecycle import CLAIMABLE, TERMINAL
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking


@click.command("watch", short_help="Follow one job to its end, with a progress bar.")
@click.argument("job_id", metavar="ID")
@time_option("--interval", "How often to read the job.", default="0.5s")
@json_option
@database_options
def watch(database: Database, job_id: str, interval: float, as_json: bool | None) -> int:
    """Follow one job until it ends: its status, and the progress that its handler reports.

    A bar on a terminal, a line of JSON for each change in a pipe. Exits with 7 if the job fails or
    is cancelled.

    \b
    Example:
      pulsed jobs watch 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69
    """
    with database.store() as store, _view(as_json=as_json) as view:
        return _follow(store, find_id(store, job_id), interval, view)


def _follow(store: Store, job_id: UUID, interval: float, view: ProgressView) -> int:
    """Show every change of a job until it ends; go on if the database goes away meanwhile."""
    seen = run_blocking(_look(store, run_blocking(read_one(store, job_id))))
    view.show(seen)
    is_away = False
    while seen.job.status not in TERMINAL:
        time.sleep(interval)
        try:
            job = run_blocking(read_one(store, job_id))
            if _changes(job) != _changes(seen.job):
                seen = run_blocking(_look(store, job))
                view.show(seen)
            is_away = False
        except StorageError as error:
            if not is_away:
                view.trouble(str(error))
            is_away = True
    return Code.OK if seen.job.status is Status.SUCCEEDED else Code.JOB_FAILED


async def _look(store: Store, job: JobRow) -> Sighting:
    now = await store.now()
    hints = await why(store, job) if job.status in CLAIMABLE else []
    return Sighting(job, now, hints)


def _changes(job: JobRow) -> tuple[object, ...]:
    """Return what of a job is shown."""
    return job.status, job.attempts, job.is_cancelling, job.progress, job.wait_key, job.due_at


@contextlib.contextmanager
def _view(*, as_json: bool | None) -> Iterator[ProgressView]:
    screen = console()
    if not for_people(as_json=as_json):
        yield ProgressJson()
    elif not screen.is_terminal:
        yield ProgressLines(screen)
    else:
        with _interrupted_by_stop_signals(), JobBar.on(screen) as bar:
            yield bar


@contextlib.contextmanager
def _interrupted_by_stop_signals() -> Iterator[None]:
    """Let every stop signal end the command as Ctrl-C does, which restores the terminal."""
    before = {number: signal.getsignal(number) for number in stop_signals()}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
