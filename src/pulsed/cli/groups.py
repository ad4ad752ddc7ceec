"""Groups of commands that suggest a name for a misspelt one."""

from __future__ import annotations

import difflib

import click
from click.core import ParameterSource


class Group(click.Group):
    """A group that suggests commands for a name it does not know."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, or fail with the names that are similar."""
        name = args[0] if args else ""
        if args and not name.startswith("-") and self.get_command(ctx, name) is None:
            similar = difflib.get_close_matches(name, self.list_commands(ctx), n=3, cutoff=0.6)
            meant = f" Did you mean {' or '.join(similar)}?" if similar else ""
            ctx.fail(f"{ctx.command_path} has no command {name!r}.{meant}")
        return super().resolve_command(ctx, args)


def refuse_options(ctx: click.Context) -> None:
    """Fail if options stand before the command that they were meant for."""
    for name in ctx.params:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"Write the options after {ctx.invoked_subcommand!r}.")
