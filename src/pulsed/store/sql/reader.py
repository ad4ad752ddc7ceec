"""Rows of the database, read into structs by functions that are compiled once for each engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from pulsed.compiled import compiled
from pulsed.model.attributes import attributes
from pulsed.model.fields import Kind
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.statement import Row

T = TypeVar("T", bound=msgspec.Struct)

_CONVERSIONS = {
    Kind.FLAG: "bool({0})",
    Kind.ENUM: "{0}_by_value[{0}]",
    Kind.UUID: "to_uuid({0})",
    Kind.INSTANT: "to_time({0})",
    Kind.EPOCH: "to_instant({0})",
    Kind.SECONDS: "{0} / 1000",
    Kind.HEADERS: "to_headers({0}) if {0} else {{}}",
    Kind.TEXTS: "to_texts({0}) if {0} else ()",
}
"""How to convert values, unless the driver returns the struct's type; see ``Dialect.native``."""
INSTANTS = 64
"""Instants that are cached: jobs that were enqueued together are due at the same one."""
INDENT = "\n        "
LIST = f",{INDENT}    "
_NEVER_NONE = (Kind.HEADERS, Kind.TEXTS)


class Reader(Generic[T]):
    """Reads rows into structs.

    ``columns`` names what a row has, in its order, each with its kind. The struct's attributes get
    the columns of the same name, or the further arguments ``given`` to a read. One in ``made`` is
    computed by an expression of them instead, in which NULL is None.
    """

    def __init__(
        self,
        struct: type[T],
        columns: Mapping[str, Kind],
        made: Mapping[str, str] | None = None,
        given: tuple[str, ...] = (),
        native: frozenset[Kind] = frozenset(),
        **names: Any,
    ) -> None:
        self._struct = struct
        self._columns = columns
        self._made = made or {}
        self._given = given
        self._native = native
        """The kinds that need no conversion on any engine, because of how they are selected."""
        self._names = names
        """Further names that the expressions refer to."""
        self._compiled: dict[str, Callable[..., list[T]]] = {}

    def __call__(self, d: Dialect, row: Row, *given: Any) -> T:
        """Read a row."""
        return self.all(d, (row,), *given)[0]

    def all(self, d: Dialect, rows: Iterable[Row], *given: Any) -> list[T]:
        """Read rows."""
        return self._on(d)(rows, *given)

    def source(self, native: frozenset[Kind]) -> str:
        """Return the code of the function that reads rows; ``native`` kinds are not converted."""
        loop = [
            f"for {', '.join(self._columns)} in rows:",
            *self._conversions(native),
            f"found.append(struct({LIST.join(self._arguments())}))",
        ]
        return f"""def read({", ".join(("rows", *self._given))}):
    found = []
    {INDENT.join(loop)}
    return found
"""

    def _conversions(self, native: frozenset[Kind]) -> Iterator[str]:
        known = attributes(self._struct)
        for name, kind in self._columns.items():
            if kind in native or kind not in _CONVERSIONS:
                continue
            plain = name in known and name not in self._made and not known[name].is_optional
            test = "" if plain or kind in _NEVER_NONE else f"if {name} is not None: "
            yield f"{test}{name} = {_CONVERSIONS[kind].format(name)}"

    def _arguments(self) -> Iterator[str]:
        """Return the struct's arguments, by position where it allows that, which is faster."""
        by_name = False
        for name, parameter in inspect.signature(self._struct).parameters.items():
            by_name |= parameter.kind is inspect.Parameter.KEYWORD_ONLY
            if name in self._made or name in self._columns or name in self._given:
                value = self._made.get(name, name)
                yield f"{name}={value}" if by_name else value
            else:
                by_name = True

    def _on(self, d: Dialect) -> Callable[..., list[T]]:
        """Return the function that reads the rows of an engine."""
        if d.engine not in self._compiled:
            enums = {
                f"{name}_by_value": {member.value: member for member in each.enum}
                for name, each in attributes(self._struct).items()
                if each.enum
            }
            names = {
                "struct": self._struct,
                "to_uuid": d.uuid,
                "to_time": d.time,
                "to_instant": lru_cache(INSTANTS)(d.instant),
                "to_headers": read_headers,
                "to_texts": read_texts,
            }
            names |= enums | self._names
            self._compiled[d.engine] = compiled(self.source(d.native | self._native), names)
        return self._compiled[d.engine]


def reader(struct: type[T], columns: str) -> Reader[T]:
    """Return the reader of a SELECT list whose columns are named as the struct's attributes are.

    A cast is ignored, and a column of another name needs an ``AS``.
    """
    known = attributes(struct)
    names = [column.split()[-1].partition("::")[0] for column in columns.split(",")]
    return Reader(struct, {name: known[name].kind or Kind.TEXT for name in names})


def read_headers(text: str) -> dict[str, str]:
    """Decode headers, even if a producer wrote values that are not strings.

    A row that cannot be decoded would fail the claim of its whole batch.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.ValidationError:
        found = msgspec.json.decode(text)
        pairs = found.items() if isinstance(found, dict) else ()
        return {name: str(value) for name, value in pairs}


read_texts = msgspec.json.Decoder(tuple[str, ...]).decode
