"""Bulk acts on jobs: retry, cancel, delete; one transaction per page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from uuid import UUID

from pulsed.client.operator import operator
from pulsed.errors import JobsLocked
from pulsed.model.audit import Operator, of_filter
from pulsed.model.job import JobFilter, JobRow, Status
from pulsed.model.lifecycle import CLAIMABLE, DELETABLE, REPLAYABLE, is_cancelled
from pulsed.model.page import Page
from pulsed.store.base import Store

PAGE = 1_000
"""Jobs per page."""

Answers: TypeAlias = dict[UUID, tuple[bool, Status]]
"""For each job that exists: whether the act was done, and the status that says why not."""


@dataclass(frozen=True, slots=True)
class Act:
    """An act on jobs, and the statuses that allow it."""

    verb: str
    done: str
    allowed: tuple[Status, ...]
    perform: Callable[[Store, Sequence[UUID], Operator], Coroutine[Any, Any, Answers]]


async def _cancel(store: Store, ids: Sequence[UUID], by: Operator) -> Answers:
    answers = await store.cancel(ids, by=by)
    return {job_id: (is_cancelled(status), status) for job_id, status in answers.items()}


RETRY = Act("retry", "retried", REPLAYABLE, lambda store, ids, by: store.replay(ids, by=by))
RETRY_FRESH = replace(RETRY, perform=lambda store, ids, by: store.replay(ids, fresh=True, by=by))
"""Workflows restart from the beginning, not from their checkpoints."""
CANCEL = Act("cancel", "cancelled", (*CLAIMABLE, Status.RUNNING), _cancel)
RUN_NOW = Act("run now", "made due", CLAIMABLE, lambda store, ids, by: store.expedite(ids, by=by))
DELETE = Act("delete", "deleted", DELETABLE, lambda store, ids, by: store.delete(ids, by=by))


async def act_on_matching(
    store: Store,
    act: Act,
    where: JobFilter,
    tell: Callable[[Mapping[UUID, Status]], object] = lambda _: None,
) -> int:
    """Act on all jobs that match, and return on how many it was done.

    ``tell`` gets those of each page, with their statuses now. Pages go by id, so a job that could
    not be changed is not read again.
    """
    total = 0
    by = operator(of_filter(where))
    locked: JobsLocked | None = None
    async for rows in pages(store, where):
        try:
            answers = await act.perform(store, [row.id for row in rows], by)
        except JobsLocked as error:  # locks on one page do not stop the others
            locked = locked or error
            continue
        done = {job_id: status for job_id, (worked, status) in answers.items() if worked}
        tell(done)
        total += len(done)
    if locked is not None:
        raise locked
    return total


async def pages(
    store: Store, where: JobFilter, limit: int = PAGE, before: UUID | None = None
) -> AsyncIterator[Page[JobRow]]:
    """Yield all jobs that match in pages, newest first, however many rows that scans."""
    while True:
        page = await store.list_jobs(where, limit=limit, before=before)
        if page:
            yield page
        before = page.next
        if before is None:
            return
