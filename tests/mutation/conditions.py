"""The conditions of a statement: what AND joins behind WHERE and ON, at every depth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(r"'(?:[^']|'')*'|[A-Za-z_][A-Za-z0-9_.]*|[()]|[^\s]")
_ENDS = frozenset(
    {"GROUP", "ORDER", "LIMIT", "RETURNING", "UNION", "FOR", "HAVING", "WINDOW", "WHERE"}
    | {
        "JOIN",
        "LEFT",
        "CROSS",
        "DO",
        "ON",
        "SET",
        "THEN",
        "WHEN",
        "ELSE",
        "END",
        "OFFSET",
        ")",
        ",",
    }
)


class Condition(NamedTuple):
    """Where a condition is in a text."""

    start: int
    end: int
    text: str

    def removed_from(self, text: str) -> str:
        """Return the text with a condition that is always true; it keeps its parameters."""
        return f"{text[: self.start]}({self.text} OR 1 = 1){text[self.end :]}"


class _Token(NamedTuple):
    word: str
    start: int
    end: int


def conditions(sql: str) -> list[Condition]:
    """Return the conditions of a statement, in their order."""
    tokens = [_Token(found[0].upper(), *found.span()) for found in _TOKEN.finditer(sql)]
    found = []
    for at, token in enumerate(tokens):
        follows = tokens[at + 1].word if at + 1 < len(tokens) else ""
        if token.word == "WHERE" or (token.word == "ON" and follows != "CONFLICT"):
            found += list(_joined(sql, tokens, at + 1))
    return sorted(found)


def _joined(sql: str, tokens: list[_Token], at: int) -> Iterator[Condition]:
    """Yield the conditions that AND joins from a token on, up to the end of their clause."""
    depth = cases = 0
    between = False
    first = last = None
    for token in tokens[at:]:
        word = token.word
        if depth == 0 and cases == 0 and word in _ENDS:
            break
        if depth == 0 and cases == 0 and word == "AND" and not between:
            if first is not None and last is not None:
                yield Condition(first, last, sql[first:last])
            first = None
            continue
        between = word == "BETWEEN" or (between and word != "AND")
        depth += (word == "(") - (word == ")")
        cases += (word == "CASE") - (word == "END")
        first, last = token.start if first is None else first, token.end
    if first is not None and last is not None:
        yield Condition(first, last, sql[first:last])
