"""The command ``pulsed``: one module for each command, loaded only when it is called."""

import sys
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command ``pulsed``."""
    try:
        from pulsed.cli.root import main as run  # noqa: PLC0415 - so that it can be interrupted
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run()
