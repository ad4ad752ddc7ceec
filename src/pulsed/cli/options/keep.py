"""``--keep``: how long finished jobs are kept, as a person writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
import msgspec

from pulsed.cli.options.filters import status
from pulsed.client.prune import UNLESS_NAMED
from pulsed.errors import InvalidOption
from pulsed.model.retention import Age, Retention
from pulsed.wording import parse_duration

F = TypeVar("F", bound=Callable[..., Any])

FOREVER = "forever"
STATS = "stats"
KEEP_VARIABLE = "PULSED_KEEP"


def keep(value: str | Mapping[str, Age]) -> Mapping[str, Age]:
    """Parse ``7d``, ``forever`` or ``succeeded=1d,stats=90d``: fields of a ``Retention``."""
    if not isinstance(value, str):
        return value
    kept: dict[str, Age] = {}
    for part in value.split(","):
        name, equals, length = part.rpartition("=")
        named = [_field(name.strip())] if equals else [each.lower() for each in UNLESS_NAMED]
        kept |= {each: _age(length.strip()) for each in named}
    try:
        Retention(**kept)
    except TypeError:
        raise click.BadParameter(f"{value!r}: only finished jobs are removed.") from None
    except InvalidOption as error:
        raise click.BadParameter(f"{value!r}: {error}") from None
    return kept


def _field(name: str) -> str:
    return STATS if name.lower() == STATS else status(name).lower()


def _age(text: str) -> Age:
    if text.lower() == FOREVER:
        return None
    seconds = parse_duration(text)
    if seconds is None:
        raise click.BadParameter(
            f"{text!r} is no time to keep jobs for; write 7d, forever, or by status: "
            "succeeded=1d,dead=90d."
        )
    return seconds


def changed(retention: Retention, kept: Mapping[str, Age] | None) -> Retention:
    """Return a policy with the values of the option in place of its own."""
    return msgspec.structs.replace(retention, **kept or {})


keep_option = click.option(
    "--keep",
    type=keep,
    metavar="TIME",
    envvar=KEEP_VARIABLE,
    help="How long finished jobs are kept: 7d, forever, or succeeded=1d,dead=90d; statistics: "
    "stats=90d [default: the app's retention].",
)
