"""Storing new jobs, and what the error says if the database did not acknowledge them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pulsed.engine.around import Around
from pulsed.engine.enqueuing import enqueuing, publish_enqueued, stored_jobs
from pulsed.errors import TransientStorageError
from pulsed.model.job import NewJob
from pulsed.store.base import Store
from pulsed.store.results import Submitted


async def submit(
    store: Store,
    jobs: Sequence[NewJob],
    connection: Any = None,
    arounds: Sequence[Around] = (),
    *,
    fresh_ids: bool,
) -> tuple[Sequence[NewJob], Submitted]:
    """Store jobs; with a connection, in its transaction, whose commit then decides.

    Returns them as they are stored, with the headers that ``arounds`` have added, and which are
    new. Jobs with ``fresh_ids``, made for this call, are: if a retry finds one, then because an
    attempt whose answer was lost has stored it.
    """
    with enqueuing(arounds, jobs) as ready:
        submitted = await _submit(store, ready, connection)
    if fresh_ids:
        submitted = Submitted(len(ready))
    publish_enqueued(store.events, stored_jobs(ready, submitted))
    return ready, submitted


async def _submit(store: Store, jobs: Sequence[NewJob], connection: Any) -> Submitted:
    if connection is not None:
        return await store.joined(connection).submit(jobs)
    try:
        return await store.submit(jobs)
    except TransientStorageError as error:
        error.args = (f"{error} {_may_be_stored(jobs)}",)
        raise


def _may_be_stored(jobs: Sequence[NewJob]) -> str:
    """Return the sentence that the commit may have succeeded without acknowledgement."""
    if len(jobs) != 1:
        return f"The {len(jobs):,} jobs may be stored all the same: all of them, or none."
    return (
        f"The job may be stored all the same. Enqueue it again with id={str(jobs[0].id)!r}, and it "
        "is stored once."
    )
