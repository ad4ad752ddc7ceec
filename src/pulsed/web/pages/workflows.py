"""Workflows in flight: what each one waits for, since when and until when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from starlette.responses import Response

from pulsed.client.one_job import checked_id
from pulsed.model.job import JobFilter, JobRow, Status
from pulsed.model.page import bound_of
from pulsed.model.step import StepKind
from pulsed.model.workflow import fan_out_of
from pulsed.web.site import PageCall

PAGE_SIZE = 100
WAITING = JobFilter(status=(Status.WAITING,))

KINDS = {
    StepKind.SIGNAL: "Waiting for a signal",
    StepKind.FAN_OUT: "Waiting for children",
    StepKind.JOB: "Waiting for another job",
    StepKind.SLEEP: "Sleeping",
}


class WaitGroup(NamedTuple):
    """The workflows of a page that wait for the same kind of thing."""

    title: str
    jobs: Sequence[JobRow]


async def show(call: PageCall) -> Response:
    """Show the waiting workflows, the newest first, by what they wait for."""
    before = call.query.get("before")
    cursor = checked_id(before) if before else None
    store = call.app.store
    page, _ = await asyncio.gather(
        call.site.shared.get(
            ("workflows", cursor), lambda: store.list_jobs(WAITING, limit=PAGE_SIZE, before=cursor)
        ),
        call.site.summary(),
    )
    return await call.page(
        "workflows.html",
        groups=grouped(page),
        signals=Counter(job.wait_key for job in page if job.wait_kind == StepKind.SIGNAL),
        page=page,
        searched=f"{bound_of(WAITING):,}",
        is_first=cursor is None,
        fan_out_of=fan_out_of,
        StepKind=StepKind,
    )


def grouped(jobs: Iterable[JobRow]) -> list[WaitGroup]:
    """Return jobs by the kind of their wait; each group has those first that waited longest."""
    found: dict[str, list[JobRow]] = {}
    for job in jobs:
        kind = StepKind(job.wait_kind) if job.wait_kind in list(StepKind) else None
        found.setdefault(KINDS.get(kind, "Waiting") if kind else "Waiting", []).append(job)
    order = [*KINDS.values(), "Waiting"]
    return [
        WaitGroup(title, sorted(found[title], key=lambda job: job.updated_at))
        for title in order
        if title in found
    ]
