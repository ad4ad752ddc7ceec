"""New jobs as a statement that inserts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import astuple

from pulsed.compiled import compiled
from pulsed.model.backoff import Backoff
from pulsed.model.fields import BACKOFF_PARTS, NEW, Field, Kind, fields_of
from pulsed.model.job import NewJob
from pulsed.model.job_batch import JobBatch
from pulsed.store.sql.statement import Sql, Statement

Form: TypeAlias = Callable[[tuple[str, ...], tuple[str, ...]], Sql]
"""Returns an insertion for the columns that its jobs share, and for those in which they differ."""


def insertion(form: Form, jobs: Sequence[NewJob]) -> Statement:
    """Return the statement that inserts jobs.

    The fewer columns it names the faster it is, and most jobs of a batch differ in little.
    """
    if len(jobs) == 1:
        alone = _of_one(jobs[0])
        return Statement(form(tuple(alone), ()), alone)
    shared, own = _of_batch(jobs) if isinstance(jobs, JobBatch) else _of_many(jobs)
    return Statement(form(tuple(shared), tuple(own)), shared, columns=list(own.values()))


def _of_batch(jobs: JobBatch) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    """Return the columns that jobs share, and those in which they differ."""
    return shared_columns(jobs), {"id": jobs.ids, "payload": jobs.payloads}


def shared_columns(jobs: JobBatch) -> dict[str, Any]:
    """Return the columns that all jobs of a batch have in common, without those left unset."""
    shared = _of_one(jobs.template)
    del shared["id"], shared["payload"]
    return shared


def _of_many(jobs: Sequence[NewJob]) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    alike: list[tuple[tuple[str, Any], Any]] = []
    own: dict[str, Sequence[Any]] = {}
    columns = zip(*map(astuple, jobs), strict=True)
    for field, values in zip(_UNSET.items(), columns, strict=True):
        if field[0] == "id" or values.count(values[0]) < len(values):
            own.update(stored(_FIELDS[field[0]], values))
        else:
            alike.append((field, values[0]))
    return _shared(alike), own


_FIELDS = {field.attribute(NEW): field for field in fields_of(NEW)}
_UNSET = {name: _FIELDS[name].unset for name in NewJob.__struct_fields__}
"""The fields of a new job, and the value of each that need not be stored."""


def _shared(fields: Iterable[tuple[tuple[str, Any], Any]]) -> dict[str, Any]:
    """Return the columns of fields that jobs have in common, without those left unset."""
    given = {
        name: value
        for (name, unset), value in fields
        if value is not unset and (unset is None or value != unset)
    }
    for name in _CONVERTED & given.keys():
        given.update(_columns_of(name, given.pop(name)))
    return given


def _columns_of(name: str, value: Any) -> dict[str, Any]:
    return {column: one for column, (one,) in stored(_FIELDS[name], [value])}


def stored_columns(jobs: Sequence[NewJob]) -> dict[str, Sequence[Any]]:
    """Return all columns of jobs, with the default where a job leaves one unset."""
    columns: dict[str, Sequence[Any]] = {}
    for name, values in zip(_UNSET, zip(*map(astuple, jobs), strict=True), strict=True):
        columns.update(stored(_FIELDS[name], values))
    return columns


def stored(field: Field, values: Sequence[Any]) -> Iterable[tuple[str, Sequence[Any]]]:
    """Return the columns of a field, each with the given values as they are stored."""
    columns = field.columns
    match field.kind:
        case Kind.SECONDS:
            values = [_milliseconds(value) for value in values]
        case Kind.HEADERS | Kind.TEXTS:
            values = [as_json(value) if value else None for value in values]
        case Kind.BACKOFF:
            return zip(columns, zip(*map(_parts, values), strict=True), strict=True)
    return [(column, values) for column in columns]


_CONVERTED = {
    name
    for name, field in _FIELDS.items()
    if field.kind in (Kind.SECONDS, Kind.HEADERS, Kind.TEXTS) or [*field.columns] != [name]
}


def _set_columns() -> Callable[[NewJob], dict[str, Any]]:
    """Return a function that returns the columns of one job, without those left unset.

    A single enqueue calls it. To ask each field by name takes a third of a loop over all of them.
    """
    lines = ["def columns(job):", "    found = {}"]
    for name, unset in _UNSET.items():
        is_set = "is not None" if unset is None else f"!= {unset!r}"
        add = f"found.update(columns_of({name!r}, value))"
        if name not in _CONVERTED:
            add = f"found[{name!r}] = value"
        lines += [f"    if (value := job.{name}) {is_set}:", f"        {add}"]
    made: Callable[[NewJob], dict[str, Any]] = compiled(
        "\n".join([*lines, "    return found\n"]), {"columns_of": _columns_of}
    )
    return made


_of_one = _set_columns()


def _parts(backoff: Backoff | None) -> tuple[float | None, ...]:
    if backoff is None:
        return (None,) * len(BACKOFF_PARTS)
    return tuple(float(getattr(backoff, part)) for part in BACKOFF_PARTS)


def _milliseconds(seconds: float | None) -> int | None:
    """Return a duration in whole milliseconds, at least one."""
    return None if seconds is None else max(1, round(seconds * 1000))


def as_json(value: object) -> str:
    """Encode a value as JSON text."""
    return msgspec.json.encode(value).decode()
