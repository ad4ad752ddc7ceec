"""What a worker says about itself when it starts."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from pulsed.app import Pulse
from pulsed.cli.output import console, joined
from pulsed.engine.options import WorkerOptions
from pulsed.retention import described
from pulsed.store.open import redacted
from pulsed.version import __version__

if TYPE_CHECKING:
    from pulsed.cli.worker import WorkingOptions

log = logging.getLogger("pulsed.worker")


def announce(app: Pulse, working: WorkingOptions, *, quiet: bool, title: str = "worker") -> None:
    """Tell a person what runs and how to stop it; tell a log file in one line."""
    database = redacted(app.url)
    if quiet or not sys.stderr.isatty():
        log.info("pulsed %s, process %d, database %s", __version__, os.getpid(), database)
        return
    queues = WorkerOptions(queues=working["queues"]).served_queues(app.registry)
    lines = {
        "database": database,
        "queues": _queues(queues),
        "topics": joined(sorted(h.topic for h in app.registry if h.queue in queues)),
        "slots": f"{working['concurrency']}",
        "keep": described(app.retention.ages),
        "stop": "Ctrl-C finishes what runs; twice hands it back",
    }
    if others := sorted(f"{h.topic} (-q {h.queue})" for h in app.registry if h.queue not in queues):
        lines["not here"] = joined(others)
    if not working["schedules"]:
        lines["schedules"] = "left to other workers"
    screen = console(sys.stderr)
    screen.print(Text.assemble(("pulsed ", "bold"), (__version__, "bold"), f" {title}"))
    for name, value in lines.items():
        screen.print(Text(f"  {name:9} ", style="dim").append(value), soft_wrap=True)


def _queues(queues: Sequence[str] | Mapping[str, float]) -> str:
    if isinstance(queues, Mapping) and len(set(queues.values())) > 1:
        return ", ".join(f"{name} (weight {weight:g})" for name, weight in queues.items())
    return ", ".join(queues)
