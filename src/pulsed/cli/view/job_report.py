"""One job on a terminal, from its state down to the tracebacks of its failed attempts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from pulsed.cli.plain import harmless, in_line
from pulsed.cli.view.output import one_line, print_hanging, status_of
from pulsed.cli.view.times import iso, moment
from pulsed.cli.view.tree_report import print_tree, wait_line
from pulsed.client.job_tree import Node
from pulsed.handler.envelope import is_envelope
from pulsed.model.job import Failure, JobRow, Status
from pulsed.model.keys import UNTIL_START
from pulsed.model.lifecycle import REPLAYABLE
from pulsed.model.step import StepKind
from pulsed.model.workflow import fan_out_of
from pulsed.wording import counted, format_duration

LABEL = 12
ENCRYPTED = "encrypted: the app that has its codec can show it"


class Known(NamedTuple):
    """Everything that the report on a job shows."""

    tree: Node
    failures: Sequence[Failure]
    hints: Sequence[str]
    schedule: str | None
    """The name of the schedule that made it, if that still exists."""
    now: datetime


def report(to: Console, known: Known) -> None:
    """Print the full report on a job."""
    tree, failures, hints, schedule, now = known
    job = tree.job
    head = Text.assemble((in_line(job.topic), "bold"), "  ", status_of(job))
    to.print(head.append(f"  {job.id}", style="dim"))
    for hint in [*hints, *_what_to_do(tree)]:
        print_hanging(to, Text("→ ", style="yellow").append(in_line(hint)), 2)
    to.print()
    for label, value in (*_fields(tree, now), *_lineage(job, schedule)):
        to.print(Text.assemble((f"{label:{LABEL}}", "dim"), in_line(value)), soft_wrap=True)
    for label, text in (
        ("payload", job.payload),
        ("result", job.result),
        ("progress", job.progress),
    ):
        if text is not None:
            _print_json(to, label, text)
    print_tree(to, tree)
    for failure in failures:
        _print_failure(to, failure, job, now)


def _what_to_do(tree: Node) -> Iterator[str]:
    job = tree.job
    if job.status in REPLAYABLE and tree.steps:
        yield f"`pulsed jobs retry {job.id}` continues from its steps; --fresh, from the start"
    elif job.status in REPLAYABLE:
        yield f"`pulsed jobs retry {job.id}` runs it again, with fresh attempts"
    if job.status is Status.WAITING and job.wait_kind == StepKind.SIGNAL:
        name = shlex.quote(job.wait_key or "")
        yield f"`pulsed jobs signal {job.id} {name} JSON` sends it"


def _fields(tree: Node, now: datetime) -> Iterator[tuple[str, str]]:
    job = tree.job
    yield "queue", job.queue if not job.priority else f"{job.queue}, priority {job.priority}"
    yield "attempts", f"{job.attempts} of {job.max_attempts or 'as many as its handler says'}"
    if job.crashes:
        times = counted(job.crashes, "time")
        yield "crashes", f"its worker died {times} in a row while it ran this job and others"
    yield "submitted", moment(job.submitted_at, now)
    if job.status is Status.WAITING:
        yield "waits for", wait_line(tree)
    elif job.status is not Status.RUNNING and job.completed_at is None:
        yield "next run", moment(job.next_run_at, now)
    if job.expires_at is not None and job.started_at is None:
        yield "expired" if job.has_expired else "expires", moment(job.expires_at, now)
    if job.started_at is not None:
        yield "started", moment(job.started_at, now)
    if job.lease_until is not None:
        yield "lease until", f"{moment(job.lease_until, now)}, worker {job.locked_by}"
    if job.completed_at is not None:
        yield "ended", moment(job.completed_at, now)
    yield "updated", moment(job.updated_at, now)
    if job.key is not None:
        yield "key", f"{job.key}, {_key_state(job, now)}"
    if job.tags:
        yield "tags", ", ".join(job.tags)
    for name, value in job.headers.items():
        yield "header", f"{name}: {value}"
    if job.last_error is not None:
        yield "last error", one_line(job.last_error)


def _key_state(job: JobRow, now: datetime) -> str:
    if not job.key_held or (job.key_until is not None and job.key_until <= now):
        return "not held any more"
    if job.key_until is not None:
        return f"held until {moment(job.key_until, now)}"
    return "held until it starts" if job.key_for == UNTIL_START else "held until it ends"


def _lineage(job: JobRow, schedule: str | None) -> Iterator[tuple[str, str]]:
    if job.parent_id is not None:
        step = "" if job.parent_step is None else f", {fan_out_of(job.parent_step)}"
        yield "parent", f"{job.parent_id}{step}"
    if job.schedule_id is None:
        return
    name = schedule or f"{job.schedule_id}, which is deleted"
    due = "out of turn" if job.occurrence is None else f"occurrence {iso(job.occurrence)}"
    yield "schedule", f"{name}, {due}"


def _print_json(to: Console, label: str, text: str) -> None:
    if is_envelope(text):
        to.print(Text.assemble((f"{label:{LABEL}}", "dim"), ENCRYPTED), soft_wrap=True)
        return
    short = harmless(msgspec.json.format(text, indent=0))
    if len(short) <= to.width - LABEL:
        to.print(Text.assemble((f"{label:{LABEL}}", "dim"), short), soft_wrap=True)
        return
    to.print(Text(label, style="dim"))
    pretty = harmless(msgspec.json.format(text, indent=2))
    to.print(Text(_indented(pretty)), soft_wrap=True)


def _print_failure(to: Console, failure: Failure, job: JobRow, now: datetime) -> None:
    limit = f" of {job.max_attempts}" if job.max_attempts else ""
    to.print()
    head = Text(f"attempt {failure.attempt}{limit} failed", style="bold red")
    took = ""
    if failure.started_at is not None:
        took = f" after {format_duration((failure.ended_at - failure.started_at).total_seconds())}"
    to.print(head.append(f"{took}, {moment(failure.ended_at, now)}", style="dim"))
    text = failure.traceback or failure.error
    to.print(Text(_indented(harmless(text.rstrip()))), soft_wrap=True)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
