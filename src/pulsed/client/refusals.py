"""Why an act on a job was refused, where its status alone does not say it."""

from __future__ import annotations

from uuid import UUID

from pulsed.model.job import JobFilter, JobRow, Status
from pulsed.model.lifecycle import LIVING, TERMINAL
from pulsed.store.base import Store


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
