"""A verb without its I/O: a generator that yields statements and is sent their rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

from pulsed.store.sql.statement import Rows, Statement

T = TypeVar("T")

Script: TypeAlias = Generator[Statement, Rows, T]


class Kind(Enum):
    """What a runner has to put around a verb."""

    READ = "read"
    SINGLE = "single"
    """One writing statement, perhaps reads after it: it commits by itself."""
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class Verb(Generic[T]):
    """A transition, ready to run, and to run again after a lost connection."""

    name: str
    kind: Kind
    script: Callable[[], Script[T]]
    urgent: bool = False
    """Goes before everything that waits: a heartbeat must not queue behind bulk work."""
    within: float | None = None
    """Seconds until an urgent verb is of no use any more."""
    splits: bool = False
    """Gives up on a lock after a moment and is not tried again: its caller then asks for less."""
    apart: bool = False
    """Has connections of its own: the next jobs do not wait behind the reports of the last."""

    @property
    def action(self) -> str:
        """What it does, in words for an error or a log line."""
        return ACTIONS.get(self.name, self.name.replace("_", " "))


ACTIONS = {
    "about_to_wait": "waiting for a job",
    "add_children": "a fan-out",
    "announce": "a worker's presence",
    "beat": "a heartbeat",
    "cascade": "cancelling children",
    "check": "checking the database",
    "claim": "claiming jobs",
    "counts": "counting jobs",
    "due_queues": "checking queues",
    "due_schedules": "checking schedules",
    "fire": "firing schedules",
    "fires": "listing a schedule's jobs",
    "get": "reading a job",
    "held": "listing leases",
    "history": "reading steps",
    "list": "listing jobs",
    "migrate": "migration",
    "now": "reading the clock",
    "outcomes": "reading results",
    "places": "reading jobs",
    "prunable": "counting finished jobs",
    "record": "storing steps",
    "replay": "retry",
    "retire": "a worker's goodbye",
    "schema_check": "checking the tables",
    "set_progress": "storing progress",
    "settle": "reporting results",
    "submit": "enqueueing",
    "suspend": "storing a wait",
    "take_turn": "pruning",
    "was_recorded": "storing steps",
    "watch": "waiting for a job",
    "watchdog": "recovering jobs",
}
"""For verbs whose own name is not what a user calls it."""


def drive(verb: Verb[T], execute: Callable[[Statement], Rows]) -> T:
    """Run a verb's statements one after the other, in this thread."""
    script = verb.script()
    try:
        statement = next(script)
        while True:
            statement = script.send(execute(statement))
    except StopIteration as finished:
        value: T = finished.value
        return value


async def adrive(verb: Verb[T], execute: Callable[[Statement], Awaitable[Rows]]) -> T:
    """Run a verb's statements one after the other, in this task."""
    script = verb.script()
    try:
        statement = next(script)
        while True:
            statement = script.send(await execute(statement))
    except StopIteration as finished:
        value: T = finished.value
        return value
