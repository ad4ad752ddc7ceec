"""Many new jobs of one kind, as ``enqueue_many`` makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload
from uuid import UUID

from msgspec.structs import replace

from pulsed.model.job import JobRow, NewJob


class JobBatch(Sequence[NewJob]):
    """New jobs that differ in nothing but their ids and payloads.

    Stores write its two columns, without a ``NewJob`` for each row; one is made when it is read.
    """

    __slots__ = ("ids", "payloads", "template")

    def __init__(self, template: NewJob, ids: Sequence[UUID], payloads: Sequence[str]) -> None:
        self.template = template
        self.ids = ids
        self.payloads = payloads

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


def kinds_of(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return jobs among which all options of the given ones are found: of a batch, its template."""
    return [jobs.template] if isinstance(jobs, JobBatch) else jobs


def ids_of(jobs: Sequence[NewJob | JobRow]) -> Sequence[UUID]:
    """Return the ids of jobs."""
    return jobs.ids if isinstance(jobs, JobBatch) else [job.id for job in jobs]
