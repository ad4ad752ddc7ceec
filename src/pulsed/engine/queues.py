"""Queues as operators see them: their load, who takes from them, and what governs them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from pulsed.engine.lanes import Lanes, LaneState
from pulsed.engine.why import live
from pulsed.model.control import Control, ControlScope, Numbers
from pulsed.model.job import WorkerInfo
from pulsed.model.rollup import Series
from pulsed.store.base import Store
from pulsed.store.controls import CONTROL_PAGE


class QueueState(NamedTuple):
    """A queue: what is due and running in it, and the control that governs it."""

    lane: LaneState
    control: Control
    takers: tuple[WorkerInfo, ...]
    """The live workers that take from it."""
    next_start: datetime | None
    """When its rate permits the next start, if that holds jobs back."""

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self.lane.name

    @property
    def due(self) -> int:
        """Jobs that are due; a lower bound if ``lane.due_at_least``."""
        return self.lane.due

    @property
    def oldest(self) -> float | None:
        """Seconds since the oldest due job became due."""
        return self.lane.oldest

    @property
    def running(self) -> int:
        """Jobs that run."""
        return self.lane.running

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self.control.paused

    @property
    def numbers(self) -> Numbers:
        """Its limits: an operator's, or else those of the code."""
        return self.control.numbers


async def read_queues(store: Store, by_queue: Mapping[str, Series]) -> list[QueueState]:
    """Return the queues that have jobs, live workers, a past hour or a control."""
    lanes = Lanes(
        await store.backlog(), await store.running(), await store.workers(), await store.now()
    )
    found = await store.controls.list_page(ControlScope.QUEUE, limit=CONTROL_PAGE)
    controls = {control.name: control for control in found}
    limited = [control.name for control in found if control.numbers.rate is not None]
    tats = await store.controls.rates(ControlScope.QUEUE, limited) if limited else {}
    living = live(lanes.workers, lanes.now)
    states = []
    for lane in lanes.queues(by_queue, besides=controls):
        control = controls.get(lane.name) or Control(scope=ControlScope.QUEUE, name=lane.name)
        takers = tuple(worker for worker in living if lane.name in worker.queues)
        states.append(
            QueueState(lane, control, takers, next_start(control, tats.get(lane.name), lanes.now))
        )
    return states


def next_start(control: Control, tat: datetime | None, now: datetime) -> datetime | None:
    """Return when the rate of a control permits the next start; None if it does now."""
    rate = control.numbers.rate
    wait = 0.0 if rate is None else rate.wait(tat, now)
    return now + timedelta(seconds=wait) if wait > 0 else None
