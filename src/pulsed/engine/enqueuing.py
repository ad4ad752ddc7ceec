"""What happens around storing new jobs: the app's own code before it, an event after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID

from msgspec.structs import replace

from pulsed.engine.around import Around, enter_plain
from pulsed.errors import ConfigError
from pulsed.handler.options import checked_option
from pulsed.model.events import EnqueueCount, JobEnqueued
from pulsed.model.job import NewJob
from pulsed.model.job_batch import JobBatch, in_place_of
from pulsed.store.event_bus import Events

if TYPE_CHECKING:
    from pulsed.store.results import Submitted


class OutgoingJob:
    """A job that is about to be stored. You may change its ``headers``, and nothing else."""

    __slots__ = ("_job", "headers")

    def __init__(self, job: NewJob) -> None:
        self._job = job
        self.headers: dict[str, str] = dict(job.headers or {})
        """Texts by name, which the handler gets as ``ctx.headers``."""

    @property
    def id(self) -> UUID:
        """The job's id."""
        return self._job.id

    @property
    def topic(self) -> str:
        """The name of its handler."""
        return self._job.topic

    @property
    def queue(self) -> str:
        """The queue that it goes to."""
        return self._job.queue

    @property
    def parent_id(self) -> UUID | None:
        """The workflow whose fan-out makes it, if one does."""
        return self._job.parent_id

    def to_submit(self) -> NewJob:
        """Return the job with its headers, which are checked like those of a caller."""
        if self.headers == (self._job.headers or {}):
            return self._job
        return replace(self._job, headers=checked_option("headers", self.headers))

    def __repr__(self) -> str:
        return f"<OutgoingJob {self.id} ({self.topic})>"


@contextmanager
def enqueuing(arounds: Sequence[Around], jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    """Store jobs inside of ``@app.around_enqueue``: gives them with the headers added there."""
    if not arounds:
        yield jobs
        return
    outgoing = [OutgoingJob(job) for job in jobs]
    stored = False
    with ExitStack() as stack:
        enter_plain(stack, arounds, outgoing)
        yield in_place_of(jobs, [each.to_submit() for each in outgoing])
        stored = True
    if not stored:
        raise ConfigError("@app.around_enqueue caught the error of an enqueue; let it pass.")


def stored_jobs(jobs: Sequence[NewJob], submitted: Submitted) -> Sequence[NewJob]:
    """Return the jobs without those that are known not to have been stored."""
    if not submitted.existing and not submitted.holders:
        return jobs
    return [job for n, job in enumerate(jobs) if submitted.is_new(n) is not False]


def publish_enqueued(events: Events, jobs: Sequence[NewJob]) -> None:
    """Publish that jobs were stored, with the time of this process."""
    wanted = events.wanted
    if EnqueueCount in wanted:
        if len(jobs) == 1 or type(jobs) is JobBatch:
            events.publish([EnqueueCount(jobs[0].queue, jobs[0].topic, len(jobs))])
        else:
            events.publish(_counts(jobs))
    if JobEnqueued in wanted:
        at = datetime.now(UTC)
        events.publish([JobEnqueued(job.id, job.topic, job.queue, at) for job in jobs])


def _counts(jobs: Sequence[NewJob]) -> list[EnqueueCount]:
    lanes = Counter((job.queue, job.topic) for job in jobs)
    return [EnqueueCount(*lane, count) for lane, count in lanes.items()]
