"""OpenTelemetry's names for messaging, which still change: kept in this module only."""

from __future__ import annotations

from collections.abc import Sequence

from pulsed.engine.context import Context
from pulsed.engine.enqueuing import OutgoingJob
from pulsed.engine.workflow.steps import StepCall

SEND, PROCESS, STEP = "send", "process", "step"

ERROR_TYPE = "error.type"
LINKED = "pulsed.link"
"""What a link leads to: ``producer`` or ``previous run``."""

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
BATCH_SIZE = "messaging.batch.message_count"

Attributes = dict[str, str | int]


def sending(jobs: Sequence[OutgoingJob]) -> tuple[str, Attributes]:
    """Return the name and the attributes of a producer's span."""
    attributes: Attributes = _operation(SEND)
    topics = {job.topic for job in jobs}
    name = SEND
    if len(topics) == 1:
        (topic,) = topics
        attributes[DESTINATION] = topic
        name = f"{SEND} {topic}"
    if len(jobs) == 1:
        attributes[MESSAGE_ID] = str(jobs[0].id)
        attributes["pulsed.queue"] = jobs[0].queue
    else:
        attributes[BATCH_SIZE] = len(jobs)
    return name, attributes


def processing(ctx: Context) -> tuple[str, Attributes]:
    """Return the name and the attributes of a run's span."""
    return f"{PROCESS} {ctx.topic}", _operation(PROCESS) | {
        DESTINATION: ctx.topic,
        MESSAGE_ID: str(ctx.job_id),
        "pulsed.queue": ctx.queue,
        "pulsed.attempt": ctx.attempt,
    }


def stepping(step: StepCall) -> tuple[str, Attributes]:
    """Return the name and the attributes of a step's span."""
    return f"{STEP} {step.name}", {"pulsed.step": step.name, "pulsed.tries": step.tries}


def _operation(name: str) -> Attributes:
    return {SYSTEM: "pulsed", OPERATION_NAME: name, OPERATION_TYPE: name}
