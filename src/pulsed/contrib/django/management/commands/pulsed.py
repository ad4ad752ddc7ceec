"""``manage.py pulsed …``: the command ``pulsed`` with the project's app."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from pulsed.cli.root import root
from pulsed.cli.variables import APP_VARIABLE
from pulsed.contrib.django.current import project_app
from pulsed.model.job import DEFAULT_QUEUE

APP = "pulsed.contrib.django:app"


class Command(BaseCommand):
    """Hands everything to the command line of pulsed."""

    help = "Run the command line of pulsed for this project: worker, dev, jobs, doctor and so on."
    # Its own options are pulsed's; Django's checks run when a worker starts, see below.
    requires_system_checks: list[str] = []  # noqa: RUF012 - as Django declares it

    def run_from_argv(self, argv: list[str]) -> None:
        """Run with what follows ``manage.py pulsed``, options included."""
        script = Path(argv[0])
        find_in(script.resolve().parent)
        self.call(argv[2:], prog=f"{script.name} {argv[1]}")

    def add_arguments(self, parser: CommandParser) -> None:
        """Take anything, for ``call_command("pulsed", "jobs", "list")``."""
        parser.add_argument("arguments", nargs="*")

    def handle(self, *_: Any, arguments: list[str], **__: Any) -> None:
        """Run with the arguments of ``call_command``."""
        self.call(arguments)

    def call(self, arguments: list[str], prog: str = "manage.py pulsed") -> None:
        """Run the command, and exit with its code."""
        os.environ[APP_VARIABLE] = APP
        sys.argv = ["pulsed", *arguments]  # what `dev --reload` starts again
        if arguments[:1] in (["worker"], ["dev"]):
            self.check()
            arguments = with_queues(arguments)
        root.main(args=arguments, prog_name=prog)


def find_in(folder: Path) -> None:
    """Have processes that pulsed starts find the project's modules, as ``manage.py`` does."""
    paths = [str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in dict.fromkeys(paths) if path)


def with_queues(arguments: list[str]) -> list[str]:
    """Have a worker take every queue that the settings allow tasks in, unless it names some."""
    if any(each.startswith(("-q", "--queues", "-h", "--help")) for each in arguments):
        return arguments
    app = project_app()
    declared = {handler.queue for handler in app.registry}
    backends = getattr(settings, "TASKS", {}).values()
    allowed = [each.get("QUEUES", [DEFAULT_QUEUE]) for each in backends]
    return [*arguments, "--queues", ",".join(sorted(declared.union(*allowed)))]
