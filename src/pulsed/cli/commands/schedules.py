"""``pulsed schedules``: what runs when, what it did, and changing that."""

from __future__ import annotations

from datetime import datetime
from itertools import islice

import click

from pulsed.cli.commands.schedule_changes import add, edit, tell
from pulsed.cli.exits import CommandError, say
from pulsed.cli.groups import Group
from pulsed.cli.options.schedule_scope import Scope, scope_options
from pulsed.cli.prompt import confirm
from pulsed.cli.view import schedule_report as report
from pulsed.cli.view.output import console, for_people, json_option, print_json
from pulsed.cli.view.times import coming, past
from pulsed.client.schedules import Schedule
from pulsed.model.schedule import ScheduleState
from pulsed.store.blocking import run_blocking

ON_A_TERMINAL = 200
"""Schedules to show unless told how many."""

EXAMPLES = """\b
examples:
  pulsed schedules list
  pulsed schedules add report send_report to=ada --cron '0 9 * * MON-FRI'
  pulsed schedules add cleanup remove_old_files --every 15m --catch-up skip
  pulsed schedules next report -n 3
  pulsed schedules fires report --json | jq 'select(.status != "SUCCEEDED")'
  pulsed schedules pause report

\b
Schedules belong to an app: the one that --app or $PULSED_APP loads, or
--app-name without the app's code.

\b
environment:
  PULSED_URL, DATABASE_URL, PULSED_APP   when --url and --app are not given"""


@click.group(cls=Group, epilog=EXAMPLES)
def schedules() -> None:
    """List, show, add, edit, pause, resume, delete and run schedules."""


@schedules.command("list")
@click.option("--all-apps", is_flag=True, help="Those of every app in the database.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    help=f"How many [default: {ON_A_TERMINAL} on a terminal, else all].",
)
@json_option
@scope_options
def list_(scope: Scope, all_apps: bool, limit: int | None, as_json: bool | None) -> None:
    """List schedules, with their next and last runs.

    \b
    Examples:
      pulsed schedules list
      pulsed schedules list --all-apps --json | jq 'select(.state == "ERROR")'
    """
    with scope.opened() as (schedules, store):
        every = schedules.iterate(all_apps=all_apps)
        if not for_people(as_json=as_json):
            for schedule in islice(every, limit):
                print_json(report.as_json(schedule))
            return
        found = list(islice(every, limit or ON_A_TERMINAL))
        more = limit is None and next(every, None) is not None
        now = run_blocking(store.now())
    if found:
        report.show_table(console(), found, now, with_app=all_apps)
        if more:
            say(f"these are the first {ON_A_TERMINAL}; there are more: --limit")
    else:
        say(
            "no schedules"
            if all_apps
            else "no schedules of this app; --all-apps lists those of every app"
        )


@schedules.command()
@click.argument("name")
@json_option
@scope_options
def show(scope: Scope, name: str, as_json: bool | None) -> None:
    """Show one schedule, its next five occurrences and last five jobs.

    \b
    Example:
      pulsed schedules show report
    """
    with scope.opened() as (schedules, store):
        schedule = schedules.get(name)
        fires = schedules.fires(name, limit=5)
        now = run_blocking(store.now())
    ahead = _coming(schedule, 5, now)
    if for_people(as_json=as_json):
        report.show(console(), schedule, ahead, fires, now)
    else:
        upcoming = {"next": list(report.occurrences_as_json(schedule, ahead))}
        past_fires = {"fires": [report.fire_as_json(fire) for fire in fires]}
        print_json(report.as_json(schedule) | upcoming | past_fires)


@schedules.command("next")
@click.argument("name")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="How many.",
)
@click.option("--after", type=coming, metavar="TIME", help="Later than this: 2h, 30d or ISO-8601.")
@json_option
@scope_options
def next_(
    scope: Scope, name: str, count: int, after: datetime | None, as_json: bool | None
) -> None:
    """Show the next occurrences and clock changes.

    Each in the schedule's zone and in UTC.

    \b
    Examples:
      pulsed schedules next report
      pulsed schedules next report -n 5 --after 2027-03-26
    """
    with scope.opened() as (schedules, store):
        schedule = schedules.get(name)
        now = run_blocking(store.now())
    found = _coming(schedule, count, now, after)
    if not for_people(as_json=as_json):
        for occurrence in report.occurrences_as_json(schedule, found):
            print_json(occurrence)
    elif found:
        report.show_occurrences(console(), schedule, found, now)
    if schedule.state is not ScheduleState.ACTIVE:
        say(f"it is {schedule.state}: {report.STATES[schedule.state]}")


def _coming(
    schedule: Schedule, count: int, now: datetime, after: datetime | None = None
) -> list[datetime]:
    """Return what is to come; what passed during a pause or an error will not be made up for."""
    if not report.is_readable(schedule):
        return []
    if after is None and schedule.state is not ScheduleState.ACTIVE:
        after = now
    return schedule.next(count, after=after)


@schedules.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@click.option("--before", type=past, metavar="TIME", help="Only those before this.")
@json_option
@scope_options
def fires(
    scope: Scope, name: str, limit: int, before: datetime | None, as_json: bool | None
) -> None:
    """Show the jobs it made, the latest first.

    An extra run (`schedules run`) is listed at the time of the request.

    \b
    Examples:
      pulsed schedules fires report --limit 10
      pulsed schedules fires report --json | jq .job_id
    """
    with scope.opened() as (schedules, store):
        found = schedules.fires(name, limit=limit, before=before)
        now = run_blocking(store.now())
    if not for_people(as_json=as_json):
        for fire in found:
            print_json(report.fire_as_json(fire))
    elif found:
        report.show_fires(console(), found, now)
        if len(found) == limit:
            say(f"there may be more: --before {found[-1].moment.isoformat()}")
    else:
        say("it has made no job yet" if before is None else "no earlier ones")


@schedules.command()
@click.argument("name")
@json_option
@scope_options
def pause(scope: Scope, name: str, as_json: bool | None) -> None:
    """Make no more jobs until it is resumed. What is enqueued already runs."""
    with scope.opened() as (schedules, store):
        tell(schedules.pause(name), run_blocking(store.now()), as_json=as_json)


@schedules.command()
@click.argument("name")
@json_option
@scope_options
def resume(scope: Scope, name: str, as_json: bool | None) -> None:
    """Fire again after a pause or an error.

    The next occurrence is fired; those that passed meanwhile are not.
    """
    with scope.opened() as (schedules, store):
        if not report.is_readable(schedules.get(name)):
            raise CommandError(
                f"the definition of schedule {name!r} cannot be read: replace it with `pulsed "
                f"schedules add {name} … --replace`, or delete it."
            )
        tell(schedules.resume(name), run_blocking(store.now()), as_json=as_json)


@schedules.command()
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@scope_options
def delete(scope: Scope, name: str, yes: bool) -> None:
    """Delete a schedule. The jobs it made stay, and what is enqueued runs."""
    with scope.schedules() as schedules:
        schedule = schedules.get(name)
        again = "; a program declares it and will make it again" if schedule.row.declared else ""
        confirm(f"delete the schedule {name!r} ({report.when(schedule)}){again}", yes=yes)
        schedules.delete(name)
    print(name)


@schedules.command("run")
@click.argument("name")
@scope_options
def run_(scope: Scope, name: str) -> None:
    """Enqueue its job now, and print the job's id.

    This is an extra run: the timetable does not change.
    """
    with scope.schedules() as schedules:
        print(schedules.run_now(name).id)


schedules.add_command(add)
schedules.add_command(edit)
