"""Signals: messages to a workflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from pulsed.errors import InvalidTransition, JobNotFound
from pulsed.handler import encode_untyped
from pulsed.handler.options import checked_name
from pulsed.model.ids import new_job_id

if TYPE_CHECKING:
    from pulsed.store.base import Store


async def send_signal(store: Store, job_id: UUID, name: str, payload: Any) -> None:
    """Store a signal for a job that has not ended; it need not be waiting for it yet."""
    from pulsed.model.workflow import Signal  # noqa: PLC0415 - not all send signals

    checked_name("name of a signal", name)
    text = encode_untyped(f"The payload of signal {name!r}", payload)
    # The id is made here, so that a storage retry cannot send it twice.
    signal = Signal(id=new_job_id(), job_id=job_id, name=name, payload=text)
    stored, status = await store.workflows.signal(signal)
    if status is None:
        raise not_found(job_id)
    if not stored:
        raise InvalidTransition(
            f"Job {job_id} is {status} already and takes no signals.", job_id=job_id
        )


def not_found(job_id: UUID) -> JobNotFound:
    """Return the error for a job that does not exist."""
    return JobNotFound(
        f"There is no job {job_id} in this database; it was never enqueued here, was deleted, "
        "or its transaction has not been committed.",
        job_id=job_id,
    )
