"""A verb without its I/O: its script is a generator, which yields statements and is sent rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from enum import Enum
from functools import cache, partial, wraps
from typing import Generic, ParamSpec, TypeAlias, TypeVar

from msgspec import Struct

from pulsed.store.sql.statement import Rows, Statement

P = ParamSpec("P")
T = TypeVar("T")
Y = TypeVar("Y")
S = TypeVar("S")

Script: TypeAlias = Generator[Statement, Rows, T]


class VerbKind(Enum):
    """What a runner has to put around a verb: a transaction or not."""

    READ = "read"
    SINGLE = "single"
    """Statements that commit by themselves: mostly one that writes, perhaps reads after it."""
    TRANSACTION = "transaction"


class FollowUp(Struct):
    """A statement that runs when a verb has committed, in a transaction of its own.

    The caller's work is done by then, so it gets none of its errors.
    """

    statement: Statement
    failed: Callable[[BaseException], None]
    is_awaited: bool = True
    """Whether the caller's coroutine waits for it; a thread always does."""


class Verb(Struct, Generic[T]):
    """A whole transition of the store, ready to run, and to retry after a lost connection.

    One is made for every call: a struct is made in C.
    """

    name: str
    kind: VerbKind
    script: Callable[[], Script[T]]
    urgent: bool = False
    """Goes before all queued verbs: a heartbeat must not queue behind bulk work."""
    within: float | None = None
    """Seconds after which an urgent verb is of no use."""
    short_lock_wait: bool = False
    """Waits for a locked row for two seconds and is not retried: its caller sends less instead."""
    lock_wait: float | None = None
    """Seconds that its transaction waits for a lock; it is not retried then, as above."""
    claim_lane: bool = False
    """Uses the connections reserved for claims, so that they do not queue behind reports."""
    looks_for_work: bool = False
    """Acknowledges only what it has written: if it finds nothing to do, it waits for no standby."""
    confirms_itself: bool = False
    """Sees to it that what it has found, and acknowledges, is as durable as what it writes."""
    follow_up: FollowUp | None = None
    """Runs when the verb has committed."""
    is_retried: bool = False
    """Whether an attempt has failed, of which it may not be known whether it committed."""

    @property
    def action(self) -> str:
        """What it does, in words for an error or a log line."""
        return action_of(self.name)


def verb(
    kind: VerbKind,
    *,
    name: str = "",
    urgent: bool = False,
    short_lock_wait: bool = False,
    claim_lane: bool = False,
    looks_for_work: bool = False,
) -> Callable[[Callable[P, Script[T]]], Callable[P, Verb[T]]]:
    """Make a script's function return the verb; its name is the function's unless given.

    A verb that has to remember something from one attempt to the next is a closure instead.
    """

    def decorated(script: Callable[P, Script[T]]) -> Callable[P, Verb[T]]:
        called = name or script.__name__

        @wraps(script)
        def make(*args: P.args, **options: P.kwargs) -> Verb[T]:
            attempt = partial(script, *args, **options)
            return Verb(
                called,
                kind,
                attempt,
                urgent=urgent,
                short_lock_wait=short_lock_wait,
                claim_lane=claim_lane,
                looks_for_work=looks_for_work,
            )

        return make

    return decorated


@cache
def action_of(verb: str) -> str:
    """Return what a verb does, in the words of a user."""
    return ACTIONS.get(verb) or verb.replace("_", " ")


ACTIONS = {
    "about_to_wait": "waiting for a job",
    "add_children": "a fan-out",
    "announce": "a worker's presence",
    "ask_workers": "asking workers to end",
    "audit": "checking all jobs",
    "audit_log": "reading the audit log",
    "backlog": "counting due jobs",
    "beat": "a heartbeat",
    "cancel": "cancelling jobs",
    "cascade": "cancelling children",
    "change_jobs": "changing jobs",
    "check": "checking the database",
    "claims_in_flight": "waiting for claims",
    "clear_control": "clearing limits",
    "claim": "claiming jobs",
    "counts": "counting jobs",
    "declare_controls": "storing limits",
    "declare_schedules": "storing schedules",
    "delete": "deleting jobs",
    "delete_schedule": "deleting a schedule",
    "end_bulk": "ending a bulk operation",
    "due_queues": "checking queues",
    "due_schedules": "checking schedules",
    "emit": "writing to a stream",
    "expire": "ending expired jobs",
    "failures": "reading failures",
    "find_schedule": "reading a schedule",
    "fire": "firing schedules",
    "fires": "listing a schedule's jobs",
    "fold_rollups": "folding statistics",
    "get": "reading a job",
    "get_control": "reading limits",
    "get_schedule": "reading a schedule",
    "held": "listing leases",
    "expedite": "making jobs due",
    "history": "reading steps",
    "limit_use": "reading a limit",
    "list": "listing jobs",
    "list_controls": "listing limits",
    "list_schedules": "listing schedules",
    "migrate": "migration",
    "newest_items": "reading a stream",
    "now": "reading the clock",
    "outcomes": "reading results",
    "override_control": "setting limits",
    "set_schedule_error": "recording the error of a schedule",
    "pause_control": "pausing",
    "pause_schedule": "pausing a schedule",
    "perform_bulk": "a bulk operation",
    "places": "reading jobs",
    "prunable": "counting finished jobs",
    "prune": "pruning",
    "prune_schedules": "pruning schedules",
    "put_schedule": "storing a schedule",
    "read_bulk": "reading bulk operations",
    "read_errors": "reading statistics",
    "read_rates": "reading rates",
    "read_rollups": "reading statistics",
    "read_stream": "reading a stream",
    "record": "storing steps",
    "record_rollups": "recording statistics",
    "replay": "retry",
    "resume_control": "resuming",
    "resume_schedule": "resuming a schedule",
    "retire": "a worker's goodbye",
    "run_schedule": "running a schedule",
    "running": "counting running jobs",
    "schema_check": "checking the tables",
    "set_progress": "storing progress",
    "settle": "reporting results",
    "settle_free": "reporting results",
    "signal": "sending a signal",
    "start_bulk": "starting a bulk operation",
    "submit": "enqueueing",
    "suspend": "storing a wait",
    "take_signal": "taking a signal",
    "take_turn": "pruning",
    "trim_streams": "trimming a stream",
    "was_recorded": "storing steps",
    "watch": "waiting for a job",
    "watchdog": "recovering jobs",
    "workers": "listing workers",
}
"""For verbs whose own name is not what a user calls it."""


def drive(script: Generator[Y, S, T], act: Callable[[Y], S]) -> T:
    """Act on what a script yields, one after the other, in this thread; returns its value."""
    try:
        yielded = next(script)
        while True:
            yielded = script.send(act(yielded))
    except StopIteration as finished:
        value: T = finished.value
        return value


async def adrive(script: Generator[Y, S, T], act: Callable[[Y], Awaitable[S]]) -> T:
    """Do the same in this task, awaiting each act."""
    try:
        yielded = next(script)
        while True:
            yielded = script.send(await act(yielded))
    except StopIteration as finished:
        value: T = finished.value
        return value
