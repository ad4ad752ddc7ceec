"""Runs a page that has another library's code on the left and pulsed's on the right.

``python -m tests.support.side_by_side PAGE`` runs it in a process of its own, in the current
directory, since the other library leaves threads behind. Each side has a namespace. What the two
sides of a table print is the same, and what the page shows.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.other_libraries import LIBRARIES
from tests.support.page_run import PageRun
from tests.support.pages import Block, blocks

LEFT = "<tr><td>"


class SideBySide(PageRun):
    """Runs both sides of each table of a page, with a worker for each."""

    def __init__(self, page: Path) -> None:
        super().__init__(page, None)
        self.sides = [module_of(side) for side in ("left", "right")]
        self.library = LIBRARIES[page.name]()
        self.pairs = 0

    def run(self) -> None:
        left = ""
        for block in filter(is_shown, blocks(self.page)):
            if "output" in block.directives:
                assert self.printed == block.code, (self.printed, block.line)
            elif block.prose.rstrip().endswith(LEFT):
                self.run_left(block)
                left = self.printed
            else:
                self.run_right(block)
                self.compare(left, block.line)
                self.pairs += 1
        self.library.close()

    def compare(self, left: str, line: int) -> None:
        same = left == self.printed or not (left or self.library.returns_results)
        assert same, (left, self.printed, line)

    def run_left(self, block: Block) -> None:
        self.namespace = self.sides[0]
        code = block.code
        for real, memory in self.library.replaced.items():
            code = code.replace(real, memory)
        self.library.before()
        self.run_block(Block(block.language, code, block.line, {}, ""))

    def run_right(self, block: Block) -> None:
        self.namespace = self.sides[1]
        if "jobs" in self.modules:
            self.start_worker(sys.modules["jobs"].app)  # one that knows what was declared since
        self.run_block(block)


def module_of(side: str) -> dict[str, Any]:
    """The namespace of a side: that of a module, so that its functions can be found by name."""
    module = sys.modules[side] = ModuleType(side)
    return vars(module)


def is_shown(block: Block) -> bool:
    """Whether a block is code to run, or what it prints."""
    return block.language == "python" or "output" in block.directives


def main(page: Path) -> None:
    """Run a page, and say how much of it there was."""
    run = SideBySide(page)
    run.run()
    sys.stdout.write(f"{run.pairs} pairs of blocks agree\n")
    sys.stdout.flush()
    os._exit(0)  # the other library's worker takes seconds to stop


if __name__ == "__main__":
    main(Path(sys.argv[1]))
