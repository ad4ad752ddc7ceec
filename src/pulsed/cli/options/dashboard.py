"""The dashboard beside a development worker."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import click

from pulsed.app import Pulse
from pulsed.cli.exits import say
from pulsed.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

ROLES = ("viewer", "operator", "admin")


def dashboard_options(command: F) -> F:
    """Give a command the options of a dashboard on this machine."""
    for option in (
        click.option(
            "--ui-role",
            type=click.Choice(ROLES),
            default="viewer",
            show_default=True,
            help="What the dashboard's visitors may do.",
        ),
        click.option(
            "--ui/--no-ui", default=True, help="Serve the dashboard [default: if it is installed]."
        ),
    ):
        command = option(command)
    return command


@contextlib.asynccontextmanager
async def dashboard_beside(app: Pulse, role: str | None) -> AsyncIterator[None]:
    """Serve the dashboard on this machine while the block runs, and print its address.

    Without a role, or if the extra is not installed, nothing is served.
    """
    packages = ("starlette", "jinja2", "uvicorn")
    if role is None or not all(importlib.util.find_spec(name) for name in packages):
        yield
        return
    from pulsed.web.access import Role  # noqa: PLC0415 - only with the extra
    from pulsed.web.serve import Serving, serving  # noqa: PLC0415

    how = Serving(role=Role[role.upper()])
    async with contextlib.AsyncExitStack() as stack:
        try:
            served = await stack.enter_async_context(serving(app, how))
        except ConfigError:  # the port is taken, by another dashboard perhaps
            how = dataclasses.replace(how, listen="127.0.0.1:0")
            served = await stack.enter_async_context(serving(app, how))
        say(f"dashboard: {served.url}")
        yield
