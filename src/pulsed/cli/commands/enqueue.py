"""``pulsed enqueue``: a job from the command line, and its result if wanted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from pulsed.app import Pulse
from pulsed.cli.exits import Code, CommandError, say
from pulsed.cli.options.arguments import pair, payload_of, quoting_explained
from pulsed.cli.options.database import IMPATIENT, Database, database_options, point
from pulsed.cli.options.durations import time_option
from pulsed.cli.options.loading import load_app
from pulsed.cli.plain import harmless_json
from pulsed.cli.variables import APP_VARIABLE
from pulsed.cli.view.times import duration, expiry, future
from pulsed.client.job import Job
from pulsed.engine.held_back import why
from pulsed.errors import ResultTimeout
from pulsed.model.keys import UNTIL_END, UNTIL_START
from pulsed.store.blocking import run_blocking
from pulsed.store.open import sqlite_path

EXAMPLES = """\b
examples:
  pulsed enqueue send_email to=ada@example.com subject=hi
  pulsed enqueue resize image=42 sizes='[64, 128]' --delay 5m --queue media
  pulsed enqueue add a=1 b=2 --wait --timeout 30
  echo '{"to": "ada@example.com", "subject": "hi"}' | pulsed enqueue send_email -

\b
A value that is JSON is taken as such, anything else is a string: n=1 is a number, name=ada a
string, and code='"1"' the string 1. With an app, topic and arguments are checked against it;
without one, any topic goes, but the database must exist.

\b
environment:
  PULSED_APP     the app, when --app is not given
  PULSED_URL     the database, when neither --url nor the app names one
  DATABASE_URL   the database, when PULSED_URL is not set either"""


@click.command(epilog=EXAMPLES)
@click.argument("topic")
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE…|-]")
@click.option("--json-args", metavar="OBJECT", help="All arguments as one JSON object.")
@time_option("--delay", "Do not start before this has passed: 30s, 5m, 2h.")
@click.option(
    "--at", type=future, metavar="TIME", help="Do not start before this instant (ISO-8601)."
)
@click.option(
    "--expires",
    type=expiry,
    metavar="TIME",
    help="Do not start it after this instant (ISO-8601), or this long after it is due: 5m, 2h.",
)
@click.option("--queue", help="The queue [default: the handler's].")
@click.option("--priority", type=int, help="-100 to 100; higher runs first.")
@click.option("--max-attempts", type=int, help="Attempts before it is dead-lettered.")
@click.option("--tag", "tags", multiple=True, help="A tag to find it by; repeatable.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Repeatable.")
@click.option("--key", help="At most one job of the topic holds it.")
@click.option(
    "--key-for", metavar="start|end|TIME", help="How long it holds its key [default: end]."
)
@click.option(
    "--on-duplicate",
    type=click.Choice(["return", "raise", "replace"]),
    help="If another job holds the key: print that job's id, fail, or replace its arguments "
    "[default: return].",
)
@click.option(
    "--id",
    metavar="UUID",
    help="The job's id; a repeated command with it stores nothing new.",
)
@click.option("--wait", is_flag=True, help="Wait for the job and print its result as JSON.")
@time_option("--timeout", "How long --wait may take.")
@database_options
def enqueue(
    database: Database,
    topic: str,
    arguments: tuple[str, ...],
    json_args: str | None,
    headers: tuple[str, ...],
    wait: bool,
    timeout: float | None,
    **options: Any,
) -> None:
    """Enqueue a job and print its id; with --wait, print its result.

    Exits with 7 if an awaited job fails or is cancelled.
    """
    payload = payload_of(arguments, json_args)
    if headers:
        options["headers"] = dict(pair(header, "--header") for header in headers)
    if (key_for := options.get("key_for")) not in (None, UNTIL_START, UNTIL_END):
        options["key_for"] = duration(key_for)
    chosen = {name: value for name, value in options.items() if value not in (None, ())}
    with producer(database) as app:
        with quoting_explained(arguments):
            job = app.enqueue(topic, payload, **chosen)
        if not wait:
            print(job.id)
            return
        say(f"waiting for {job.id}")
        print(_result(app, job, timeout))


def producer(database: Database) -> Pulse:
    """Return the app that checks the job, or one that lets every topic pass."""
    name = database.app or os.environ.get(APP_VARIABLE)
    if name:
        app = load_app(name)
        point(app, database.url)
        return app
    url, _ = database.resolved()
    _check_existence(url)
    return Pulse(url, migrate=False, retry=IMPATIENT)


def _check_existence(url: str) -> None:
    """Refuse to make a file that only a typo may have named."""
    path = sqlite_path(url) if url.partition(":")[0].lower() == "sqlite" else None
    if path is not None and not Path(path).exists():
        raise CommandError(
            f"there is no database at {Path(path).absolute()}. If that is the right path, run "
            "`pulsed migrate up` first, or name the --app.",
            Code.UNREACHABLE,
        )


def _result(app: Pulse, job: Job[Any], timeout: float | None) -> str:
    """Wait, and return the result as the database has it; say why there is none in time."""
    try:
        job.result(timeout)
    except ResultTimeout:
        for hint in _hints(app, job):
            say(hint)
        raise
    return harmless_json(job.row.result or "null")


def _hints(app: Pulse, job: Job[Any]) -> Sequence[str]:
    async def ask() -> list[str]:
        row = (await job.arefresh()).row
        return await why(app.store, row)

    return run_blocking(ask())
