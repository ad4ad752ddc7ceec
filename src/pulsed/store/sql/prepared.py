"""Statements in groups, one for each noun: a method writes the text, its docstring is the intent.

A statement is prepared for its engine on first use, and cached for as long as the store lives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, overload

from pulsed.store.sql.dialect import FENCE, Dialect
from pulsed.store.sql.statement import Rows, Sql


class StatementGroup:
    """The statements of one noun, in one engine's dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.jobs = f"{dialect.jobs} AS j {dialect.by_id}"
        """The jobs as ``j``, looked up by their ids."""
        self.this_job = dialect.same_id("j.id", "r.job_id")
        """``j`` is the job of the batch's row ``r``."""
        self.held = f"{self.this_job} AND {FENCE}"
        """…and the run that ``r`` is about still holds its lease."""


class prepared:  # noqa: N801 - a decorator
    """Turn a method that returns SQL text into a statement.

    ``rows`` declares the columns of its batch. A ``counted`` one answers with the number of rows
    that it changed. ``unpack`` decodes an answer that comes as one text. It takes no lock, unlike
    ``cached_property`` before Python 3.12: a process may fork while another thread holds it.
    """

    def __init__(
        self,
        rows: str = "",
        *,
        counted: bool = False,
        unpack: Callable[[str], Rows] | None = None,
    ) -> None:
        self._rows = rows
        self._counted = counted
        self._unpack = unpack

    def __call__(self, text: Callable[[Any, Dialect], str]) -> prepared:
        self._text = text
        self.__doc__ = text.__doc__
        return self

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, group: None, owner: type) -> prepared: ...
    @overload
    def __get__(self, group: StatementGroup, owner: type) -> Sql: ...
    def __get__(self, group: StatementGroup | None, owner: type) -> prepared | Sql:
        if group is None:
            return self
        d = group.dialect
        sql = d.sql(self._text(group, d), self._rows, counted=self._counted)
        if self._unpack is not None:
            sql = replace(sql, unpack=self._unpack)
        vars(group)[self._name] = sql
        return sql
