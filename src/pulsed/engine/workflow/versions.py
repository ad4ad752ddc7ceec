"""Changes of a workflow's code while workflows are in flight."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pulsed.engine.workflow.flow import Place, Workflow, checked_step_name
from pulsed.errors import NonDeterministic
from pulsed.handler.options import checked_count
from pulsed.model.step import StepKey, StepKind

LARGEST = 1_000_000


def version(flow: Workflow, change: str, least: int, most: int) -> Coroutine[Any, Any, int]:
    """Return which version of its code a workflow follows at a change.

    The call takes no place of its own: adding it must not move the places of the calls after it.
    """
    checked_step_name(change)
    name = checked_step_name(f"version:{change}")
    checked_count("ctx.version(min)", least, 0, LARGEST)
    checked_count("ctx.version(max)", most, least, LARGEST)
    key = StepKey(name, 1)
    return _version(flow, Place(StepKind.VERSION, key, flow.next_seq, ""), least, most)


async def _version(flow: Workflow, place: Place, least: int, most: int) -> int:
    stored = await flow.find(place.key)
    if stored is None:
        # Checkpoints from this place on were stored by code from before this change.
        chosen = least if flow.was_beyond(place.seq) else most
        stored = place.checkpoint(value=str(chosen))
        await flow.record(stored)
    chosen = int(stored.value or 0)
    if not least <= chosen <= most:
        flow.interrupted = NonDeterministic(
            f"Job {flow.job_id} ({flow.topic}) follows version {chosen} of "
            f"{place.key.name.removeprefix('version:')!r}, and its code knows {least} to {most} "
            "only. Bring the old code back, or retry the job afresh.",
            job_id=flow.job_id,
        )
        raise flow.interrupted
    return chosen
