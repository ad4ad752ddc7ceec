"""The dashboard beside a development worker or a server."""

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
from pulsed.extras import install_command

F = TypeVar("F", bound=Callable[..., Any])

ROLES = ("viewer", "operator", "admin")


def dashboard_options(*, default: bool) -> Callable[[F], F]:
    """Give a command the options of a dashboard on this machine."""
    usually = "if it is installed" if default else "no"

    def with_dashboard(command: F) -> F:
        for option in (
            click.option(
                "--ui-role",
                type=click.Choice(ROLES),
                default="viewer",
                show_default=True,
                help="What the dashboard's visitors may do.",
            ),
            click.option(
                "--ui/--no-ui",
                default=default,
                help=f"Serve the dashboard on this machine [default: {usually}].",
            ),
        ):
            command = option(command)
        return command

    return with_dashboard


@contextlib.asynccontextmanager
async def dashboard_beside(
    app: Pulse, role: str | None, *, required: bool = False
) -> AsyncIterator[None]:
    """Serve the dashboard on this machine while the block runs, and print its address.

    Without a role nothing is served, nor if the extra is not installed, unless it is ``required``.
    """
    packages = ("starlette", "jinja2", "uvicorn")
    is_installed = all(importlib.util.find_spec(name) for name in packages)
    if role is None or not (required or is_installed):
        if role is not None:
            say(f"no dashboard, which is not installed: {install_command('ui')}")
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
