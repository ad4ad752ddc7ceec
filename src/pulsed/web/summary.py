"""The numbers that every page shows beside its navigation."""

from __future__ import annotations

from datetime import datetime

import msgspec

from pulsed.engine.why import is_live
from pulsed.model.job import Status, WorkerInfo
from pulsed.model.page import Counts
from pulsed.store.results import Backlog


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a database in a few numbers."""

    now: datetime
    counts: dict[str, int]
    at_least: tuple[str, ...]
    """Statuses that may have more jobs than counted."""
    due: int
    oldest_due: datetime | None
    oldest_queue: str | None
    workers: int
    """Live ones."""
    running: int
    slots: int


def summary_of(
    now: datetime, counts: Counts, backlog: list[Backlog], workers: list[WorkerInfo]
) -> Summary:
    """Return the summary of what was read."""
    living = [worker for worker in workers if is_live(worker, now)]
    oldest = min(backlog, key=lambda each: each.oldest, default=None)
    return Summary(
        now=now,
        counts={status.value: count for status, count in counts.items()},
        at_least=tuple(status.value for status in counts.at_least),
        due=sum(each.due for each in backlog),
        oldest_due=oldest.oldest if oldest else None,
        oldest_queue=oldest.queue if oldest else None,
        workers=len(living),
        running=counts.get(Status.RUNNING, 0),
        slots=sum(worker.slots for worker in living),
    )
