"""``pulsed workers``: who is at work, and how to end it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from pulsed.cli.exits import say
from pulsed.cli.groups import Group, refuse_options
from pulsed.cli.options.database import ENVIRONMENT, Database, database_options
from pulsed.cli.prompt import confirm
from pulsed.cli.view.output import console, for_people, json_option, print_json, worker_as_json
from pulsed.cli.view.worker_table import worker_table
from pulsed.client.workers import ask, choose
from pulsed.engine.why import is_live
from pulsed.model.job import WorkerRequest
from pulsed.store.blocking import run_blocking
from pulsed.wording import counted

F = TypeVar("F", bound=Callable[..., Any])

EXAMPLES = """\b
examples:
  pulsed workers
  pulsed workers --json | jq 'select(.live | not)'
  pulsed workers drain 3f2a
  pulsed workers drain --host web-1 --yes
  pulsed workers stop web-1:4711"""

IN_FLIGHT = {
    WorkerRequest.DRAIN: "they finish what runs, and end",
    WorkerRequest.STOP: "they hand back what runs, and end",
}


@click.group(cls=Group, epilog=EXAMPLES + ENVIRONMENT, invoke_without_command=True)
@json_option
@database_options
@click.pass_context
def workers(context: click.Context, database: Database, as_json: bool | None) -> None:
    """Show the workers: their hosts, queues and heartbeats. Drain or stop them."""
    if context.invoked_subcommand is None:
        _show(database, as_json)
    else:
        refuse_options(context)


def _show(database: Database, as_json: bool | None) -> None:
    with database.store() as store:
        found = run_blocking(store.workers())
        now = run_blocking(store.now())
    if not for_people(as_json=as_json):
        for worker in found:
            print_json(worker_as_json(worker) | {"live": is_live(worker, now)})
    elif found:
        worker_table(found, now).show(console())
    else:
        say("no workers; start one with `pulsed worker module:app`")


def _which(command: F) -> F:
    """Give a command the workers that it is about."""
    for option in (
        click.argument("ids", nargs=-1, metavar="[ID]..."),
        click.option("--host", metavar="HOST", help="All live workers of a host."),
        click.option("--all", "everywhere", is_flag=True, help="All live workers."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        database_options,
    ):
        command = option(command)
    return command


@workers.command("drain")
@_which
def drain(**options: Any) -> None:
    """Let workers finish what runs, claim nothing more, and end with code 0.

    Name them by the beginning of an id, or as HOST:PID. A parent of several processes does not
    replace one that was drained.
    """
    _ask(WorkerRequest.DRAIN, **options)


@workers.command("stop")
@_which
def stop(**options: Any) -> None:
    """Let workers hand back what runs, and end with code 0; no attempt is counted."""
    _ask(WorkerRequest.STOP, **options)


def _ask(
    request: WorkerRequest,
    *,
    database: Database,
    ids: tuple[str, ...],
    host: str | None,
    everywhere: bool,
    yes: bool,
) -> None:
    with database.store() as store:
        chosen = run_blocking(choose(store, ids, host, everywhere=everywhere))
        if not ids and chosen:
            confirm(f"{request} {counted(len(chosen), 'worker')}", yes=yes)
        asked = run_blocking(ask(store, chosen, request))
    for worker in asked:
        print(f"{worker.id} {worker.host}:{worker.pid}")
    say(f"asked {counted(len(asked), 'worker')} to {request}: {IN_FLIGHT[request]}")
