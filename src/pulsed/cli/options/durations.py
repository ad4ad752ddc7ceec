"""Options that take a duration: ``90``, ``30s``, ``5m``, ``2h`` or ``3d``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from pulsed.cli.view.times import duration

F = TypeVar("F", bound=Callable[..., Any])


def time_option(name: str, text: str, *, default: str | None = None) -> Callable[[F], F]:
    """Return an option that passes on seconds."""
    return click.option(
        name, type=duration, metavar="TIME", default=default, show_default=True, help=text
    )
