"""Runs a page that has another library's code on the left and pulsed's on the right.

``python -m tests.support.side_by_side PAGE`` runs it in a process of its own, in the current
directory, since the other library leaves threads behind. Each side has a namespace. What the two
sides of a table print is the same, and what the page shows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from celery import Celery
from celery.contrib.testing.worker import start_worker

from tests.support.page_run import PageRun
from tests.support.pages import Block, blocks

LEFT = "<tr><td>"
IN_MEMORY = {
    'broker="redis://localhost"': 'broker="memory://"',
    'backend="redis://localhost"': 'backend="cache+memory://"',
    ".get(timeout=10)": ".get(timeout=10, interval=0.01)",
}
"""What is replaced on the left: it needs no broker then, and waits less for each result."""


class SideBySide(PageRun):
    """Runs both sides of each table of a page, with a worker for each."""

    def __init__(self, page: Path) -> None:
        super().__init__(page, None)
        self.sides: list[dict[str, Any]] = [{"__name__": side} for side in ("left", "right")]
        self.pairs = 0
        self.stack = ExitStack()
        self.update_tasks: Callable[[], None] | None = None

    def run(self) -> None:
        left = ""
        for block in filter(is_shown, blocks(self.page)):
            if "output" in block.directives:
                assert left == self.printed == block.code, (left, self.printed, block.line)
            elif block.prose.rstrip().endswith(LEFT):
                self.run_left(block)
                left = self.printed
            else:
                self.run_right(block)
                assert left == self.printed, (left, self.printed, block.line)
                self.pairs += 1

    def run_left(self, block: Block) -> None:
        self.namespace = self.sides[0]
        code = block.code
        for real, memory in IN_MEMORY.items():
            code = code.replace(real, memory)
        if self.update_tasks:
            self.update_tasks()
        self.run_block(Block(block.language, code, block.line, {}, ""))
        if self.update_tasks is None:
            self.update_tasks = start_celery(sys.modules["tasks"].celery, self.stack)

    def run_right(self, block: Block) -> None:
        self.namespace = self.sides[1]
        if "jobs" in self.modules:
            self.start_worker(sys.modules["jobs"].app)  # one that knows what was declared since
        self.run_block(block)


def is_shown(block: Block) -> bool:
    """Whether a block is code to run, or what it prints."""
    return block.language == "python" or "output" in block.directives


def start_celery(app: Celery, stack: ExitStack) -> Callable[[], None]:
    """Start a worker in this process; returns what tells it of tasks that were declared since."""
    app.conf.broker_transport_options = {"polling_interval": 0.01}
    options = {"pool": "solo", "queues": ["celery", "mail"], "perform_ping_check": False}
    worker = stack.enter_context(start_worker(app, loglevel="ERROR", **options))
    update: Callable[[], None] = worker.consumer.update_strategies
    return update


def main(page: Path) -> None:
    """Run a page, and say how much of it there was."""
    run = SideBySide(page)
    run.run()
    sys.stdout.write(f"{run.pairs} pairs of blocks agree\n")
    sys.stdout.flush()
    os._exit(0)  # Celery's worker takes seconds to stop


if __name__ == "__main__":
    main(Path(sys.argv[1]))
