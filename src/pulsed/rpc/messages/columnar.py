"""Many jobs in one message: a column for each field that differs, one value for all others.

A message per job would be most of the cost of a drain through a server: building and parsing one
takes ten times as long as an entry in a few columns. Only shapes are translated here; ``checks``
says what a server accepts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from pulsed.model.ids import uuid_of
from pulsed.model.job import Assignment, Lease
from pulsed.model.outcome import Report, Succeeded, Successes
from pulsed.model.timetable import EPOCH, to_micros
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.jobs import assignment_message, assignment_of, worker_text, worker_uuid

OWN = ("lease", "payload", "next_run_at", "submitted_at")
"""Fields that get a column; all others of an assignment are often the same as its neighbour's."""

WORTH_IT = 4
"""Jobs that must on average share columns: columns of one job cost more than its message."""

_in_common = attrgetter(*(name for name in Assignment.__struct_fields__ if name not in OWN))
_ID = struct.Struct(">QQ")


def batch_message(
    grant_id: int, claimed: Sequence[Assignment], lost_answers: int, *, columns: bool
) -> pb.StreamJobsResponse:
    """Return the answer to a grant, in columns if the worker reads them and enough jobs share."""
    # Filled in place: a message that is given to another one is serialized and parsed for that.
    message = pb.StreamJobsResponse()
    batch = message.batch
    batch.grant_id = grant_id
    batch.lost_answers = lost_answers
    if columns and len(claimed) >= WORTH_IT:
        alike = [list(group) for _, group in groupby(claimed, _in_common)]
        if len(alike) * WORTH_IT <= len(claimed):
            for each in alike:
                _fill(batch.columns.add(), each)
            return message
    batch.assignments.extend(map(assignment_message, claimed))
    return message


def size_of(batch: Any) -> int:
    """Return how many jobs a batch has."""
    return len(batch.assignments) + sum(len(columns.payloads) for columns in batch.columns)


def assignments_of(batch: Any, worker_id: UUID) -> list[Assignment]:
    """Return the jobs of a batch."""
    claimed = [assignment_of(message, worker_id) for message in batch.assignments]
    for columns in batch.columns:
        claimed += _rows(columns, worker_id)
    return claimed


def succeeded_message(reports: Sequence[Report], worker_id: UUID) -> pb.SucceededColumns:
    """Return the successes of one worker as a message."""
    return pb.SucceededColumns(
        worker_id=worker_text(worker_id),
        job_ids=_packed(report.lease for report in reports),
        lease_tokens=[report.lease.token for report in reports],
        results=[report.outcome.result or "" for report in reports],  # type: ignore[union-attr]
        are_children=_are_children(reports),
    )


def columns_of(message: Any) -> Successes:
    """Return the successes of a message as they came; refuses columns that do not fit together."""
    runs = Successes(
        worker_uuid(message.worker_id),
        list(_ids(message.job_ids)),
        list(message.lease_tokens),
        [result or None for result in message.results],
    )
    number = len(runs.results)
    known = len(message.are_children)
    if not len(runs.job_ids) == len(runs.tokens) == number or known not in (0, number):
        raise ValueError("its columns are not of the same length")
    return runs


def succeeded_of(message: Any) -> list[Report]:
    """Return the successes of a message; refuses columns that do not fit together."""
    worker_id = worker_uuid(message.worker_id)
    columns = zip(
        _ids(message.job_ids),
        message.lease_tokens,
        message.results,
        message.are_children or [None] * len(message.results),
        strict=True,
    )
    return [
        Report(Lease(job_id, token, worker_id), Succeeded(result or None), is_child)
        for job_id, token, result, is_child in columns
    ]


def _are_children(reports: Sequence[Report]) -> list[bool]:
    """Return whether each job is a child; an empty list unless that is known of all."""
    known = [report.is_child for report in reports if report.is_child is not None]
    return known if len(known) == len(reports) else []


def _fill(columns: Any, alike: list[Assignment]) -> None:
    micros = _Micros()
    columns.shared.CopyFrom(assignment_message(replace(alike[0], payload="")))
    columns.job_ids = _packed(each.lease for each in alike)
    columns.lease_tokens.extend([each.lease.token for each in alike])
    columns.payloads.extend([each.payload for each in alike])
    columns.next_run_at.extend([micros[each.next_run_at] for each in alike])
    columns.submitted_at.extend([micros[each.submitted_at] for each in alike])


def _rows(columns: Any, worker_id: UUID) -> Iterator[Assignment]:
    shared = assignment_of(columns.shared, worker_id)
    rows = zip(
        _ids(columns.job_ids),
        columns.lease_tokens,
        columns.payloads,
        columns.next_run_at,
        columns.submitted_at,
        strict=True,
    )
    instants = _Instants()
    new_tuple = tuple.__new__  # in half of the time that Lease() takes
    for job_id, token, payload, next_run_at, submitted_at in rows:
        yield replace(
            shared,
            lease=new_tuple(Lease, (job_id, token, worker_id)),
            payload=payload,
            headers=dict(shared.headers),
            next_run_at=instants[next_run_at],
            submitted_at=instants[submitted_at],
        )


class _Instants(dict[int, datetime]):
    """Instants by their microseconds, each computed once: jobs enqueued together have the same."""

    def __missing__(self, micros: int) -> datetime:
        self[micros] = instant = EPOCH + timedelta(0, 0, micros)
        return instant


class _Micros(dict[datetime, int]):
    """The same the other way round."""

    def __missing__(self, instant: datetime) -> int:
        self[instant] = micros = to_micros(instant)
        return micros


def _packed(leases: Iterable[Lease]) -> bytes:
    return b"".join([lease.job_id.bytes for lease in leases])


def _ids(packed: bytes) -> Iterator[UUID]:
    if len(packed) % _ID.size:
        raise ValueError(f"{len(packed)} bytes are no list of ids, which have {_ID.size} each")
    return (uuid_of(high << 64 | low) for high, low in _ID.iter_unpack(packed))


def fits(report: Report, worker_id: UUID) -> bool:
    """Whether a report can be sent in columns, with others of a worker."""
    outcome, lease = report.outcome, report.lease
    return (
        type(outcome) is Succeeded
        and not outcome.discard_checkpoints
        and lease.worker_id == worker_id
    )
