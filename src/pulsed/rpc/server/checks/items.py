"""Validation of requests, from clients that a server cannot trust to have checked anything.

Python clients have made these checks already, as a rule; a producer in another language has not.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from functools import partial
from typing import Any
from uuid import UUID

import grpc
import msgspec

from pulsed.client.schedule_spec import JOB_OPTIONS, make_spec, options_of
from pulsed.errors import InvalidPayload
from pulsed.handler import Registry, checked_options, clean_text
from pulsed.handler.options import OPTIONS, checked_due, checked_name, checked_option
from pulsed.handler.payload import MAX_DEPTH, MAX_PAYLOAD
from pulsed.model.fields import NEW, attributes_of
from pulsed.model.job import Lease, NewJob, TopicPolicy, WorkerRequest
from pulsed.model.limit import LimitRule, checked_limit_key
from pulsed.model.outcome import (
    Cancelled,
    Failed,
    Outcome,
    Report,
    Succeeded,
    Successes,
    Waiting,
)
from pulsed.model.schedule import ScheduleRow, ScheduleSpec
from pulsed.rpc.messages.columnar import columns_of, succeeded_of
from pulsed.rpc.messages.errors import Refusal, invalid
from pulsed.rpc.messages.jobs import lease_of, new_job_of, topic_of
from pulsed.rpc.messages.reports import outcome_of
from pulsed.rpc.messages.schedules import fire_of, schedule_of, spec_of
from pulsed.rpc.messages.values import maybe
from pulsed.rpc.server.checks.workflows import check_family, checked_waiting
from pulsed.rpc.server.json_text import checked_json
from pulsed.store.schedules import Fire

_NO_HANDLERS = Registry()
LONGEST_WAIT = 60.0
LONGEST_LEASE = 3_600.0
"""Seconds: the longest lease that a server grants, whatever a worker or a job asks for. A worker
that sends heartbeats gains nothing by a longer one; a worker that is gone keeps it that long."""
MOST_QUEUES = 200
MOST_TOPICS = 5_000
"""Of one worker."""
MOST_ASKED = 1_000
"""Workers that one request asks to end."""
LONGEST_DEFAULT = 10_000
"""Characters of the value that a payload leaves out, for the keys of a limit."""
CERTAINLY_SHORT = MAX_PAYLOAD // 4
"""Characters up to which a text cannot exceed the allowed bytes."""
_decode = msgspec.json.Decoder().decode


def job_id_of(text: str) -> UUID:
    """Return an id; refuses a text that is not a UUID."""
    try:
        return UUID(text)
    except ValueError:
        raise invalid(f"{text!r:.60} is not a UUID.") from None


def checked_batch(items: Sized, most: int) -> None:
    """Refuse a request with too many items."""
    if len(items) > most:
        raise Refusal(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"{len(items):,} items in one request are too many: at most {most:,}. Send several.",
        )


def new_job(message: Any) -> NewJob:
    """Return the job of a message, if it can be stored."""
    job: NewJob = converted(new_job_of, message)
    checked_name("topic", job.topic)
    checked_json(f"The payload of {job.topic!r}", job.payload, is_object=True)
    for name in _OPTIONS:
        if (value := getattr(job, name)) is not None:
            checked_option(name, value)
    checked_option("delay", max(job.delay, 0.0))  # a negative delay means now
    if job.at is not None:
        checked_due("at", job.at)
    if job.limit_key is not None:
        checked_limit_key(job.limit_key)
    if job.parent_step is not None:
        check_family(job.parent_step)
    if job.lease is None or job.lease <= LONGEST_LEASE:
        return job
    return msgspec.structs.replace(job, lease=LONGEST_LEASE)


_OPTIONS = [name for name in attributes_of(NEW) if name in OPTIONS and name not in ("delay", "at")]
"""Options that ``using()`` takes, too, and checks in the same way."""


def queues_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return the queues that a worker names, each once."""
    queues = tuple(dict.fromkeys(names))
    if len(queues) > MOST_QUEUES:
        raise invalid(f"{len(queues):,} queues are too many: at most {MOST_QUEUES} for a worker.")
    return tuple(checked_name("queue", queue) for queue in queues)


def topics_of(messages: Sequence[Any]) -> list[TopicPolicy]:
    """Return a worker's topic policies; of several for one topic the last counts."""
    if len(messages) > MOST_TOPICS:
        raise invalid(f"{len(messages):,} topics are too many: at most {MOST_TOPICS:,}.")
    converted_topics = (converted(topic_of, message) for message in messages)
    policies = list({policy.topic: policy for policy in converted_topics}.values())
    for policy in policies:
        checked_name("topic", policy.topic)
        converted(_limit_of, policy)
        checked_options(
            {
                "max_attempts": policy.max_attempts,
                "timeout": policy.timeout,
                "lease": policy.lease,
            }
        )
    return [
        msgspec.structs.replace(policy, lease=min(policy.lease, LONGEST_LEASE))
        for policy in policies
    ]


