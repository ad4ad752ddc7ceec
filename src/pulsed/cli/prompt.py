"""Confirmation before something that cannot be undone."""

from __future__ import annotations

import sys

import click

from pulsed.cli.exits import Code, CommandError, say


def confirm(question: str, *, yes: bool) -> None:
    """Ask whether to do it; return only if the answer is yes."""
    if yes:
        say(question)
        return
    if not can_ask():
        raise CommandError(
            f"this would {question}. There is no terminal to ask on: add --yes to do it.",
            Code.USAGE,
        )
    if not click.confirm(f"{question[0].upper()}{question[1:]}?", err=True):
        raise CommandError("nothing was done.", Code.FAILURE)


def can_ask() -> bool:
    """Whether stdin is a terminal, where a user can answer."""
    return sys.stdin.isatty()
