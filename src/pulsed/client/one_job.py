"""Acts on one job, by its id; each raises if it cannot be done, and says what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import UUID

from msgspec.structs import replace

from pulsed.client.signals import not_found
from pulsed.errors import DuplicateKey, InvalidOption, InvalidTransition, KeyNotFound
from pulsed.handler.options import checked_key, checked_name
from pulsed.model.job import JobFilter, JobRow, Status
from pulsed.model.lifecycle import LIVING, REPLAYABLE, TERMINAL, is_cancelled

if TYPE_CHECKING:
    from pulsed.model.audit import Operator
    from pulsed.model.bulk import BulkAct
    from pulsed.store.base import Store

T = TypeVar("T")

JobId: TypeAlias = UUID | str


def checked_id(job_id: Any) -> UUID:
    """Return a job id as a UUID, or raise ``InvalidOption``."""
    if isinstance(job_id, UUID):
        return job_id
    try:
        if isinstance(job_id, str):
            return UUID(job_id)
    except ValueError:
        pass
    raise InvalidOption(
        f"A job id is a UUID like 0197a8c2-7d4e-7c31-9b7a-3f1d2c4b5a69, not {job_id!r:.100}."
    )


async def read_one(store: Store, job_id: UUID) -> JobRow:
    """Return the row of a job, or raise ``JobNotFound``."""
    return _found(job_id, await store.get([job_id]))


async def find_one(store: Store, topic: str, key: str) -> JobRow:
    """Return the job that holds a key, or else the latest that held it."""
    where = JobFilter(topic=checked_name("topic", topic), key=checked_key(key))
    found = await store.list_jobs(replace(where, holds_key=True), limit=1)
    found = found or await store.list_jobs(where, limit=1)
    if not found:
        raise KeyNotFound(
            f"There is no job of {topic!r} with the key {key!r} in this database: none was "
            "enqueued, or retention has removed it."
        )
    return found[0]


async def cancel_one(store: Store, job_id: UUID, by: Operator | None = None) -> Status:
    """Cancel a job, or ask it to stop; raises ``InvalidTransition`` if it has ended."""
    status = _found(job_id, await store.cancel([job_id], by=by))
    if not is_cancelled(status):
        raise InvalidTransition(
            f"Job {job_id} is {status} already; there is nothing left to cancel.", job_id=job_id
        )
    return status


async def retry_one(
    store: Store, job_id: UUID, by: Operator | None = None, *, fresh: bool = False
) -> Status:
    """Send a dead-lettered or cancelled job back to PENDING."""
    return await _replayed(store, job_id, await store.replay([job_id], fresh=fresh, by=by))


async def edit_and_retry_one(
    store: Store, job_id: UUID, payload: str, by: Operator | None = None, *, fresh: bool = False
) -> Status:
    """Replace the payload of a dead-lettered or cancelled job, and send it back to PENDING."""
    answer = await store.edit_and_replay(job_id, payload, fresh=fresh, by=by)
    return await _replayed(store, job_id, answer)


async def run_one_now(store: Store, job_id: UUID, by: Operator | None = None) -> Status:
    """Make a job due that waits for its time."""
    is_due, status = _found(job_id, await store.expedite([job_id], by=by))
    if not is_due:
        raise InvalidTransition(
            f"Job {job_id} is {status}, and does not wait for its time. "
            f"{_INSTEAD_OF_RUNNING.get(status, 'Retry it, or enqueue a new one.')}",
            job_id=job_id,
        )
    return status


async def change_one(
    store: Store, job_id: UUID, act: BulkAct, by: Operator | None = None
) -> Status:
    """Reschedule, reprioritise or move a job that has not started."""
    done, status = _found(job_id, await store.bulk.change([job_id], act, by=by))
    if not done:
        raise InvalidTransition(
            f"Job {job_id} is {status} and cannot be {act.kind.done}; only "
            f"{', '.join(act.kind.allowed)} jobs can.",
            job_id=job_id,
        )
    return status


async def delete_one(store: Store, job_id: UUID, by: Operator | None = None) -> Status:
    """Remove a job that is not running."""
    done, status = _found(job_id, await store.delete([job_id], by=by))
    if not done:
        raise InvalidTransition(
            f"Job {job_id} is {status} and cannot be deleted. "
            f"{await why_not_deleted(store, job_id)}",
            job_id=job_id,
        )
    return status


async def _replayed(
    store: Store, job_id: UUID, answer: Mapping[UUID, tuple[bool, Status]]
) -> Status:
    done, status = _found(job_id, answer)
    if not done and status in REPLAYABLE:
        raise await key_taken(store, job_id)
    if not done:
        raise InvalidTransition(
            f"Job {job_id} is {status}; only {' and '.join(REPLAYABLE)} jobs can be retried. "
            f"{_INSTEAD_OF_RETRY.get(status, 'It runs when it is due.')}",
            job_id=job_id,
        )
    return status


async def key_taken(store: Store, job_id: UUID) -> DuplicateKey:
    """Return the error for a job that was not retried, although its status allows it."""
    job = await read_one(store, job_id)
    assert job.key is not None
    holder = await find_one(store, job.topic, job.key)
    return DuplicateKey(
        f"Job {job_id} was not retried: job {holder.id} of {job.topic!r} has taken its key "
        f"{job.key!r} and is {holder.status}. Wait for that job or cancel it, then retry.",
        job_id=holder.id,
    )


_INSTEAD_OF_RETRY = {
    Status.SUCCEEDED: "Enqueue a new one to do the work again.",
    Status.RUNNING: "Wait for its run to end, or cancel it first.",
}


_INSTEAD_OF_RUNNING = {
    Status.WAITING: "It goes on when what it waits for has happened.",
    Status.RUNNING: "It is running already.",
    Status.SUCCEEDED: "Enqueue a new one to do the work again.",
}


def _found(job_id: UUID, answer: Mapping[UUID, T]) -> T:
    if job_id not in answer:
        raise not_found(job_id)
    return answer[job_id]


async def why_not_deleted(store: Store, job_id: UUID) -> str:
    """Return what keeps a job from being deleted, and what to do."""
    job = (await store.get([job_id])).get(job_id)
    if job is None:
        return "It no longer exists."
    if job.status is Status.RUNNING:
        return "Cancel it and wait for it to stop, then delete it."
    parent = await _parent(store, job)
    if parent is not None and parent.status not in TERMINAL:
        return (
            f"Its parent {parent.id} ({parent.topic}) is {parent.status} and may still read its "
            "outcome. Delete it when the parent has ended, or cancel the parent first."
        )
    living = sum((await store.counts(JobFilter(parent=job_id, status=LIVING))).values())
    if living:
        have = "child has" if living == 1 else "children have"
        return f"{living:,} {have} not ended. Cancel what is left, or wait for it, and delete then."
    return "It changed in the meantime; try again."


async def _parent(store: Store, job: JobRow) -> JobRow | None:
    if job.parent_id is None:
        return None
    return (await store.get([job.parent_id])).get(job.parent_id)
