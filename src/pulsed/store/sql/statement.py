"""Statements: SQL text for one engine, its parameters, and its batch of rows.

The decisions of a verb are written once, in the modules named after verbs, which yield statements.
Small runners execute those on any connection: an async pool, a blocking one, or the caller's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Row: TypeAlias = Sequence[Any]
Rows: TypeAlias = Sequence[Row]


@dataclass(frozen=True, slots=True)
class Sql:
    """A statement's text for one engine, with the names of the parameters it takes, in order."""

    text: str
    names: tuple[str, ...]
    columns: tuple[str, ...] = ()
    """The columns of its batch of rows, if it works on one."""
    counted: bool = False
    """Answers with one row that has the number of rows it changed, and with nothing else."""
    counts_itself: bool = False
    """Answers with one row: the number of rows that it changed, then texts."""
    unpack: Callable[[str], Rows] | None = None
    """Decodes the rows, if they come as one text."""
    id_by_place: bool = False
    """The first column of its batch goes in as one blob, in the order of the rows."""
    single_row_text: str = ""
    """The text for a batch of one row, if that is cheaper; its columns are then parameters."""


@dataclass(slots=True)
class Statement:
    """One statement to run. ``rows`` go in as a batch. Not frozen: one is made for every call."""

    sql: Sql
    params: Mapping[str, Any]
    rows: Sequence[tuple[Any, ...]] = ()
    columns: Sequence[Sequence[Any]] = ()
    """The batch by column, in the place of ``rows``."""

    def by_column(self) -> list[Sequence[Any]]:
        """Return the columns of its batch; none if that is empty."""
        return list(self.columns) or list(zip(*self.rows, strict=True))


ANY_NUMBER = 2**31 - 1
"""A limit that limits nothing."""


def one_column(ids: Iterable[T]) -> list[tuple[T]]:
    """Return a batch of ids, each once; they may be UUIDs or the driver's values."""
    return [(job_id,) for job_id in dict.fromkeys(ids)]


STATEMENTS = 1_000
"""Parsed texts that are cached for all stores of a process: far more than there are."""

_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
_CAST = re.compile(r"::[a-z0-9]+(\[\])?")


@lru_cache(STATEMENTS)
def named(text: str, columns: tuple[str, ...] = (), *, counted: bool = False) -> Sql:
    """Keep ``:name`` parameters, and drop the casts that only PostgreSQL needs."""
    text = _CAST.sub("", text)
    return Sql(text, _names(text), columns, counted)


@lru_cache(STATEMENTS)
def numbered(text: str, columns: tuple[str, ...] = (), *, counted: bool = False) -> Sql:
    """Turn ``:name`` parameters into ``$1``, ``$2`` and so on."""
    names = _names(text)
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    text = _PARAMETER.sub(lambda found: numbers[found[1]], text)
    return Sql(text, names, columns, counted)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_PARAMETER.findall(text)))
