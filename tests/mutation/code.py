"""Guards in the code and not in a statement: how transactions begin, and the order of locks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from types import FunctionType
from typing import Any, NamedTuple

from pulsed.store.postgres import engine as postgres_engine
from pulsed.store.postgres import session as postgres_session
from pulsed.store.sqlite import step_transaction
from pulsed.store.sqlite.writer import Writer
from tests.mutation.changes import Kind


class CodeChange(NamedTuple):
    """A guard in the code, and what takes it out in this process."""

    engine: str
    place: str
    what: str
    kind: Kind
    patch: Callable[[], None]


def _replace_constant(function: Any, old: str, new: str) -> None:
    assert isinstance(function, FunctionType)
    constants = function.__code__.co_consts
    assert old in constants, f"{function.__qualname__} has lost {old!r}"
    changed = tuple(new if each == old else each for each in constants)
    function.__code__ = function.__code__.replace(co_consts=changed)


def _lock_keys_in_changing_orders() -> None:
    """Every second transaction takes its locks from the other end."""
    calls = count()

    def in_changing_order(slots: Iterable[int]) -> list[int]:
        return sorted(slots, reverse=next(calls) % 2 == 1)

    vars(postgres_engine)["sorted"] = in_changing_order


def _begin_in_the_servers_isolation() -> None:
    postgres_session.BEGIN = "BEGIN"


_DEFERRED = "BEGIN IMMEDIATE", "BEGIN"

CODE = (
    CodeChange(
        "sqlite", "writer.begin", "IMMEDIATE", Kind.TRANSACTION,
        partial(_replace_constant, Writer._begin, *_DEFERRED),
    ),
    CodeChange(
        "sqlite", "step_transaction.open", "IMMEDIATE", Kind.TRANSACTION,
        partial(_replace_constant, step_transaction._open, *_DEFERRED),
    ),
    CodeChange(
        "postgres", "session.begin", "ISOLATION LEVEL READ COMMITTED", Kind.TRANSACTION,
        _begin_in_the_servers_isolation,
    ),
    CodeChange(
        "postgres", "engine.lock_keys", "sorted", Kind.ORDER, _lock_keys_in_changing_orders
    ),
)  # fmt: skip
