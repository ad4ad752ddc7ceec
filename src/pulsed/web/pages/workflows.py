"""Workflows in flight: those that run, and what each other one waits for, since and until when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from starlette.responses import Response

from pulsed.client.one_job import checked_id
from pulsed.model.job import JobFilter, JobRow, Status
from pulsed.model.page import bound_of
from pulsed.model.step import StepKind
from pulsed.model.workflow import fan_out_of
from pulsed.store.base import Store
from pulsed.web.reasons import progress_text
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
    """Show the workflows that run, and the waiting ones by what they wait for, the newest first."""
    before = call.query.get("before")
    cursor = checked_id(before) if before else None
    store = call.app.store
    page, _ = await asyncio.gather(
        call.site.shared.get(
            ("workflows", cursor), lambda: store.list_jobs(WAITING, limit=PAGE_SIZE, before=cursor)
        ),
        call.site.summary(),
    )
    running: Sequence[JobRow] = []
    if cursor is None:
        running = await call.site.shared.get("workflows that run", partial(_running, store))
    redaction = call.site.redaction if call.visitor.may_see_payloads else None
    return await call.page(
        "workflows.html",
        running=running,
        progress=lambda job: progress_text(job.progress, redaction),
        groups=grouped(page),
        signals=Counter(job.wait_key for job in page if job.wait_kind == StepKind.SIGNAL),
        page=page,
        searched=f"{bound_of(WAITING):,}",
        is_first=cursor is None,
        fan_out_of=fan_out_of,
        StepKind=StepKind,
    )


async def _running(store: Store) -> Sequence[JobRow]:
    """Read the jobs that run and have recorded a step; a first step that runs is none yet."""
    where = JobFilter(status=(Status.RUNNING,), workflow=True)
    return await store.list_jobs(where, limit=PAGE_SIZE)


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
