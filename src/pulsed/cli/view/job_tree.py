"""A workflow's tree as JSON data."""

from __future__ import annotations

from typing import Any

import msgspec

from pulsed.cli.view.output import job_as_json, raw
from pulsed.client.job_tree import Node, Step
from pulsed.model.job import Status

FEW_IN_JSON = 100
"""Children of a fan-out that a program gets, besides those that failed."""


def tree_as_json(node: Node) -> dict[str, Any]:
    """Return a job as JSON data, with all that is below it."""
    steps = [_step_as_json(step) for step in node.steps] if node.is_read else None
    return job_as_json(node.job) | {"steps": steps, "wait": wait_as_json(node)}


def wait_as_json(node: Node) -> dict[str, Any] | None:
    """Return what a job waits for, as JSON data."""
    job = node.job
    if job.status is not Status.WAITING:
        return None
    return {
        "kind": job.wait_kind,
        "key": job.wait_key,
        "since": node.waits_since,
        "until": job.due_at,
    }


def _step_as_json(step: Step) -> dict[str, Any]:
    fields = msgspec.structs.asdict(step.checkpoint)
    for internal in ("input_hash", "took"):
        del fields[internal]
    fields |= {"value": raw(step.checkpoint.value), "ended_at": step.ended_at}
    fields["seconds"] = step.seconds
    if step.children is not None:
        children = step.children
        fields["children"] = {
            "counts": children.counts,
            "left_out": children.total - len(children.shown),
            "jobs": [{"index": child.place} | tree_as_json(child.node) for child in children.shown],
        }
    return fields
