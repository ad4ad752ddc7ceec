"""A workflow's steps as rows with bars: a tree to read, a waterfall to look at. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from pulsed.client.job_tree import Child, Children, Node, Step
from pulsed.client.step_wording import Said, outcome_of
from pulsed.model.job import JobRow, Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.step import Checkpoint, StepKind, StepState
from pulsed.web.runs import Bar, Scale
from pulsed.wording import format_duration

WAITS = frozenset({StepKind.SLEEP, StepKind.SIGNAL, StepKind.JOB})
DEEPEST = 4
"""Levels that are indented."""


class StepBar(NamedTuple):
    """A step, a child, or a line about children that are not shown."""

    depth: int
    bars: list[Bar]
    said: Said
    step: Checkpoint | None = None
    children: Children | None = None
    """Of a fan-out."""
    job: JobRow | None = None
    """Of a child."""
    place: int | None = None
    parent: JobRow | None = None
    """The job of a step, or of children that are not shown."""


class Waterfall(NamedTuple):
    """The rows of a workflow's steps."""

    rows: list[StepBar]
    is_folded: bool
    """Whether time in which it only waited is drawn shorter than time in which it worked."""


def rows_of(node: Node) -> Waterfall:
    """Return the rows of a workflow."""
    scale = _scale(node)
    return Waterfall(list(_rows(node, scale, 0)), scale.is_folded)


def _scale(node: Node) -> Scale:
    begins = [step.began_at for step in node.steps] or [node.job.submitted_at]
    is_over = node.job.status in TERMINAL
    ends = [step.ended_at or (None if is_over else node.now) for step in node.steps]
    end = max((each for each in ends if each is not None), default=node.now)
    return Scale(min(begins), end, [_span(step) for step in node.steps if not _only_waits(step)])


def _only_waits(step: Step) -> bool:
    return step.checkpoint.kind in {*WAITS, StepKind.VERSION}


def _span(step: Step) -> tuple[datetime, datetime]:
    return step.began_at, step.ended_at or step.now


def _rows(node: Node, scale: Scale, depth: int) -> Iterator[StepBar]:
    deeper = min(depth + 1, DEEPEST)
    for step in node.steps:
        yield StepBar(
            depth,
            _bars_of(step, node, scale),
            outcome_of(step, node),
            step.checkpoint,
            step.children,
            parent=node.job,
        )
        if step.children is None:
            continue
        for child in step.children.shown:
            yield _child_row(child, scale, deeper)
            yield from _rows(child.node, scale, min(deeper + 1, DEEPEST))
        if left := step.children.total - len(step.children.shown):
            yield StepBar(deeper, [], Said(f"and {left:,} more", "soft"), parent=node.job)
    if node.others:
        yield StepBar(depth, [], Said(f"{node.others:,} of no step here", "soft"), parent=node.job)


def _bars_of(step: Step, node: Node, scale: Scale) -> list[Bar]:
    if step.checkpoint.kind is StepKind.VERSION:
        return []
    end = step.ended_at or (node.job.completed_at or step.now)
    return [scale.bar(step.began_at, max(end, step.began_at), _kind(step))]


def _kind(step: Step) -> str:
    if step.checkpoint.kind in WAITS or step.is_awaited:
        return "waiting"
    return "good" if step.checkpoint.state in (StepState.DONE, StepState.OPEN) else "bad"


def _child_row(child: Child, scale: Scale, depth: int) -> StepBar:
    job, now = child.node.job, child.node.now
    return StepBar(
        depth, _child_bars(job, scale, now), _child_said(job, now), None, None, job, child.place
    )


def _child_bars(job: JobRow, scale: Scale, now: datetime) -> list[Bar]:
    if job.started_at is None:
        return [scale.bar(job.submitted_at, job.completed_at or now, "waited")]
    end = job.completed_at or now
    kind = {Status.SUCCEEDED: "good", Status.RUNNING: "running", Status.WAITING: "waiting"}
    return [
        scale.bar(job.submitted_at, job.started_at, "waited"),
        scale.bar(job.started_at, max(end, job.started_at), kind.get(job.status, "bad")),
    ]


def _child_said(job: JobRow, now: datetime) -> Said:
    if job.completed_at is not None:
        return Said(f"in {format_duration((job.completed_at - job.submitted_at).total_seconds())}")
    if job.status is Status.RUNNING and job.started_at is not None:
        return Said(f"for {format_duration((now - job.started_at).total_seconds())}")
    return Said("")
