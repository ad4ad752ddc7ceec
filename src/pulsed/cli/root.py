"""The root of the command: its subcommands by name, its help, and its exit."""

from __future__ import annotations

import platform
from importlib import import_module
from typing import Any, NoReturn

import click

from pulsed.cli.exits import exit_after
from pulsed.cli.groups import Group
from pulsed.version import __version__

# Name → module and one line of help, so that ``--help`` and ``--version`` need load none of them.
COMMANDS = {
    "init": "Write a project to start from: two jobs, a schedule, tests.",
    "worker": "Run the jobs of an app, in one process or several.",
    "dev": "Run a worker for development: friendly output, --reload.",
    "ui": "Serve the dashboard: see and steer the jobs in a browser.",
    "enqueue": "Enqueue a job, and perhaps wait for its result.",
    "jobs": "List, show, watch, retry, cancel, change, delete and prune jobs.",
    "bulk": "List, show and stop acts on all jobs that match a filter.",
    "schedules": "List, show, add, change and pause schedules; see what they did.",
    "server": "Serve the jobs over gRPC, to workers without the database.",
    "token": "Make, list and revoke the tokens of a server's callers.",
    "top": "Show queues, workers, dead letters and the last hour, live.",
    "stats": "Show how many jobs ran and failed, how long they took, and the errors.",
    "audit": "Show what operators did: cancel, delete, retry, prune, schedules, tokens.",
    "queues": "Show the queues: due, running, how fast; pause, resume and limit them.",
    "topics": "Pause and resume topics, in all queues.",
    "limits": "Show limits and what they have in use; change, pause and resume them.",
    "workers": "Show which workers are alive; drain or stop them.",
    "migrate": "Create or update the database's tables.",
    "doctor": "Check the database, its jobs and its workers.",
}

ENVIRONMENT = """\b
environment:
  PULSED_APP         the app, when none is given: module:attribute
  PULSED_URL         the database, when neither --url nor the app names one
  DATABASE_URL       the database, when PULSED_URL is not set either
  PULSED_TOKEN       authenticates to a server whose URL has no token
  PULSED_ACTOR       who acts, in the audit log [default: user@host]
  PULSED_KEEP        the default of --keep
  PULSED_LOG_LEVEL   the default of --log-level
  PULSED_LOG_FORMAT  the default of --log-format
  PULSED_DEBUG       1 shows the traceback of an error
  NO_COLOR           anything turns colours off"""

EXAMPLES = """\b
examples:
  pulsed dev shop.jobs:app --reload
  pulsed worker shop.jobs:app -q default,mail -c 100 --processes 4
  pulsed enqueue send_email to=ada@example.com subject=hi --wait
  pulsed jobs list --status dead --since 2h
  pulsed jobs list --status dead --ids | pulsed jobs retry -
  pulsed schedules add report send_report --cron '0 9 * * MON-FRI'
  pulsed top --url postgresql://localhost/shop
  pulsed doctor --url postgresql://localhost/shop"""

EXIT_CODES = """\b
exit codes:
  0 ok                3 not found          6 unhealthy (doctor)
  1 failure           4 unreachable        7 the awaited job failed
  2 usage             5 schema             130 interrupted"""

COMPLETION = """\b
completion (bash; zsh and fish likewise):
  eval "$(_PULSED_COMPLETE=bash_source pulsed)\""""

EPILOG = f"{EXAMPLES}\n\n{ENVIRONMENT}\n\n{EXIT_CODES}\n\n{COMPLETION}"


class Root(Group):
    """Loads a subcommand when it is called, and turns every error into an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the table, in which a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one subcommand."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"pulsed.cli.commands.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Run the command, and exit with its code."""
        options["standalone_mode"] = False
        exit_after(lambda: super(Root, self).main(*args, **options))


def _show_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value and not ctx.resilient_parsing:
        # With Python's version, which bug reports forget.
        click.echo(f"pulsed {__version__} (Python {platform.python_version()})")
        ctx.exit()


@click.group(
    cls=Root,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
def root() -> None:
    """Durable jobs for Python, in SQLite or PostgreSQL."""


def main() -> NoReturn:
    """Run the command ``pulsed``."""
    root.main(prog_name="pulsed")
