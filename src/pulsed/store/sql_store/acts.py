"""Acts of operators on jobs: recorded in the audit log, and done around locked rows.

An act that meets a row which another session has locked is done on the other jobs, and then raises
JobsLocked, which names those that were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from pulsed.errors import JobsLocked, StorageBusy
from pulsed.model.audit import Operator, of_ids
from pulsed.model.job import Status
from pulsed.model.lifecycle import is_cancelled
from pulsed.store.listener import CANCELS
from pulsed.store.verbs import locked, operators
from pulsed.store.verbs.audit import ActResult
from pulsed.store.verbs.operators import Acted
from pulsed.store.verbs.script import Verb

if TYPE_CHECKING:
    from pulsed.store.sql_store.store import SqlStore

T = TypeVar("T")

NAMED = 10
"""How many locked jobs an error message lists."""


async def cancel(store: SqlStore, ids: Sequence[UUID], by: Operator | None) -> dict[UUID, Status]:
    """Cancel jobs and request that running ones stop; returns their statuses now."""
    if not ids:
        return {}
    (standing, told), left = await _act_on(
        store,
        ids,
        lambda some: operators.cancel(store.engine, some),
        by,
        "cancel jobs",
        lambda done: _jobs(key for key, status in done[0].items() if is_cancelled(status)),
    )
    await store.follow(told)
    if Status.RUNNING in standing.values():
        await store.hint({CANCELS})
    _check_locked(left, len(ids))
    return standing


async def change(
    store: SqlStore,
    ids: Sequence[UUID],
    act: Callable[[Sequence[UUID]], Verb[Acted]],
    by: Operator | None,
    name: str,
) -> operators.Answers:
    """Act on jobs, and announce the queues of those that became due."""
    if not ids:
        return {}
    acted, left = await _act_on(store, ids, act, by, name, lambda done: _done(done.answers))
    await store.hint_some(acted.queues)
    _check_locked(left, len(ids))
    return acted.answers


async def _act_on(
    store: SqlStore,
    ids: Sequence[UUID],
    act: Callable[[Sequence[UUID]], Verb[T]],
    by: Operator | None,
    name: str,
    done: Callable[[T], ActResult],
) -> tuple[T, list[UUID]]:
    """Act on jobs; returns the result, and the ids skipped because their rows stay locked."""
    try:
        return await store.act(act(ids), by, name, done), []
    except StorageBusy:
        around = locked.around_locked(store.engine, ids, act)
        return await store.act(around, by, name, lambda both: done(both[0]))


def _check_locked(left: Sequence[UUID], total: int) -> None:
    """Raise JobsLocked if some of the jobs were skipped because of a lock."""
    if not left:
        return
    named = ", ".join(map(str, left[:NAMED])) + (", …" if len(left) > NAMED else "")
    if total == 1:
        told = f"Job {named} is locked by another session of the database; nothing was changed."
    else:
        told = (
            f"{len(left):,} of {total:,} jobs are locked by another session of the database and "
            f"were left as they are ({named}); the others were done."
        )
    raise JobsLocked(f"{told} Try again when that session has ended its transaction.")


def _jobs(ids: Iterable[UUID]) -> ActResult:
    changed = list(ids)
    return ActResult(len(changed), of_ids(changed))


def _done(answers: Mapping[UUID, tuple[bool, Status]]) -> ActResult:
    return _jobs(job_id for job_id, (was_done, _) in answers.items() if was_done)
