"""The command ``pulsed``: one module for each command, loaded only when it is called."""

from pulsed.cli.root import main

__all__ = ["main"]
