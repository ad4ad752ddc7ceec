"""What the verbs of a store return, to messages and back; and what a prune is asked to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from pulsed.model.job import Status
from pulsed.model.page import Counts, GroupedCounts
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.conversion import Conversion
from pulsed.rpc.messages.jobs import STATUS_NUMBERS, STATUSES
from pulsed.rpc.messages.values import instant, maybe, maybe_stamp
from pulsed.store.results import (
    Audit,
    Backlog,
    Expired,
    Pruned,
    Reaped,
    Running,
    Submitted,
    WatchdogTick,
)

_reaped = Conversion(
    Reaped, pb.WatchdogResponse.Reaped, enums={"status": (STATUS_NUMBERS, STATUSES)}
)

_expired = Conversion(Expired, pb.ExpireJobsResponse.Expired)
expired_message = _expired.message
"""Return an expired job as a message."""
expired_of = _expired.value
"""Return the expired job of a message."""

_backlog = Conversion(Backlog, pb.GetBacklogResponse.Lane)
backlog_message = _backlog.message
"""Return the due jobs of a topic in a queue as a message."""
backlog_of = _backlog.value
"""Return the due jobs of a message."""

_running = Conversion(Running, pb.GetRunningResponse.Lane)
running_message = _running.message
"""Return the running jobs of a topic in a queue as a message."""
running_of = _running.value
"""Return the running jobs of a message."""

_audit = Conversion(Audit, pb.AuditResponse)
audit_message = _audit.message
"""Return how many jobs break an invariant, as a message."""
audit_of = _audit.value
"""Return how many jobs break an invariant, from a message."""


def tick_message(tick: WatchdogTick) -> pb.WatchdogResponse:
    """Return what a scan for expired leases did, as a message."""
    return pb.WatchdogResponse(in_grace=tick.in_grace, reaped=map(_reaped.message, tick.reaped))


def tick_of(message: pb.WatchdogResponse) -> WatchdogTick:
    """Return what a scan for expired leases did."""
    return WatchdogTick([*map(_reaped.value, message.reaped)], in_grace=message.in_grace)


def pruned_message(pruned: Pruned) -> pb.PruneJobsResponse:
    """Return what a prune removed as a message."""
    return pb.PruneJobsResponse(
        removed=[
            pb.PruneJobsResponse.Removed(
                status=STATUS_NUMBERS[status],
                jobs=jobs,
                reached=maybe_stamp(pruned.reached.get(status)),
            )
            for status, jobs in pruned.removed.items()
        ]
    )


def pruned_of(message: pb.PruneJobsResponse) -> Pruned:
    """Return what a prune removed."""
    return Pruned(
        {STATUSES[each.status]: each.jobs for each in message.removed},
        {
            STATUSES[each.status]: instant(each.reached)
            for each in message.removed
            if each.HasField("reached")
        },
    )


def counts_message(counts: Counts, conditions: int = 0) -> pb.CountJobsResponse:
    """Return numbers of jobs by status as a message."""
    return pb.CountJobsResponse(
        counts=[
            pb.CountJobsResponse.Count(
                status=STATUS_NUMBERS[status], jobs=number, at_least=status in counts.at_least
            )
            for status, number in counts.items()
        ],
        due=counts.due,
        conditions=conditions,
    )


def counts_of(message: Any) -> Counts:
    """Return the numbers of jobs by status."""
    return Counts(
        ((STATUSES[count.status], count.jobs) for count in message.counts),
        (STATUSES[count.status] for count in message.counts if count.at_least),
        due=message.due,
    )


def grouped_message(counts: GroupedCounts, conditions: int) -> pb.CountJobsByResponse:
    """Return numbers of jobs by some of their fields as a message."""
    groups = [
        pb.CountJobsByResponse.Group(
            values=[pb.CountJobsByResponse.Value(text=value) for value in values], jobs=number
        )
        for values, number in counts
    ]
    return pb.CountJobsByResponse(
        groups=groups, cut=counts.is_cut, short=counts.is_short, conditions=conditions
    )


def grouped_of(message: pb.CountJobsByResponse, by: Sequence[str]) -> GroupedCounts:
    """Return numbers of jobs by some of their fields, from a message."""
    groups = [
        (tuple(maybe(value, "text") for value in group.values), group.jobs)
        for group in message.groups
    ]
    return GroupedCounts(groups, by=by, is_cut=message.cut, is_short=message.short)


def acts_message(answers: Mapping[UUID, tuple[bool, Status]]) -> pb.JobActs:
    """Return what became of an act on jobs as a message."""
    return pb.JobActs(
        acts=[
            pb.JobActs.Act(job_id=str(job_id), done=done, status=STATUS_NUMBERS[status])
            for job_id, (done, status) in answers.items()
        ]
    )


def acts_of(message: pb.JobActs) -> dict[UUID, tuple[bool, Status]]:
    """Return, for each job that exists, whether the act was done, and its status now."""
    return {UUID(act.job_id): (act.done, STATUSES[act.status]) for act in message.acts}


def submitted_message(submitted: Submitted) -> pb.SubmitJobsResponse:
    """Return what became of new jobs as a message."""
    return pb.SubmitJobsResponse(
        inserted=submitted.new,
        existing=sorted(submitted.existing),
        unknown=sorted(submitted.unknown),
        holders=[
            pb.KeyHolder(place=place, job_id=str(holder), replaced=place in submitted.replaced)
            for place, holder in submitted.holders.items()
        ],
    )


def submitted_of(message: pb.SubmitJobsResponse, total: int) -> Submitted:
    """Return what became of ``total`` jobs."""
    submitted = Submitted(
        total,
        frozenset(message.existing),
        frozenset(message.unknown),
        {each.place: UUID(each.job_id) for each in message.holders},
        frozenset(each.place for each in message.holders if each.replaced),
    )
    if submitted.new == message.inserted:
        return submitted
    # A server of an earlier version only counts the new ones.
    every = frozenset(range(total))
    return Submitted(total, unknown=every) if message.inserted else Submitted(total, every)


def ages_message(
    ages: Mapping[Status, float], since: Mapping[Status, datetime]
) -> list[pb.PruneJobsRequest.Age]:
    """Return which jobs to prune as messages: by age in seconds, from a watermark on."""
    return [
        pb.PruneJobsRequest.Age(
            status=STATUS_NUMBERS[status],
            seconds=seconds,
            since=maybe_stamp(since.get(status)),
        )
        for status, seconds in ages.items()
    ]
