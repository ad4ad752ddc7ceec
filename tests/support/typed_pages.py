"""Types a page of the documentation into two terminals, and expects to see what the page shows.

Only what a reader sees counts. A block that begins with ``# name.py`` is saved under that name.
Which terminal a ``console`` block is typed into is said by the prose before it ("in the first
terminal"), and so is where a ``text`` block appears. Times, durations, ids, versions and the width
of columns may differ, and ``…`` stands for anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.pages import FILE, Block, blocks
from tests.support.terminals import CONTROL_C, ENTER, PROMPT, Terminal

RUNS_ON = re.compile("pulsed (dev|worker) ")
"""Commands that do not come back to the prompt by themselves."""
NOT_TYPED = re.compile("pip install ")
"""The page's only commands that are not typed: the installation is there."""

_TERMINAL = re.compile(r"(first|second)\s+terminal", re.IGNORECASE)
_COMMAND = re.compile(r"^(?:\$ (?P<line>.+)\n|(?P<keys>\^C))", re.MULTILINE)
_VARIABLE = {
    r"\d\d:\d\d:\d\d\.\d{3}": r"\d\d:\d\d:\d\d\.\d{3}",
    r"[0-9a-f]{8}-[0-9a-f-]{27}": r"[0-9a-f]{8}-[0-9a-f-]{27}",
    r"127\.0\.0\.1:8484": r"127\.0\.0\.1:\d+",
    r"\d+\.\d+\.\d+": r"\d+\.\d+\.\w+",
    r"\d+(?:\.\d+)? ?(?:ms|s)\b": r"[\d.]+ ?(?:ms|s)",
    r"^…\n": r"(?:.*\n)*?",
    r"…": r".*",
}
"""What differs from run to run, as a page shows it, and what it may be."""
_ANY_VARIABLE = re.compile("|".join(f"({each})" for each in _VARIABLE), re.MULTILINE)


@dataclass(frozen=True)
class File:
    """A file to save."""

    name: str
    code: str


@dataclass(frozen=True)
class Typed:
    """Something typed into a terminal, and what it answers."""

    terminal: str
    line: str
    """A command, or ``^C``."""
    shown: str


@dataclass(frozen=True)
class Shown:
    """What a terminal shows while the block runs."""

    terminal: str
    shown: str


def steps(page: Path, until: str | None = None) -> Iterator[File | Typed | Shown]:
    """Yield what a reader of a page does and sees; ``until`` is the heading to stop at."""
    terminal = "first"
    for block in blocks(page):
        if until is not None and until in block.prose:
            return
        if named := _TERMINAL.findall(block.prose):
            terminal = named[-1].lower()
        if block.language == "python":
            yield _file(block)
        elif block.language == "console":
            yield from _typed(terminal, block.code)
        else:
            yield Shown(terminal, block.code)


def _file(block: Block) -> File:
    name = FILE.match(block.code)
    assert name, f"the code at line {block.line} is in no file, so how would a reader run it?"
    return File(f"{name[1]}.py", block.code)


def _typed(terminal: str, session: str) -> Iterator[Typed]:
    found = list(_COMMAND.finditer(session))
    assert found, f"nothing to type: {session}"
    assert found[0].start() == 0, f"output before the first command: {session}"
    ends = [each.start() for each in found[1:]] + [len(session)]
    for each, end in zip(found, ends, strict=True):
        yield Typed(terminal, each["line"] or each["keys"], session[each.end() : end])


class Typist:
    """Does the steps of a page in a folder, with two terminals."""

    def __init__(self, folder: Path, replace: Mapping[str, str]) -> None:
        self.folder = folder
        self.terminals = {name: Terminal(folder) for name in ("first", "second")}
        self._replace = replace
        """What a page shows, and what the reader would have in its place."""

    def close(self) -> None:
        """Close both terminals."""
        for terminal in self.terminals.values():
            terminal.close()

    def do(self, step: File | Typed | Shown) -> None:
        """Do a step, and wait until the terminal shows what the page does."""
        match step:
            case File(name, code):
                (self.folder / name).write_text(self._replaced(code), "utf-8")
            case Typed(terminal, line, shown):
                self._type(self.terminals[terminal], line, shown)
            case Shown(terminal, shown):
                self._wait(self.terminals[terminal], f"(?s:.*)^{self._pattern(shown)}(?s:.*)")

    def _type(self, terminal: Terminal, line: str, shown: str) -> None:
        if NOT_TYPED.match(line):
            return
        if line == "^C":
            echo = re.escape(line)
            terminal.type(CONTROL_C)
        else:
            echo = re.escape(f"{line}\n")
            terminal.type(line + ENTER)
        prompt = "" if RUNS_ON.match(line) else re.escape(PROMPT)
        self._wait(terminal, f"{echo}{self._pattern(shown)}{prompt}")

    def _wait(self, terminal: Terminal, pattern: str) -> None:
        expected = re.compile(pattern, re.MULTILINE)
        try:
            terminal.wait(lambda: expected.fullmatch(terminal.text))
        except AssertionError as error:
            raise AssertionError(f"{error}\nand not:\n{pattern}") from None

    def _replaced(self, text: str) -> str:
        for shown, real in self._replace.items():
            text = text.replace(shown, real)
        return text

    def _pattern(self, shown: str) -> str:
        pattern, at = "", 0
        text = self._replaced(shown)
        for variable in _ANY_VARIABLE.finditer(text):
            kind = list(_VARIABLE.values())[(variable.lastindex or 0) - 1]
            pattern += _literally(text[at : variable.start()]) + kind
            at = variable.end()
        return pattern + _literally(text[at:])


def _literally(text: str) -> str:
    """Return a pattern for a text; columns may be as wide as their contents."""
    return re.sub(r"(\\ ){2,}", " {2,}", re.escape(text))
