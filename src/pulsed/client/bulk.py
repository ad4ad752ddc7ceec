"""Acts on many jobs: retry, cancel, delete. One transaction does a page of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from uuid import UUID

from pulsed.job import JobFilter, JobRow, Status
from pulsed.lifecycle import CLAIMABLE, DELETABLE, REPLAYABLE
from pulsed.page import Page
from pulsed.store.base import Store

PAGE = 1_000
"""How many jobs are taken at a time."""

Answers: TypeAlias = dict[UUID, tuple[bool, Status]]
"""Of each job that exists: whether it was done, and the status that says why not."""


@dataclass(frozen=True, slots=True)
class Act:
    """Something to do to jobs."""

    verb: str
    done: str
    allowed: tuple[Status, ...]
    perform: Callable[[Store, Sequence[UUID]], Coroutine[Any, Any, Answers]]


def is_cancelled(status: Status) -> bool:
    """Whether a job with this status after a cancel has ended by it, or been asked to stop."""
    return status in (Status.CANCELLED, Status.RUNNING)


async def _cancel(store: Store, ids: Sequence[UUID]) -> Answers:
    answers = await store.cancel(ids)
    return {job_id: (is_cancelled(status), status) for job_id, status in answers.items()}


RETRY = Act("retry", "retried", REPLAYABLE, lambda store, ids: store.replay(ids))
RETRY_FRESH = replace(RETRY, perform=lambda store, ids: store.replay(ids, fresh=True))
"""Workflows begin again, instead of going on from their steps."""
CANCEL = Act("cancel", "cancelled", (*CLAIMABLE, Status.RUNNING), _cancel)
DELETE = Act("delete", "deleted", DELETABLE, lambda store, ids: store.delete(ids))


async def act_on_matching(
    store: Store,
    act: Act,
    where: JobFilter,
    tell: Callable[[Mapping[UUID, Status]], object] = lambda _: None,
) -> int:
    """Act on all that match, and ``tell`` of each page what was done, with the statuses now.

    Returns how many that were.
    Pages go by id, so a job that stays behind is passed by.
    """
    total = 0
    async for rows in pages(store, where):
        answers = await act.perform(store, [row.id for row in rows])
        done = {job_id: status for job_id, (worked, status) in answers.items() if worked}
        tell(done)
        total += len(done)
    return total


async def pages(
    store: Store, where: JobFilter, limit: int = PAGE, before: UUID | None = None
) -> AsyncIterator[Page[JobRow]]:
    """Read all jobs that match, newest first, however many have to be searched for them."""
    while True:
        page = await store.list_jobs(where, limit=limit, before=before)
        if page:
            yield page
        before = page.next
        if before is None:
            return
