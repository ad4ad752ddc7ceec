"""Storing new jobs, and what the error says if the database did not acknowledge them."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from pulsed.engine.around import Around
from pulsed.engine.enqueuing import enqueuing, publish_enqueued, stored_jobs
from pulsed.errors import TransientStorageError
from pulsed.model.job import JobRow, NewJob
from pulsed.store.results import ONE_NEW
from pulsed.store.retrying import has_own_retry

if TYPE_CHECKING:
    from pulsed.store.base import Store
    from pulsed.store.connections.caller import CallerConnection
    from pulsed.store.results import Submitted


async def submit(
    store: Store,
    jobs: Sequence[NewJob],
    connection: Any = None,
    arounds: Sequence[Around] = (),
    *,
    fresh_ids: bool,
) -> tuple[Sequence[NewJob | JobRow], Submitted]:
    """Store jobs; with a connection, in its transaction, whose commit then decides.

    Returns them as they are stored, with the headers that ``arounds`` have added, and which are
    new; in the place of a job that was not stored, the one that holds its key. Jobs with
    ``fresh_ids``, made for this call, are new: if a retry finds one, then because an attempt whose
    answer was lost has stored it.
    """
    caller = None if connection is None else await _resolved(connection)
    ready = jobs
    try:
        if arounds:
            with enqueuing(arounds, jobs) as ready:
                submitted = await _submitting(store, ready, caller)
        else:
            submitted = await _submitting(store, ready, caller)
    except TransientStorageError as error:
        if caller is None:
            error.args = (f"{error} {_may_be_stored(ready)}",)
        raise
    stored = ready
    if submitted is not ONE_NEW:
        submitted = submitted.of_fresh_ids() if fresh_ids else submitted
        stored = stored_jobs(ready, submitted)
    if caller is None or caller.after_commit is None:
        publish_enqueued(store.events, stored)
    else:
        caller.after_commit(partial(_committed, store, stored))
    if submitted.holders:
        return await _with_holders(store, ready, submitted, connection), submitted
    return ready, submitted


async def _with_holders(
    store: Store, jobs: Sequence[NewJob], submitted: Submitted, connection: Any
) -> Sequence[NewJob | JobRow]:
    """Return jobs, and the holders of their keys in the places of those that were not stored.

    One that was replaced, or that only the caller's own transaction may see, is not read.
    """
    holders = submitted.holders
    unread = submitted.replaced if connection is None else holders
    wanted = {holder for place, holder in holders.items() if place not in unread}
    rows = await store.get(list(wanted)) if wanted else {}

    def standing(place: int, job: NewJob) -> NewJob | JobRow:
        if place not in holders:
            return job
        return rows.get(holders[place]) or structs.replace(job, id=holders[place])

    return [standing(place, job) for place, job in enumerate(jobs)]


async def _resolved(connection: Any) -> CallerConnection:
    from pulsed.store.connections.sources import resolve  # noqa: PLC0415 - few have their own

    return await resolve(connection)


def _committed(store: Store, jobs: Sequence[NewJob]) -> None:
    """Announce jobs whose commit the caller's library has told us of."""
    store.hint_soon(jobs)
    publish_enqueued(store.events, jobs)


def _submitting(
    store: Store, jobs: Sequence[NewJob], caller: CallerConnection | None
) -> Coroutine[Any, Any, Submitted]:
    if caller is not None:
        return store.joined(caller.driver).submit(jobs)
    if len(jobs) == 1 and not has_own_retry():
        return store.submit_together(jobs)
    return store.submit(jobs)


def _may_be_stored(jobs: Sequence[NewJob]) -> str:
    """Return the sentence that the commit may have succeeded without acknowledgement."""
    if len(jobs) != 1:
        return f"The {len(jobs):,} jobs may be stored all the same: all of them, or none."
    return (
        f"The job may be stored all the same. Enqueue it again with id={str(jobs[0].id)!r}, and it "
        "is stored once."
    )
