"""The banner that a worker prints when it starts."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich.text import Text

from pulsed.app import Pulse
from pulsed.cli.view.output import console, joined
from pulsed.engine.worker.options import WorkerOptions, WorkerSettings
from pulsed.model.retention import described
from pulsed.store.open import where
from pulsed.version import __version__

log = logging.getLogger("pulsed.worker")


def announce(
    app: Pulse,
    working: WorkerSettings,
    *,
    quiet: bool,
    title: str = "worker",
    try_next: Iterable[str] = (),
) -> None:
    """Print what runs and how to stop it: for a person on a terminal, else in one log line.

    ``try_next`` are commands for a second terminal.
    """
    database = where(app.url)
    if quiet or not sys.stderr.isatty():
        log.info("pulsed %s, process %d, database %s", __version__, os.getpid(), database)
        return
    options = WorkerOptions(queues=working["queues"], concurrency=working["concurrency"])
    queues = options.served_queues(app.registry)
    lines = {
        "database": database,
        "queues": _queues(queues),
        "topics": joined(sorted(h.topic for h in app.registry if h.queue in queues)),
        "slots": _slots(options, app),
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
        screen.print(Text.assemble((f"  {name:9} ", "dim"), value), soft_wrap=True)
    if commands := list(try_next):
        screen.print("\ntry, in a second terminal in this directory:", style="dim")
        screen.print("".join(f"  {command}\n" for command in commands), soft_wrap=True)


def _slots(options: WorkerOptions, app: Pulse) -> str:
    """Return how many jobs run at once, and the threads and connections that may take."""
    slots = options.concurrency
    if slots == 1 or not options.uses_threads(app.registry):
        return f"{slots}"
    return (
        f"{slots}; def handlers run in up to {slots} threads, "
        "which may open as many database connections (-c)"
    )


def _queues(queues: Sequence[str] | Mapping[str, float]) -> str:
    if isinstance(queues, Mapping) and len(set(queues.values())) > 1:
        return ", ".join(f"{name} (weight {weight:g})" for name, weight in queues.items())
    return ", ".join(queues)
