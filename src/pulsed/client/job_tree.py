"""A workflow as a tree: its steps, the children of its fan-outs, and their steps in turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from pulsed.client.bulk import pages
from pulsed.model.job import JobFilter, JobRow, Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.page import Counts
from pulsed.model.step import Checkpoint, StepKind, StepState
from pulsed.model.workflow import FAILED_CHILD, child_id, child_ids, family
from pulsed.store.base import Store

FEW = 5
"""Children of a fan-out that are shown, besides those that failed; at each level below, half."""

MOST_FAILED = 100
"""Failed children that are shown; an outage may fail thousands of a fan-out."""

MOST_TREES = 1_000
"""Children of a fan-out that are shown with what is below them."""

PAGE = 1_000


class Bounds(NamedTuple):
    """How much of a tree is read."""

    few: int | None
    """Children of a fan-out, from the first on; None: all of them."""
    failed: int
    """Failed children besides those."""
    running: int
    """Running children besides those."""
    trees: int
    """Children of a fan-out that are read with what is below them, unfinished ones first."""
    skip: int = 0
    steps: int | None = None
    """The page of the job's steps: how many precede it, and its length. None: all of them."""

    def below(self) -> Bounds:
        """Return the bounds for the children."""
        few = FEW if self.few is None else min(FEW, self.few // 2)
        return self._replace(few=few, skip=0)


def report_bounds(few: int | None) -> Bounds:
    """Return the bounds of a report: ``few`` children of each fan-out and the failed ones."""
    return Bounds(few, MOST_FAILED, 0, MOST_TREES)


class Node(NamedTuple):
    """A job and what is below it."""

    job: JobRow
    steps: Sequence[Step]
    others: int
    """Children that belong to none of its steps: perhaps from before a fresh restart."""
    now: datetime
    is_read: bool = True
    """Whether its steps were read."""
    is_cut: bool = False
    """Whether there are more steps than were read."""
    children: Counts | None = None
    """How many children it has, by status; None if that was not read."""

    @property
    def is_workflow(self) -> bool:
        """Whether there is anything below it."""
        return bool(self.steps or self.others)

    @property
    def waits_since(self) -> datetime | None:
        """When it began to wait, if it does."""
        begun = [step.began_at for step in self.steps if step.is_awaited]
        return begun[-1] if begun else None


class Step(NamedTuple):
    """One step of a job, and the children that it made."""

    checkpoint: Checkpoint
    children: Children | None
    is_awaited: bool
    """The job waits for this one now."""
    now: datetime

    @property
    def began_at(self) -> datetime:
        """When it began."""
        return self.checkpoint.started_at or self.now

    @property
    def ended_at(self) -> datetime | None:
        """When it ended. The end of a sleep is not stored: it ends when its time is up."""
        step = self.checkpoint
        if step.kind is StepKind.SLEEP and step.until is not None and step.until <= self.now:
            return step.until
        return step.ended_at

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return max(0.0, ((self.ended_at or self.now) - self.began_at).total_seconds())


class Child(NamedTuple):
    """One of a fan-out's jobs."""

    place: int | None
    """Its index among the calls; None if unknown."""
    node: Node


class Children(NamedTuple):
    """The jobs of a fan-out."""

    counts: Mapping[Status, int]
    shown: Sequence[Child]

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    @property
    def failed_unseen(self) -> int:
        """How many failed children are not shown."""
        seen = sum(child.node.job.status in FAILED_CHILD for child in self.shown)
        return max(0, sum(self.counts[status] for status in FAILED_CHILD) - seen)


# -- reading --------------------------------------------------------------------------------------


async def read_tree(store: Store, job: JobRow, bounds: Bounds) -> Node:
    """Read a job's steps and its children, within bounds."""
    page = None if bounds.steps is None else bounds.steps + 1
    found, generation, now = await store.workflows.history(job.id, skip=bounds.skip, limit=page)
    checkpoints, is_cut = found[: bounds.steps], len(found) > len(found[: bounds.steps])
    counts = await store.counts(JobFilter(parent=job.id))
    total = sum(counts.values())
    steps = []
    for checkpoint in sorted(checkpoints, key=_order):
        children = None
        if checkpoint.kind is StepKind.FAN_OUT and total:
            name = family(checkpoint.key, generation)
            children = await _read_children(store, job.id, name, bounds)
        steps.append(Step(checkpoint, children, _is_awaited(job, checkpoint, generation), now))
    known = sum(step.children.total for step in steps if step.children is not None)
    others = 0 if is_cut or bounds.skip else max(0, total - known)
    return Node(job, steps, others, now, is_cut=is_cut, children=counts)


def _order(step: Checkpoint) -> tuple[int, bool]:
    """Return the sort key of a step; a version precedes the call at which it was asked for."""
    return step.seq, step.kind is not StepKind.VERSION


def _is_awaited(job: JobRow, step: Checkpoint, generation: int) -> bool:
    if job.status is not Status.WAITING or step.state is not StepState.OPEN:
        return False
    if step.kind != job.wait_kind:
        return False
    match step.kind:
        case StepKind.FAN_OUT:
            return family(step.key, generation) == job.wait_key
        case StepKind.SLEEP:
            return step.until == job.next_run_at
        case _:
            return True  # of signals and jobs, only the one that is waited for is open


async def _read_children(store: Store, parent: UUID, name: str, bounds: Bounds) -> Children:
    where = JobFilter(parent=parent, parent_step=name)
    counts = await store.counts(where)
    total = sum(counts.values())
    if bounds.few is None:
        rows = [row async for page in pages(store, where, PAGE) for row in page]
    else:
        rows = await _some_children(
            store, where, counts, child_ids(parent, name, bounds.few), bounds
        )
    places = _places(parent, name, total, rows)
    unique = {row.id: row for row in rows}.values()
    shown = sorted(unique, key=lambda row: (places.get(row.id, total), row.id))
    unfinished_first = sorted(shown, key=lambda row: row.status in TERMINAL)
    read = {row.id for row in unfinished_first[: bounds.trees]}
    now = await store.now()
    children = []
    for row in shown:
        is_read = row.id in read
        tree = await read_tree(store, row, bounds.below()) if is_read else _unread(row, now)
        children.append(Child(places.get(row.id), tree))
    return Children(counts, children)


async def _some_children(
    store: Store, where: JobFilter, counts: Counts, first: Sequence[UUID], bounds: Bounds
) -> list[JobRow]:
    """Read the first children, and some of those that failed or run."""
    rows = list((await store.get(first)).values())
    for statuses, most in ((FAILED_CHILD, bounds.failed), ((Status.RUNNING,), bounds.running)):
        if most and any(counts[status] for status in statuses):
            some = msgspec.structs.replace(where, status=statuses)
            rows += await store.list_jobs(some, limit=most)
    return rows


def _unread(row: JobRow, now: datetime) -> Node:
    return Node(row, (), 0, now, is_read=False)


def _places(parent: UUID, name: str, total: int, rows: Iterable[JobRow]) -> dict[UUID, int]:
    """Return the index of each child's call, by computing ids: no index can be read from an id."""
    missing = {row.id for row in rows}
    places: dict[UUID, int] = {}
    for index in range(total + PAGE):  # some may have been removed by hand
        if not missing:
            break
        job_id = child_id(parent, name, index)
        if job_id in missing:
            missing.discard(job_id)
            places[job_id] = index
    return places