def _limit_of(policy: TopicPolicy) -> LimitRule | None:
    if len(policy.limit_default) > LONGEST_DEFAULT:
        raise invalid(
            f"The default of a limit is too long: at most {LONGEST_DEFAULT:,} characters."
        )
    return policy.limit


def check_worker(message: Any) -> None:
    """Refuse a worker whose presence cannot be stored and shown as a row."""
    queues_of(message.queues)
    if len(message.topics) > MOST_TOPICS:
        raise invalid(f"{len(message.topics):,} topics are too many: at most {MOST_TOPICS:,}.")
    for topic in message.topics:
        checked_name("topic", topic)
    for what in ("host", "state", "version", "request"):
        if text := getattr(message, what):
            checked_name(f"{what} of a worker", text)


def asked_workers(message: Any) -> tuple[list[UUID], WorkerRequest]:
    """Return which workers are asked, and for what."""
    if not 1 <= len(message.worker_ids) <= MOST_ASKED:
        raise invalid(f"worker_ids must be 1 to {MOST_ASKED:,}, not {len(message.worker_ids):,}.")
    try:
        request = WorkerRequest(message.request)
    except ValueError:
        raise invalid(f"request must be drain or stop, not {message.request!r:.100}.") from None
    return [job_id_of(each) for each in message.worker_ids], request


def lease(message: Any) -> Lease:
    """Return the lease of a message."""
    found: Lease = converted(lease_of, message)
    return found


def successes_of(message: Any) -> Successes | None:
    """Return successful runs in the columns in which they were sent.

    None if there is only one, if one is of a child, or if a result may be one that cannot be
    stored: then each needs a report of its own.
    """
    if len(message.results) <= 1 or True in message.are_children:
        return None
    runs: Successes = converted(columns_of, message)
    return runs if _are_storable([text for text in runs.results if text]) else None


def reports_of(message: Any) -> list[Report]:
    """Return a report of each of the successful runs that were sent in columns."""
    reports: list[Report] = converted(succeeded_of, message)
    return [report._replace(outcome=_storable(report.outcome)) for report in reports]


def _are_storable(results: list[str]) -> bool:
    """Whether all of these pass ``checked_json``, by fast checks; False if they cannot tell.

    What holds for all texts together holds for each, and is faster to find out.
    """
    together = "".join(results)
    if r"\u0000" in together:
        return False
    if not _is_plain(together) and not all(map(_is_plain, results)):
        return False
    try:
        for text in results:
            _decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _is_plain(text: str) -> bool:
    """Whether a text is certainly not too long or nested too deeply."""
    return len(text) <= CERTAINLY_SHORT and text.count("[") + text.count("{") <= MAX_DEPTH


def report_of(message: Any) -> Report:
    """Return how a run ended."""
    return Report(lease(message.lease), _outcome(message), maybe(message, "is_child"))


def _outcome(message: Any) -> Outcome:
    outcome: Outcome | None = converted(outcome_of, message)
    if outcome is None:
        raise invalid(
            "A report needs an outcome: succeeded, failed, snoozed, cancelled, released, waiting."
        )
    if isinstance(outcome, Waiting):
        return checked_waiting(outcome)
    return _storable(outcome)


def _storable(outcome: Outcome) -> Outcome:
    """Return an outcome; for a result that cannot be stored, a final failure with the reason.

    Texts are cut as a worker cuts those of its own handlers.
    """
    match outcome:
        case Succeeded(str(result)):
            try:
                checked_json("The result", result)
            except InvalidPayload as error:
                return Failed(str(error), final=True)
        case Failed(text, trace):
            cut = None if trace is None else clean_text(trace)
            return msgspec.structs.replace(outcome, error=clean_text(text), traceback=cut)
        case Cancelled(reason):
            return Cancelled(clean_text(reason))
    return outcome


def spec(message: Any) -> ScheduleSpec:
    """Return the spec of a schedule, if it is valid."""
    asked = converted(spec_of, message)
    checked_json(f"The payload of {asked.topic!r}", asked.payload, is_object=True)
    options = options_of(asked) | {name: getattr(asked, name) for name in JOB_OPTIONS}
    made = make_spec(asked.topic, options, _NO_HANDLERS)
    # The payload stays as it came: encoding it again would change the schedule.
    lease = None if made.lease is None else min(made.lease, LONGEST_LEASE)
    return msgspec.structs.replace(made, payload=asked.payload, lease=lease)


def seen_schedule(message: Any) -> ScheduleRow:
    """Return a schedule as the client has read it, without its texts, which are not used here."""
    row: ScheduleRow = converted(schedule_of, message)
    return msgspec.structs.replace(row, spec_text="", error=None)


def fire(message: Any) -> Fire:
    """Return the fire of a due schedule, if its jobs can be stored."""
    asked: Fire = converted(partial(fire_of, job_of=new_job), message)
    return asked._replace(row=seen_schedule(message.schedule))


def converted(convert: Any, message: Any) -> Any:
    """Return the value of a message; refuses a message that cannot be converted."""
    try:
        return convert(message)
    except (ValueError, OverflowError, KeyError) as error:
        raise invalid(f"{type(message).__name__} cannot be read: {error}") from error
