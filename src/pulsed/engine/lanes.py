"""The state of queues, and of the topics in one queue: due, running, rates, live workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from pulsed.engine.why import live
from pulsed.model.job import WorkerInfo
from pulsed.model.rollup import By, Rollup, Series, SeriesRows, total
from pulsed.store.results import Backlog, Running

RECENT_MINUTES = 5
"""Whole minutes that a rate is the average of."""

L = TypeVar("L", Backlog, Running)


class LaneState(NamedTuple):
    """A queue, or a topic in a queue."""

    name: str
    due: int
    due_at_least: bool
    """There may be more due jobs."""
    oldest: float | None
    """Seconds since the oldest due job became due."""
    running: int
    running_at_least: bool
    submitted: Sequence[int]
    """Jobs enqueued in each minute of the last hour, as far as it was counted."""
    ended: Sequence[int]
    """Attempts that ended in each minute of the last hour."""
    failure_rate: float | None
    """The share of attempts that failed in the last hour; None if none has succeeded or failed."""
    workers: int
    """Live workers that take from it."""

    @property
    def per_minute_in(self) -> float | None:
        """Jobs enqueued per minute; None if nothing counted them in the last hour."""
        return recent_rate(self.submitted) if any(self.submitted) else None

    @property
    def per_minute_out(self) -> float:
        """Attempts that ended per minute."""
        return recent_rate(self.ended)


class Lanes(NamedTuple):
    """What the state of queues is made of."""

    backlog: Sequence[Backlog]
    running: Sequence[Running]
    workers: Sequence[WorkerInfo]
    now: datetime

    def of(self, queue: str) -> Lanes:
        """Return the lanes of one queue alone, and the workers that take from it."""
        return Lanes(
            [each for each in self.backlog if each.queue == queue],
            [each for each in self.running if each.queue == queue],
            [each for each in self.workers if queue in each.queues],
            self.now,
        )

    def queues(
        self, by_queue: Mapping[str, Series], besides: Iterable[str] = ()
    ) -> list[LaneState]:
        """Return the queues that have jobs, live workers or a past hour, the longest due first.

        Those in ``besides`` are listed in any case.
        """
        living = live(self.workers, self.now)
        due = _grouped(self.backlog, lambda lane: lane.queue)
        running = _grouped(self.running, lambda lane: lane.queue)
        served = Counter(queue for worker in living for queue in set(worker.queues))
        names = {name for name in (*due, *running, *by_queue, *served, *besides) if name}
        return self._states(names, due, running, by_queue, served)

    def topics(self, queue: str, by_topic: Mapping[str, Series]) -> list[LaneState]:
        """Return the topics of a queue that have jobs or a past hour, the longest due first."""
        living = [each for each in live(self.workers, self.now) if queue in each.queues]
        due = _grouped((e for e in self.backlog if e.queue == queue), lambda lane: lane.topic)
        running = _grouped((e for e in self.running if e.queue == queue), lambda lane: lane.topic)
        served = Counter(topic for worker in living for topic in set(worker.topics))
        names = {name for name in (*due, *running, *by_topic) if name}
        return self._states(names, due, running, by_topic, served)

    def _states(
        self,
        names: Iterable[str],
        due: Mapping[str, list[Backlog]],
        running: Mapping[str, list[Running]],
        series: Mapping[str, Series],
        served: Counter[str],
    ) -> list[LaneState]:
        return _in_order(
            self._state(
                name, due.get(name, []), running.get(name, []), series.get(name), served[name]
            )
            for name in names
        )

    def _state(
        self,
        name: str,
        due: list[Backlog],
        running: list[Running],
        series: Series | None,
        workers: int,
    ) -> LaneState:
        oldest = min((lane.oldest for lane in due), default=None)
        stats = [point.stats for point in series.points] if series else []
        return LaneState(
            name=name,
            due=sum(lane.due for lane in due),
            due_at_least=any(lane.at_least for lane in due),
            oldest=None if oldest is None else (self.now - oldest).total_seconds(),
            running=sum(lane.running for lane in running),
            running_at_least=any(lane.at_least for lane in running),
            submitted=[each.submitted for each in stats],
            ended=[each.ended for each in stats],
            failure_rate=total(stats).failure_rate,
            workers=workers,
        )


def _grouped(lanes: Iterable[L], name: Callable[[L], str]) -> dict[str, list[L]]:
    groups: dict[str, list[L]] = {}
    for lane in lanes:
        groups.setdefault(name(lane), []).append(lane)
    return groups


def _in_order(states: Iterable[LaneState]) -> list[LaneState]:
    return sorted(states, key=lambda lane: (-(lane.oldest or 0), -lane.per_minute_out, lane.name))


def recent_rate(counts: Sequence[int]) -> float:
    """Return the average of the last whole minutes of a series; its last one is not over yet."""
    recent = counts[-1 - RECENT_MINUTES : -1]
    return sum(recent) / len(recent) if recent else 0.0


def by_name(found: SeriesRows, by: By) -> dict[str, Series]:
    """Return a series for each queue or topic, all with the same steps."""
    parts: dict[str, list[Rollup]] = {}
    for each in found.rollups:
        parts.setdefault(getattr(each, by), []).append(each)
    return {key: found.series(parts[key]) for key in sorted(parts)}
