"""The runs of a job: what is known of each, and where it stands on the time line. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from math import sqrt
from typing import NamedTuple
from uuid import UUID

from pulsed.client.step_wording import Tone
from pulsed.model.job import Failure, JobRow, Status


class RunBar(NamedTuple):
    """One run of a job."""

    attempt: int
    worker: UUID | None
    began: datetime | None
    ended: datetime | None
    end: str
    """How it ended."""
    tone: Tone
    failure: Failure | None = None


class Bar(NamedTuple):
    """A stretch of time, in per cent of the whole width."""

    start: float
    width: float
    kind: str
    """``waited``, or how the work in it went: ``good``, ``bad``, ``running``."""


ENDS: dict[str | None, tuple[str, Tone]] = {
    "SUCCEEDED": ("succeeded", "good"),
    "WAITING": ("suspended, attempt given back", "waiting"),
    "SNOOZED": ("put off by its handler, attempt given back", "soft"),
    "RELEASED": ("handed back by its worker, attempt given back", "soft"),
    "INTERRUPTED": ("its worker died, attempt given back", "bad"),
    "CANCELLED": ("cancelled", "soft"),
}


def runs_of(
    job: JobRow,
    failures: Sequence[Failure],
    waits_since: datetime | None,
    *,
    with_last: bool = True,
) -> list[RunBar]:
    """Return the runs of a job that are known: failed ones, oldest first, and the last one."""
    runs = [
        RunBar(each.attempt, each.worker_id, each.started_at, each.ended_at, "failed", "bad", each)
        for each in failures
    ]
    if not with_last:
        return runs
    if job.status is Status.RUNNING:
        word = "asked to stop" if job.cancel_requested else "runs now"
        runs.append(RunBar(job.attempts, job.locked_by, job.started_at, None, word, "running"))
    elif job.started_at is not None and job.last_outcome in ENDS and not _is_last(job, failures):
        end, tone = ENDS[job.last_outcome]
        attempt = job.attempts if tone == "good" else job.attempts + 1
        ended = job.completed_at or waits_since
        runs.append(RunBar(attempt, job.last_worker, job.started_at, ended, end, tone))
    return runs


def _is_last(job: JobRow, failures: Sequence[Failure]) -> bool:
    """Whether the last run of a job is the last one that failed."""
    return bool(failures) and failures[-1].started_at == job.started_at


def timeline(job: JobRow, runs: Sequence[RunBar], now: datetime) -> list[Bar]:
    """Return a job's life as stretches of waiting and of work."""
    scale = Scale(job.submitted_at, job.completed_at or now)
    bars = []
    at = job.submitted_at
    for run in runs:
        if run.began is None:
            continue
        bars.append(scale.bar(at, run.began, "waited"))
        at = run.ended or (now if run.tone == "running" else run.began)
        bars.append(scale.bar(run.began, at, run.tone if run.tone in WORK else "good"))
    if job.completed_at is None and at < now:
        bars.append(scale.bar(at, now, "waited"))
    return [bar for bar in bars if bar.width > 0]


WORK = frozenset({"good", "bad", "running"})


class Scale:
    """Turns instants into places on a line.

    With ``work``, the spans in which something worked, the gaps between them get at most
    ``IDLE_SHARE`` of the line, each by the root of its length: beside a wait of hours, steps and
    waits of seconds would be invisible.
    """

    def __init__(
        self, begin: datetime, end: datetime, work: Sequence[tuple[datetime, datetime]] = ()
    ) -> None:
        self.begin = begin
        whole = max((end - begin).total_seconds(), 1e-6)
        spans = _merged([(self._second(first), self._second(last)) for first, last in work])
        worked = sum(last - first for first, last in spans)
        self.is_folded = 0 < worked < (1 - IDLE_SHARE) * whole
        self._pieces = [(0.0, whole, whole)]
        """Beginning, end and width of each piece of time; widths in no unit."""
        if self.is_folded:
            gaps = list(_between(spans, whole))
            unit = worked * IDLE_SHARE / (1 - IDLE_SHARE) / sum(sqrt(b - a) for a, b in gaps)
            self._pieces = [(a, b, b - a) for a, b in spans]
            self._pieces += [(a, b, unit * sqrt(b - a)) for a, b in gaps]
        self._width = sum(width for _, _, width in self._pieces)

    def _second(self, instant: datetime) -> float:
        return max(0.0, (instant - self.begin).total_seconds())

    def bar(self, begin: datetime, end: datetime, kind: str) -> Bar:
        """Return the bar of a stretch of time; at least a sliver."""
        start, stop = self.place(begin), self.place(end)
        return Bar(min(start, 99.5), max(stop - start, 0.5 if kind != "waited" else 0.0), kind)

    def place(self, instant: datetime) -> float:
        """Return where an instant is, from 0 to 100."""
        second, reached = self._second(instant), 0.0
        for first, last, width in self._pieces:
            if second > first:
                reached += width * min(1.0, (second - first) / max(last - first, 1e-9))
        return round(100 * min(1.0, reached / self._width), 3)


IDLE_SHARE = 0.4


def _merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return spans of time without overlaps, in order."""
    merged: list[tuple[float, float]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, max(first, last)))
    return merged


def _between(spans: Sequence[tuple[float, float]], end: float) -> Iterator[tuple[float, float]]:
    """Yield the gaps before, between and after spans of time."""
    at = 0.0
    for first, last in [*spans, (end, end)]:
        if first > at:
            yield at, first
        at = max(at, last)
