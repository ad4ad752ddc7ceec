"""The options that say which jobs a command is about."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from pulsed.cli.view.times import past
from pulsed.model.job import Status
from pulsed.model.outcome import OUTCOMES

F = TypeVar("F", bound=Callable[..., Any])

NAMES = (
    "status", "topic", "queue", "tag", "error", "since", "until", "parent", "payload", "worker",
    "schedule", "id", "key", "outcome",
)  # fmt: skip


def statuses(value: str | tuple[Status, ...]) -> tuple[Status, ...]:
    """Parse statuses, or their prefixes: ``dead`` is DEAD_LETTERED. Commas separate several."""
    if isinstance(value, tuple):
        return value
    return tuple(status(word.strip()) for word in value.split(","))


def status(word: str) -> Status:
    """Parse one status, or its prefix."""
    found = [each for each in Status if word and each.startswith(word.upper())]
    if len(found) != 1:
        raise click.BadParameter(f"{word!r} is not one of {', '.join(Status).lower()}.")
    return found[0]


def payload_field(given: str | tuple[str, Any]) -> tuple[str, Any]:
    """Parse a field of the payload and its value: JSON, or else a text."""
    if isinstance(given, tuple):
        return given
    path, equals, text = given.partition("=")
    if not equals:
        raise click.BadParameter(f"{given!r} is no field and its value, such as user.id=7.")
    try:
        return path, msgspec.json.decode(text)
    except msgspec.DecodeError:
        return path, text


def _complete_status(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    return [status.lower() for status in Status if status.startswith(begun.upper())]


def status_option(text: str) -> Callable[[F], F]:
    """Return the option for statuses, with this help text."""
    return click.option(
        "--status",
        type=statuses,
        metavar="STATUS",
        shell_complete=_complete_status,
        multiple=True,
        help=text,
    )


_OPTIONS = (
    status_option("pending, running, retrying, waiting, succeeded, dead, cancelled; repeatable."),
    click.option("--topic", help="The handler's name, or its beginning: 'send*'."),
    click.option("--queue", help="The queue."),
    click.option("--tag", help="A tag of the job."),
    click.option("--error", metavar="TEXT", help="A part of its last error, in any case."),
    click.option(
        "--since", type=past, metavar="TIME", help="Submitted since: 30m, 2h, 3d or ISO-8601."
    ),
    click.option(
        "--until", type=past, metavar="TIME", help="Submitted before: 30m, 2h, 3d or ISO-8601."
    ),
    click.option("--parent", metavar="ID", help="The children of this job."),
    click.option(
        "--payload",
        type=payload_field,
        metavar="FIELD=VALUE",
        multiple=True,
        help="A field of the payload, such as user.id=7; repeatable. What is not JSON is text.",
    ),
    click.option("--worker", metavar="ID", help="The jobs that this worker is running."),
    click.option("--schedule", metavar="ID", help="The jobs of the schedule with this id."),
    click.option(
        "--id", metavar="ID", help="The id, its beginning ('0197a8c2*') or its end ('*4b5a69')."
    ),
    click.option("--key", help="The jobs that hold this key, or held it."),
    click.option(
        "--outcome",
        type=click.Choice([outcome.lower() for outcome in OUTCOMES], case_sensitive=False),
        metavar="OUTCOME",
        help="How its last run ended, such as failed; or expired: not started in time.",
    ),
)


def filter_options(command: F) -> F:
    """Give a command the filter options, and pass those that were used as ``where``."""

    @functools.wraps(command)
    def with_filter(**options: Any) -> Any:
        given = {name: options.pop(name) for name in NAMES}
        where = {name: value for name, value in given.items() if value not in (None, ())}
        if "status" in where:
            where["status"] = tuple(status for group in where["status"] for status in group)
        if "payload" in where:
            where["payload"] = dict(where["payload"])
        return command(where=where, **options)

    wrapped: Any = with_filter
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]
