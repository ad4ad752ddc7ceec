"""Workflows under test: what is stored of them, and calls for their children."""

from typing import Any
from uuid import UUID

from pulsed.handler import Call, Handler
from pulsed.model.job import Status
from pulsed.model.step import Checkpoint
from pulsed.store.base import Store
from tests.support.workers import finished, submit, working


def nothing() -> None:
    """Be the least that a step can be."""


async def steps_of(store: Store, job_id: UUID) -> list[Checkpoint]:
    """Return the checkpoints of a job, in the order of their calls."""
    return (await store.history(job_id)).checkpoints


async def names_of(store: Store, job_id: UUID) -> list[str]:
    """Return what the checkpoints of a job are about, in the order of their calls."""
    return [str(checkpoint.key) for checkpoint in await steps_of(store, job_id)]


def call_of(handler: Handler[Any], **arguments: Any) -> Call[Any]:
    """Bind arguments to a handler, as ``job.bind(...)`` does."""
    return Call(handler.topic, handler.encode((), arguments), handler)


async def parked(store: Store, handler: Handler[Any], **arguments: Any) -> str:
    """Run one job that must be dead-lettered in its first attempt; returns its error."""
    job_id = await submit(store, handler.topic, **arguments)
    async with working(store, handler):
        job = await finished(store, job_id)
    assert (job.status, job.attempts) == (Status.DEAD_LETTERED, 1), job.last_error
    return job.last_error or ""
