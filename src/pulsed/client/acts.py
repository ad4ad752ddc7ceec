"""Acts on jobs, by their ids or by a filter: their arguments, and the statuses that allow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

from msgspec.structs import replace

from pulsed.client.filter import checked_filter
from pulsed.errors import InvalidOption
from pulsed.handler.options import checked_option
from pulsed.model.audit import Operator
from pulsed.model.bulk import BulkAct, BulkKind
from pulsed.model.job import JobFilter, Status
from pulsed.model.lifecycle import is_cancelled
from pulsed.store.base import Store

Answers: TypeAlias = Mapping[UUID, tuple[bool, Status]]
"""For each job that exists: whether the act was done, and the status that says why not."""


async def act_on(store: Store, act: BulkAct, ids: Sequence[UUID], by: Operator) -> Answers:
    """Act on jobs by their ids, in one transaction."""
    match act.kind:
        case BulkKind.RETRY:
            return await store.replay(ids, fresh=act.fresh, by=by)
        case BulkKind.CANCEL:
            answers = await store.cancel(ids, by=by)
            return {job_id: (is_cancelled(status), status) for job_id, status in answers.items()}
        case BulkKind.DELETE:
            return await store.delete(ids, by=by)
        case BulkKind.RUN_NOW:
            return await store.expedite(ids, by=by)
        case _:
            return await store.bulk.change(ids, act, by=by)


def rescheduling(at: datetime | None, delay: timedelta | float | None) -> BulkAct:
    """Return the act that gives jobs another time."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    return checked_act(BulkAct(kind=BulkKind.RESCHEDULE, at=at, delay=seconds))


def reprioritising(priority: int) -> BulkAct:
    """Return the act that gives jobs another priority."""
    return checked_act(BulkAct(kind=BulkKind.REPRIORITISE, priority=priority))


def moving(queue: str) -> BulkAct:
    """Return the act that moves jobs to another queue."""
    return checked_act(BulkAct(kind=BulkKind.MOVE, queue=queue))


_ARGUMENTS = ("at", "delay", "priority", "queue")
_NEEDED: Mapping[BulkKind, frozenset[str]] = {
    BulkKind.RESCHEDULE: frozenset({"at", "delay"}),
    BulkKind.REPRIORITISE: frozenset({"priority"}),
    BulkKind.MOVE: frozenset({"queue"}),
}
"""The arguments of acts that have some: one of them has to be given."""


def checked_act(act: BulkAct) -> BulkAct:
    """Return an act with just the arguments that it needs, all of them valid."""
    needed = _NEEDED.get(act.kind, frozenset())
    given = {name for name in _ARGUMENTS if getattr(act, name) is not None}
    if len(given) != min(1, len(needed)) or not given <= needed:
        wanted = " or ".join(sorted(needed)) or "no argument"
        raise InvalidOption(f"To {act.kind.verb} jobs takes {wanted}.")
    changes: dict[str, Any] = {name: checked_option(name, getattr(act, name)) for name in given}
    return replace(act, fresh=act.fresh and act.kind is BulkKind.RETRY, **changes)


def chosen_for(where: Mapping[str, Any], kind: BulkKind) -> JobFilter:
    """Return the filter of a bulk act: never all jobs, and only statuses that allow it."""
    chosen = checked_filter(where)
    return replace(chosen, status=checked_statuses(chosen, kind))


def checked_statuses(chosen: JobFilter, kind: BulkKind) -> tuple[Status, ...]:
    """Return the statuses that a bulk act is about; refuses a filter that matches every job."""
    if chosen.is_empty:
        raise InvalidOption(
            f"Without a condition every job would be {kind.done}. Say which, for example by "
            "status=, topic=, queue= or until=."
        )
    if wrong := [status for status in chosen.status if status not in kind.allowed]:
        raise InvalidOption(
            f"Jobs that are {', '.join(wrong)} cannot be {kind.done}; only "
            f"{', '.join(kind.allowed)} can."
        )
    return chosen.status or kind.allowed
