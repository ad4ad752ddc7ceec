"""Publishes that jobs were stored, whoever made them: a caller, a schedule or a workflow."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from pulsed.model.events import Enqueued
from pulsed.model.job import NewJob
from pulsed.store.event_bus import Events


def publish_enqueued(events: Events, jobs: Iterable[NewJob]) -> None:
    """Publish that jobs were stored, with the time of this process."""
    if Enqueued in events.wanted:
        at = datetime.now(UTC)
        events.publish(
            [Enqueued(job_id=job.id, topic=job.topic, queue=job.queue, at=at) for job in jobs]
        )
