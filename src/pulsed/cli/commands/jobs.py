"""``pulsed jobs``: look for jobs, look at one, count them, and change their course."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import click
from rich.text import Text

from pulsed.cli.commands import acts
from pulsed.cli.commands.edit import edit
from pulsed.cli.commands.prune import prune
from pulsed.cli.commands.signal import signal
from pulsed.cli.commands.stream import stream
from pulsed.cli.commands.watch import watch
from pulsed.cli.exits import say
from pulsed.cli.groups import Group
from pulsed.cli.options.database import ENVIRONMENT, Database, database_options
from pulsed.cli.options.filters import filter_options
from pulsed.cli.options.job_ids import find_id, with_whole_ids
from pulsed.cli.plain import in_line
from pulsed.cli.view.job_report import Known, report
from pulsed.cli.view.job_tree import FEW_IN_JSON, tree_as_json
from pulsed.cli.view.output import (
    Table,
    console,
    for_people,
    job_as_json,
    json_option,
    list_format_option,
    one_line,
    print_counts,
    print_grouped,
    print_json,
    status_of,
)
from pulsed.cli.view.times import relative
from pulsed.client.bulk import pages
from pulsed.client.filter import checked_filter, checked_groups
from pulsed.client.job_tree import FEW, read_tree, report_bounds
from pulsed.client.one_job import read_one
from pulsed.engine.held_back import why
from pulsed.engine.why import waits_for
from pulsed.model.job import DEFAULT_QUEUE, JobFilter, JobRow, Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.page import Page, bound_of
from pulsed.model.step import StepKind
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.store.open import where as where_is
from pulsed.wording import format_duration

FEW_JOBS = 50
"""How many are listed unless --limit says so."""

WIDE = 116
"""From so many columns on, a note has a column of its own; else it stands below its job."""

EXAMPLES = """\b
examples:
  pulsed jobs list --status dead --since 2h
  pulsed jobs list --topic send_email --error timeout --json | jq .payload
  pulsed jobs list --status dead --ids | pulsed jobs retry -
  pulsed jobs retry --status dead --topic send_email
  pulsed jobs show 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69
  pulsed jobs signal 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69 approved true"""


@click.group(cls=Group, epilog=EXAMPLES + ENVIRONMENT)
def jobs() -> None:
    """List, show, count, watch, signal, retry, cancel, run, delete and prune jobs."""


@jobs.command("list")
@filter_options
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="How many at the most [default: 50; with --ids in a pipe, all].",
)
@click.option("--before", metavar="ID", help="Continue after the last id of the previous page.")
@list_format_option
@database_options
def list_(
    database: Database,
    where: Mapping[str, Any],
    limit: int | None,
    before: str | None,
    ids_only: bool,
    as_json: bool | None,
) -> None:
    """List jobs, newest first.

    \b
    A table on a terminal, JSON lines when piped. Examples:
      pulsed jobs list --status dead,cancelled --since 3d
      pulsed jobs list --status dead --ids | pulsed jobs retry -
    """
    with database.store() as store:
        chosen = checked_filter(with_whole_ids(store, where))
        cursor = None if before is None else find_id(store, before)
        if ids_only and limit is None and not sys.stdout.isatty():
            run_blocking(_print_all_ids(store, chosen, cursor))
            return
        found = run_blocking(store.list_jobs(chosen, limit=limit or FEW_JOBS, before=cursor))
        now = run_blocking(store.now())
        people = not ids_only and for_people(as_json=as_json)
        runs = people and any(job.status is Status.RUNNING for job in found)
        workers = run_blocking(store.workers()) if runs else []
    if ids_only:
        for job in found:
            print(job.id)
    elif people and found:
        _show_table(found, now, {worker.id: f"{worker.host}:{worker.pid}" for worker in workers})
    else:
        for job in found:
            print_json(job_as_json(job))
    if not found and not found.is_cut:
        say(f"no such jobs in {where_is(database.resolved()[0])}")
    elif found.next is not None:
        _say_how_to_continue(found, bound_of(chosen))


def _say_how_to_continue(found: Page[JobRow], bound: int) -> None:
    if found.is_cut:
        say(f"scanned {bound:,} jobs; there are more: continue with --before {found.next}")
    else:
        say(f"there may be more: --before {found.next}, or a larger --limit")


async def _print_all_ids(store: Store, chosen: JobFilter, before: UUID | None) -> None:
    async for page in pages(store, chosen, before=before):
        print("\n".join(str(job.id) for job in page))


@jobs.command(short_help="Show one job, and why it is not running.")
@click.argument("job_id", metavar="ID")
@click.option("--all", "all_children", is_flag=True, help="All children of its fan-outs.")
@json_option
@database_options
def show(database: Database, job_id: str, all_children: bool, as_json: bool | None) -> None:
    """Show one job: payload, result, failures, and why it is not running.

    For a workflow, also its steps and its children with theirs: the first few of each fan-out (in
    JSON, the first hundred) and those that failed. --all shows every child, and what is below the
    first thousand of each fan-out.

    \b
    Example:
      pulsed jobs show 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69
    """
    people = for_people(as_json=as_json)
    few = None if all_children else FEW if people else FEW_IN_JSON
    with database.store() as store:
        known = run_blocking(_everything_about(store, find_id(store, job_id), few))
    if people:
        report(console(), known)
    else:
        more = {"failures": known.failures, "hints": known.hints, "schedule": known.schedule}
        print_json(tree_as_json(known.tree) | more)


async def _everything_about(store: Store, job_id: UUID, few: int | None) -> Known:
    job = await read_one(store, job_id)
    now = await store.now()
    hints = await why(store, job)
    schedule = None
    if job.schedule_id is not None:
        made_by = await store.schedules.find(job.schedule_id)
        schedule = None if made_by is None else made_by.name
    tree = await read_tree(store, job, report_bounds(few))
    return Known(tree, await store.failures(job_id), hints, schedule, now)


@jobs.command(short_help="Count jobs by status, or by other fields.")
@filter_options
@click.option(
    "--by", metavar="FIELDS", help="topic, queue, error, status; several with commas [status]."
)
@json_option
@database_options
def counts(
    database: Database, where: Mapping[str, Any], by: str | None, as_json: bool | None
) -> None:
    """Count jobs by status, up to 50,000 of each, or by other fields.

    With --by, or with filters other than --status and --parent, the newest 50,000 jobs are
    scanned; with --payload, the newest 6,000. Errors are grouped by the part before the colon.

    \b
    Examples:
      pulsed jobs counts --queue mail --since 1d
      pulsed jobs counts --status dead --by topic,error
    """
    groups = None if by is None else checked_groups(word.strip() for word in by.split(","))
    with database.store() as store:
        chosen = checked_filter(with_whole_ids(store, where))
        if groups is not None:
            grouped = run_blocking(store.counts_by(chosen, groups))
            print_grouped(grouped, as_json=as_json, scanned=bound_of(chosen))
            return
        counted = run_blocking(store.counts(chosen))
    print_counts(counted, as_json=as_json, scanned=bound_of(chosen))


jobs.add_command(watch)
for _act in acts.COMMANDS:
    jobs.add_command(_act)
jobs.add_command(edit)
jobs.add_command(prune)
jobs.add_command(signal)
jobs.add_command(stream)


def _show_table(found: Page[JobRow], now: datetime, hosts: Mapping[UUID, str]) -> None:
    screen = console()
    wide = screen.width >= WIDE
    heads = ["ID", "TOPIC", "STATUS", "TRY", "AGE", "WHEN"]
    flexible = {"TOPIC": 16, "NOTE": 10} if wide else {"TOPIC": 10}
    queues = wide and any(job.queue != DEFAULT_QUEUE for job in found)
    if queues:
        heads.insert(2, "QUEUE")
        flexible["QUEUE"] = 10
    table = Table(*heads, *(["NOTE"] if wide else []), flexible=flexible, optional=("AGE",))
    for job in found:
        note = _note(job, hosts)
        cells: list[str | Text] = [
            str(job.id),
            job.topic,
            status_of(job),
            _tries(job),
            _age(job, now),
        ]
        if queues:
            cells.insert(2, job.queue)
        if wide:
            table.add(*cells, _when(job, now), note)
        else:
            table.add(*cells, _when(job, now), below=note if note.plain else None)
    table.show(screen)


def _note(job: JobRow, hosts: Mapping[UUID, str]) -> Text:
    """Return what a job waits for, where it runs and how far it is, or why it failed."""
    if job.status is Status.WAITING and job.wait_kind != StepKind.SLEEP:
        return Text(in_line(f"waits for {waits_for(job)}"), style="magenta")
    if job.status is Status.RUNNING and job.locked_by is not None:
        host = hosts.get(job.locked_by, f"worker {job.locked_by}")
        progress = "" if job.progress is None else f", progress {one_line(job.progress)}"
        return Text(in_line(f"on {host}{progress}"), style="blue")
    return Text(one_line(job.last_error or ""), style="red")


def _tries(job: JobRow) -> str:
    return f"{job.attempts}/{job.max_attempts or '?'}"


def _age(job: JobRow, now: datetime) -> str:
    return format_duration((now - job.submitted_at).total_seconds())


def _when(job: JobRow, now: datetime) -> str:
    """Return when it ended, ends, or runs next; ``open``: when what it waits for has come."""
    if job.status in TERMINAL and job.completed_at is not None:
        return relative(job.completed_at, now)
    if job.status is Status.RUNNING and job.started_at is not None:
        return f"for {format_duration((now - job.started_at).total_seconds())}"
    if job.due_at is None:
        return "open"
    return relative(job.due_at, now) if job.due_at > now else "due"
