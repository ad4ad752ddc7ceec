"""How one job goes on: a bar on a terminal, lines of text elsewhere, JSON lines for programs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from pulsed.cli.plain import in_line
from pulsed.cli.view.output import one_line, print_hanging, print_json, raw, status_of
from pulsed.cli.view.times import iso, relative
from pulsed.model.job import JobRow, Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.progress import progress_of
from pulsed.wording import format_duration

BAR_WIDTH = 30


class Sighting(NamedTuple):
    """A job at a moment."""

    job: JobRow
    now: datetime
    """The database's time."""
    hints: Sequence[str]
    """Why it is not running."""

    @property
    def progress(self) -> tuple[float | None, str]:
        """How far it is, from 0 to 1 if that is known, and what its handler says beside it."""
        if self.job.progress is None:
            return None, ""
        share, note = progress_of(msgspec.json.decode(self.job.progress))
        if share is None and note is None:
            note = self.job.progress
        return share, one_line(note or "")

    @property
    def elapsed(self) -> float:
        """Seconds since the run began, or since the job was submitted."""
        job = self.job
        begin = None if job.status is Status.PENDING else job.started_at
        return ((job.completed_at or self.now) - (begin or job.submitted_at)).total_seconds()


class ProgressView(Protocol):
    """Where changes of a job are shown."""

    def show(self, seen: Sighting) -> None:
        """Show a change."""

    def trouble(self, error: str) -> None:
        """Show why there is no news."""


class ProgressJson:
    """A line of JSON for each change."""

    def show(self, seen: Sighting) -> None:
        """Print a change."""
        job, (share, note) = seen.job, seen.progress
        print_json(
            {
                "at": seen.now,
                "status": "CANCELLING" if job.is_cancelling else job.status,
                "attempts": job.attempts,
                "max_attempts": job.max_attempts,
                "progress": raw(job.progress),
                "share": share,
                "note": note or None,
                "result": raw(job.result),
                "error": job.last_error,
                "hints": seen.hints,
            }
        )

    def trouble(self, error: str) -> None:
        """Programs wait for the next line."""


class ProgressLines:
    """A line of text for each change."""

    def __init__(self, to: Console) -> None:
        self._to = to

    def show(self, seen: Sighting) -> None:
        """Print a change."""
        share, note = seen.progress
        far = "" if share is None else f"  {share:.0%}"
        line = Text(f"{iso(seen.now.replace(microsecond=0))}  ", style="dim")
        line.append_text(state_of(seen))
        if seen.job.status is Status.RUNNING:
            line.append(f"{far}  {note}" if note else far)
        print_hanging(self._to, line, 2)

    def trouble(self, error: str) -> None:
        """Print why there is no news."""
        print_hanging(self._to, Text(f"✕ {in_line(error)} Retrying.", style="red"), 2)


class JobBar:
    """A bar below the changes of status; without a known end, it only moves."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._lines = ProgressLines(progress.console)
        self._task = progress.add_task("", total=None, note="", since=time.monotonic())
        self._before: tuple[Any, ...] = ()

    @classmethod
    @contextmanager
    def on(cls, to: Console) -> Iterator[JobBar]:
        """Draw a bar while the block runs."""
        columns = (
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}", markup=False),
            KnownBar(bar_width=BAR_WIDTH),
            Share(),
            Elapsed(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        with Progress(*columns, console=to, transient=True) as progress:
            yield cls(progress)

    def show(self, seen: Sighting) -> None:
        """Move the bar; a change of status is a line above it."""
        job, (share, note) = seen.job, seen.progress
        state = (job.status, job.attempts, job.is_cancelling)
        if state != self._before:
            self._before = state
            self._lines.show(seen._replace(job=msgspec.structs.replace(job, progress=None)))
        self._progress.update(
            self._task,
            description=in_line(job.topic),
            total=None if share is None else 1.0,
            completed=share or 0.0,
            note=note,
            since=time.monotonic() - seen.elapsed,
        )

    def trouble(self, error: str) -> None:
        """Print why there is no news."""
        self._lines.trouble(error)


class KnownBar(BarColumn):
    """A bar if the end is known; otherwise nothing."""

    def render(self, task: Task) -> Any:
        """Return the bar."""
        return Text() if task.total is None else super().render(task)


class Share(ProgressColumn):
    """How far it is in percent, if that is known."""

    def render(self, task: Task) -> Text:
        """Return the share."""
        return Text("" if task.total is None else f"{task.completed:4.0%}")


class Elapsed(ProgressColumn):
    """For how long it has been running or waiting."""

    def render(self, task: Task) -> Text:
        """Return the duration."""
        return Text(format_duration(time.monotonic() - task.fields["since"]), style="dim")


def state_of(seen: Sighting) -> Text:
    """Return a job's status, with what one wants to know about it."""
    return status_of(seen.job).append(f"  {in_line(_about(seen))}", style="default")


def _about(seen: Sighting) -> str:
    job, now = seen.job, seen.now
    tries = f"attempt {job.attempts} of {job.max_attempts or '?'}"
    error = one_line(job.last_error or "")
    if job.status is Status.RUNNING:
        return tries
    if job.status is Status.SUCCEEDED or (job.status in TERMINAL and not error):
        return f"{tries}, after {format_duration(seen.elapsed)}"
    if job.status in TERMINAL:
        return f"{tries}, after {format_duration(seen.elapsed)}: {error}"
    if job.status is Status.RETRYING:
        return f"{tries} failed: {error}; the next is due {relative(job.next_run_at, now)}"
    return "; ".join(seen.hints)
