"""New jobs as a statement that inserts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from pulsed.model.backoff import Backoff
from pulsed.model.job import NewJob
from pulsed.store.sql.jobs import Statements
from pulsed.store.sql.statement import Statement


def insertion(s: Statements, jobs: Sequence[NewJob]) -> Statement:
    """Return the statement that inserts jobs.

    The fewer columns it names the faster it is, and most jobs of a batch differ in little.
    """
    if len(jobs) == 1:
        alone = _shared(zip(_NEW_JOB_FIELDS.items(), astuple(jobs[0]), strict=True))
        return Statement(s.submit(tuple(alone), ()), alone)
    alike: list[tuple[tuple[str, Any], Any]] = []
    own: dict[str, Sequence[Any]] = {}
    columns = zip(*map(astuple, jobs), strict=True)
    for field, values in zip(_NEW_JOB_FIELDS.items(), columns, strict=True):
        if field[0] == "id" or values.count(values[0]) < len(values):
            own.update(_stored(field[0], values))
        else:
            alike.append((field, values[0]))
    shared = _shared(alike)
    rows = list(zip(*own.values(), strict=True))
    return Statement(s.submit(tuple(shared), tuple(own)), shared, rows)


_NEW_JOB_FIELDS = {
    name: {"priority": 0, "delay": 0.0, "tags": ()}.get(name) for name in NewJob.__struct_fields__
}
"""The fields of a new job, and the value of each that need not be stored."""


def _shared(fields: Iterable[tuple[tuple[str, Any], Any]]) -> dict[str, Any]:
    """Return the columns of fields that jobs have in common, without those left unset."""
    given = {
        name: value
        for (name, unset), value in fields
        if value is not unset and (unset is None or value != unset)
    }
    for name in _CONVERTED & given.keys():
        given.update((column, one) for column, (one,) in _stored(name, [given.pop(name)]))
    return given


_CONVERTED = {"backoff", "timeout", "lease", "headers", "tags"}


def _stored(name: str, values: Sequence[Any]) -> Iterable[tuple[str, Sequence[Any]]]:
    """Return the columns that a field of some new jobs is stored in."""
    if name not in _CONVERTED:
        return [(name, values)]
    if name in ("timeout", "lease"):
        return [(f"{name}_ms", [milliseconds(value) for value in values])]
    if name in ("headers", "tags"):
        return [(name, [as_json(value) if value else None for value in values])]
    return zip(_POLICY, zip(*map(_policy, values), strict=True), strict=True)


_POLICY = tuple(f"backoff_{part}" for part in ("base", "power", "factor", "cap", "jitter"))


def _policy(backoff: Backoff | None) -> tuple[float | None, ...]:
    if backoff is None:
        return (None,) * len(_POLICY)
    parts = (backoff.base, backoff.power, backoff.factor, backoff.cap, backoff.jitter)
    return tuple(map(float, parts))


def milliseconds(seconds: float | None) -> int | None:
    """Turn a duration into what is stored of it; one is the least."""
    return None if seconds is None else max(1, round(seconds * 1000))


def as_json(value: object) -> str:
    """Write a value as the database takes it."""
    return msgspec.json.encode(value).decode()
