"""``pulsed schedules add`` and ``edit``: from options to a schedule."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from pulsed.cli.exits import Code, CommandError, say
from pulsed.cli.options.arguments import pair, payload_of, quoting_explained
from pulsed.cli.options.durations import time_option
from pulsed.cli.options.schedule_scope import Scope, scope_options
from pulsed.cli.view import schedule_report as report
from pulsed.cli.view.output import console, for_people, json_option, print_json
from pulsed.cli.view.times import coming
from pulsed.client.schedules import Schedule, Schedules
from pulsed.errors import ScheduleNotFound
from pulsed.model.schedule import CatchUp, Overlap
from pulsed.store.blocking import run_blocking

F = TypeVar("F", bound=Callable[..., Any])

REMOVABLE = ("limit", "jitter", "start", "end", "max-attempts", "timeout", "lease", "tag", "header")
"""Options that an edit can take away."""

_OPTIONS = (
    click.option("--json-args", metavar="OBJECT", help="All arguments as one JSON object."),
    click.option("--cron", metavar="EXPR", help="Five fields, or @hourly, @daily, @weekly, …"),
    time_option("--every", "An interval: 90, 5m, 2h, 1d."),
    click.option("--at", type=coming, metavar="TIME", help="Once: 2h from now, or ISO-8601."),
    click.option("--tz", metavar="ZONE", help="The zone of --cron [default: UTC]."),
    click.option(
        "--catch-up",
        type=click.Choice([each.value for each in CatchUp]),
        help="After an outage: the latest missed occurrence, none, or all [default: one].",
    ),
    click.option("--limit", type=int, metavar="N", help="With --catch-up all: the latest N."),
    click.option(
        "--overlap",
        type=click.Choice([each.value for each in Overlap]),
        help="skip passes over an occurrence while the last job runs [default: allow].",
    ),
    time_option("--jitter", "Spread jobs over this time."),
    click.option("--start", type=coming, metavar="TIME", help="Nothing before this."),
    click.option("--end", type=coming, metavar="TIME", help="Nothing after this."),
    click.option("--queue", help="The queue of its jobs [default: the handler's]."),
    click.option("--priority", type=int, help="-100 to 100; higher runs first."),
    click.option("--max-attempts", type=int, help="Attempts before a job is dead-lettered."),
    time_option("--expires", "Do not start a job this long after it is due."),
    time_option("--timeout", "How long a run may take."),
    time_option("--lease", "How long a worker may be silent."),
    click.option("--tag", "tags", multiple=True, help="A tag of its jobs; repeatable."),
    click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Repeatable."),
)


def _schedule_options(command: F) -> F:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("name")
@click.argument("topic")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE…|-]")
@_schedule_options
@click.option("--replace", is_flag=True, help="Replace a schedule that has this name.")
@json_option
@scope_options
def add(
    scope: Scope,
    name: str,
    topic: str,
    arguments: tuple[str, ...],
    json_args: str | None,
    replace: bool,
    as_json: bool | None,
    **options: Any,
) -> None:
    """Add a schedule: --cron, --every or --at.

    TOPIC is the job it makes. With an app, topic and arguments are checked; without one, any topic
    goes.

    \b
    Examples:
      pulsed schedules add report send_report to=ada --cron '0 9 * * MON-FRI'
      pulsed schedules add tea remind --cron '0 16 * * *' --tz Europe/London
      pulsed schedules add cleanup remove_old_files days=30 --every 15m
      pulsed schedules add reminder remind user=7 --at 2h
    """
    payload = payload_of(arguments, json_args)
    with scope.opened(create=True) as (schedules, store):
        if not replace:
            _refuse_existing(schedules, name)
        with quoting_explained(arguments):
            made = schedules.put(name, topic, payload=payload, **_given(options))
        tell(made, run_blocking(store.now()), as_json=as_json)


@click.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE…|-]")
@_schedule_options
@click.option(
    "--unset",
    type=click.Choice(REMOVABLE),
    multiple=True,
    help="Remove an option; repeatable.",
)
@json_option
@scope_options
def edit(
    scope: Scope,
    name: str,
    arguments: tuple[str, ...],
    json_args: str | None,
    unset: tuple[str, ...],
    as_json: bool | None,
    **options: Any,
) -> None:
    """Change a schedule and keep what is not mentioned.

    KEY=VALUE changes single arguments, --json-args replaces all of them.

    \b
    Examples:
      pulsed schedules edit report --cron '0 8 * * MON-FRI'
      pulsed schedules edit report to=grace --unset end
    """
    changes = _given(options)
    for word in unset:
        changes[_option_name(word)] = 0 if word == "jitter" else None
    if not changes and not arguments and json_args is None:
        raise CommandError("change what? See pulsed schedules edit --help.", Code.USAGE)
    with scope.opened() as (schedules, store):
        if arguments or json_args is not None:
            changes["payload"] = _changed_payload(schedules.get(name), arguments, json_args)
        with quoting_explained(arguments):
            edited = schedules.edit(name, **changes)
        tell(edited, run_blocking(store.now()), as_json=as_json)


def tell(schedule: Schedule, now: datetime, *, as_json: bool | None) -> None:
    """Show what has become of a schedule."""
    if for_people(as_json=as_json):
        report.show_briefly(console(), schedule, now)
    else:
        print_json(report.as_json(schedule))
    if schedule.row.declared:
        say(
            f"{schedule.name!r} is declared in code: an edit lasts until the next worker "
            "starts, a pause until it is resumed"
        )


def _refuse_existing(schedules: Schedules, name: str) -> None:
    try:
        there = schedules.get(name)
    except ScheduleNotFound:
        return
    raise CommandError(
        f"there is a schedule {name!r} already ({report.when(there)}). Change it with `pulsed "
        f"schedules edit {name} …`, or add --replace."
    )


def _given(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value not in (None, ())}
    if "headers" in given:
        given["headers"] = dict(pair(header, "--header") for header in given["headers"])
    if "tags" in given:
        given["tags"] = list(given["tags"])
    return given


def _option_name(word: str) -> str:
    plural = {"tag": "tags", "header": "headers"}
    return plural.get(word, word.replace("-", "_"))


def _changed_payload(
    schedule: Schedule, arguments: tuple[str, ...], json_args: str | None
) -> dict[str, Any]:
    changes = payload_of(arguments, json_args)
    if json_args is not None or arguments == ("-",):
        return changes
    old: dict[str, Any] = json.loads(schedule.spec.payload)
    return old | changes
