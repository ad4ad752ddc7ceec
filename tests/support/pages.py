"""The documentation's pages: their blocks of code, and what is written before each of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACEHOLDER = "postgresql://user:password@host/database"
"""Where a page means the reader's own PostgreSQL."""

BLOCK = re.compile(
    r"(?P<before>(?:^<!--.*?-->\n)*)^```(?P<language>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
DIRECTIVE = re.compile(r"<!-- (\w+)(?:: (.*?))? -->")
FILE = re.compile(r"# (\w+)\.py\n")
"""The first line of a block that is a file."""


@dataclass(frozen=True)
class Block:
    """A block of code or of output."""

    language: str
    code: str
    line: int
    directives: dict[str, str]
    prose: str
    """What stands between the block before it and this one."""


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in their order."""
    text = page.read_text("utf-8")
    found = list(BLOCK.finditer(text))
    ends = [0, *(each.end() for each in found)]
    return [
        Block(
            each["language"],
            each["code"],
            text.count("\n", 0, each.start("code")) + 1,
            dict(DIRECTIVE.findall(each["before"])),
            text[end : each.start()],
        )
        for each, end in zip(found, ends, strict=False)
    ]
