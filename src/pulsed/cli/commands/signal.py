"""``pulsed jobs signal``: send a message to a workflow."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from pulsed.cli.exits import Code, CommandError, say
from pulsed.cli.options.arguments import refused_constant
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.options.job_ids import find_id
from pulsed.client.signals import send_signal
from pulsed.store.blocking import run_blocking


# A payload may be a negative number.
@click.command(
    "signal",
    short_help="Send a workflow a signal that it waits for.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("job_id", metavar="ID")
@click.argument("name")
@click.argument("payload", metavar="[JSON|@FILE|-]", default="null")
@database_options
def signal(database: Database, job_id: str, name: str, payload: str) -> None:
    """Send a workflow the signal that its ctx.wait_signal(NAME) waits for.

    The payload is JSON: as an argument, in a file, or on stdin; null without one. A signal that
    arrives before the workflow waits for it is kept.

    \b
    Examples:
      pulsed jobs signal 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69 approved true
      pulsed jobs signal 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69 note '"a text"'
      pulsed jobs signal 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69 reply @reply.json
    """
    value = _read(payload)
    with database.store() as store:
        wanted = find_id(store, job_id)
        run_blocking(send_signal(store, wanted, name, value))
    print(wanted)
    say(f"sent the signal {name!r}")


def _read(payload: str) -> Any:
    text = payload
    if payload == "-":
        text = sys.stdin.read()
    elif payload.startswith("@"):
        text = _content(Path(payload[1:]))
    try:
        return json.loads(text, parse_constant=refused_constant)
    except ValueError as error:
        raise CommandError(
            f"the payload of a signal is JSON ({error}). A text needs quotes of its own: "
            "'\"like this\"'.",
            Code.USAGE,
        ) from None


def _content(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise CommandError(f"{file} cannot be read: {error.strerror}.", Code.USAGE) from None
    except UnicodeError:
        raise CommandError(f"{file} is not UTF-8, as JSON is.", Code.USAGE) from None
