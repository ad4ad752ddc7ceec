"""Many new jobs of one kind, as ``enqueue_many`` makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import overload
from uuid import UUID

import msgspec
from msgspec.structs import replace

from pulsed.model.ids import JobIds
from pulsed.model.job import JobRow, NewJob


class JobBatch(Sequence[NewJob]):
    """New jobs that differ in nothing but their ids and payloads.

    Stores write its two columns, without a ``NewJob`` for each row; one is made when it is read.
    """

    __slots__ = ("ids", "is_untried", "payloads", "template")

    def __init__(
        self,
        template: NewJob,
        ids: JobIds,
        payloads: Sequence[str],
        *,
        is_untried: bool = False,
    ) -> None:
        self.template = template
        self.ids = ids
        self.payloads = payloads
        self.is_untried = is_untried
        """Whether its ids were made for it, and no attempt to store them has been made yet."""

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> NewJob: ...

    @overload
    def __getitem__(self, place: slice) -> JobBatch: ...

    def __getitem__(self, place: int | slice) -> NewJob | JobBatch:
        if isinstance(place, slice):
            return JobBatch(self.template, self.ids[place], self.payloads[place])
        return replace(self.template, id=self.ids[place], payload=self.payloads[place])

    def __iter__(self) -> Iterator[NewJob]:
        template = self.template
        for job_id, payload in zip(self.ids, self.payloads, strict=True):
            yield replace(template, id=job_id, payload=payload)

    def unread(self) -> Iterable[UnreadJob]:
        """Return its jobs for somebody who may never look at them."""
        return map(partial(UnreadJob, self.template), self.ids.each(), self.payloads)


class FreshJob(list[NewJob]):
    """One new job, whose id was made for it; a list, because that is what a submit takes."""

    is_untried = True
    """Whether no attempt to store it has been made yet."""


class GatheredJobs(list[NewJob]):
    """New jobs of several callers, which one submit stores."""

    may_be_stored = False
    """Whether an attempt may have stored them whose answer was lost, if the submit fails."""


def in_place_of(jobs: Sequence[NewJob], changed: list[NewJob]) -> list[NewJob]:
    """Return jobs that were made of others and have their ids, as fresh as those were."""
    return FreshJob(changed) if type(jobs) is FreshJob else changed


class UnreadJob(msgspec.Struct, frozen=True, gc=False):
    """A job of a batch, and nothing else of that batch; a third of the price of a ``NewJob``."""

    template: NewJob
    id: bytes
    payload: str

    def read(self) -> NewJob:
        """Return the job."""
        return replace(self.template, id=UUID(bytes=self.id), payload=self.payload)


def kinds_of(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return jobs among which all options of the given ones are found: of a batch, its template."""
    # Not isinstance: that of an abstract base class takes longer than the rest of a small submit.
    return [jobs.template] if type(jobs) is JobBatch else jobs


def ids_of(jobs: Sequence[NewJob | JobRow]) -> Sequence[UUID]:
    """Return the ids of jobs."""
    return list(jobs.ids) if isinstance(jobs, JobBatch) else [job.id for job in jobs]
