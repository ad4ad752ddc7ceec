"""Records the first five minutes: `dev.py record` types the quickstart into two terminals.

Writes `docs/first-session.txt`. What the machine adds is taken out of it: the directory, its name.
"""

from __future__ import annotations

import itertools
import operator
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.pages import ROOT
from tests.support.terminals import PROMPT
from tests.support.typed_pages import NOT_TYPED, File, Shown, Typed, Typist, steps

QUICKSTART = ROOT / "docs/quickstart.md"
SESSION = ROOT / "docs/first-session.txt"
END = "## 6."
"""The heading of the quickstart that is not recorded: not everyone has a PostgreSQL."""

FOLDER = "/home/ada/shop"
ANYTHING = "…\n"
MORE = (
    Typed("second", "pulsed jobs list --app flaky:app", ANYTHING),
    Typed("second", "pulsed doctor --app flaky:app", ANYTHING),
    Typed("first", "^C", ANYTHING),
)
"""What one looks at next."""

QUIET = 0.3
"""Seconds for a terminal to show what it is about to show."""

WIDTH = 100
HEADING = """\
The first five minutes: the quickstart in two terminals, as `python3 dev.py record` typed it.
Lines with $ were typed. Everything else is what pulsed and Python answered.
"""


def record(folder: Path) -> Iterator[tuple[str, str]]:
    """Type the quickstart; yield what is saved and what each terminal shows, under its title."""
    typist = Typist(folder, {FOLDER: str(folder)})
    seen = dict.fromkeys(typist.terminals, len(PROMPT))
    try:
        for step in (*steps(QUICKSTART, until=END), *MORE):
            match step:
                case Typed(line=line) if NOT_TYPED.match(line):
                    yield "the clone", f"$ {line}\n"
                case File(name, code):
                    typist.do(step)
                    yield name, code.partition("\n")[2]
                case Typed(typed, line):
                    typist.do(step)
                    time.sleep(QUIET)
                    prompt = "" if line == "^C" else PROMPT
                    for name in sorted(seen, key=typed.__ne__):  # the one typed into first
                        text = typist.terminals[name].everything
                        shown, seen[name] = text[seen[name] :].removesuffix(PROMPT), len(text)
                        yield f"{name} terminal", shown and f"{prompt * (name == typed)}{shown}"
                case Shown():
                    typist.do(step)  # recorded above: it came with what was typed before
    finally:
        typist.close()


def as_text(parts: Iterable[tuple[str, str]]) -> str:
    """Return the parts, those of one title in a row under one heading."""
    text = HEADING
    filled = ((title, part) for title, part in parts if part)
    for title, group in itertools.groupby(filled, key=operator.itemgetter(0)):
        text += f"\n── {title} " + "─" * (WIDTH - len(title) - 4) + "\n"
        text += "".join(part for _, part in group)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def main() -> None:
    """Record, and write the file."""
    with tempfile.TemporaryDirectory() as folder:
        session = as_text(record(Path(folder))).replace(folder, FOLDER)
    session = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "laptop", session)
    SESSION.write_text(session, "utf-8")
    print(f"wrote {SESSION.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
