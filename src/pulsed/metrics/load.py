"""What metrics say about the queues of a database: the last read, within bounds."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pulsed.engine.governed import NOTHING, Governed
from pulsed.engine.limits import LimitState
from pulsed.engine.load import LaneKey, Load, LoadReader, Reading
from pulsed.errors import AccessDenied, StorageError
from pulsed.metrics.counts import MOST_LANES, MOST_QUEUES, OTHER_LANE, Bounded
from pulsed.model.control import Control, ControlScope

log = logging.getLogger("pulsed.metrics")

READ_WITHIN = 2.0
"""Seconds that a scrape waits for the database."""
SHOWN_FOR = 60.0
"""Seconds for which numbers are shown while no newer ones can be read."""


@dataclass(frozen=True, slots=True)
class Loads:
    """The load of each queue and topic."""

    is_up: bool
    age: float | None = None
    """Seconds since it was read; None: it is too old, or may not be read."""
    lanes: Mapping[LaneKey, Load] = field(default_factory=dict)
    governed: Governed = NOTHING

    @property
    def by_queue(self) -> Mapping[str, int]:
        """The jobs of each queue that are due or run."""
        found: dict[str, int] = {}
        for (queue, _), load in self.lanes.items():
            found[queue] = found.get(queue, 0) + load.jobs
        return found

    def controls(self, scope: ControlScope) -> list[Control]:
        """Return controls that get labels: the paused ones first, and no more than fit."""
        found = sorted(self.governed.of(scope).values(), key=lambda each: not each.paused)
        return found[:MOST_QUEUES]

    @property
    def limits(self) -> Sequence[LimitState]:
        """The limits; the reader has bounded their number."""
        return self.governed.limits


class LoadMetrics:
    """Reads the load for scrapes. Never raises a storage error, and never waits for long."""

    def __init__(self, reader: LoadReader, lanes: Iterable[LaneKey] = ()) -> None:
        """Show these pairs of a queue and a topic from the start, at zero."""
        self._reader = reader
        self._latest: Reading | None = None
        self._shown: Bounded[LaneKey, LaneKey] = Bounded(MOST_LANES, OTHER_LANE, lambda: OTHER_LANE)
        self._is_denied = False
        for lane in lanes:
            self._label(lane)

    async def read(self, *, within: float = READ_WITHIN) -> Loads:
        """Return the load, or the last one that could be read."""
        try:
            self._latest, is_up = await self._reader.read(within=within), True
        except AccessDenied as error:
            if not self._is_denied:
                log.warning("no metrics of queues: %s", error)
            self._latest, self._is_denied, is_up = None, True, True
        except StorageError:
            is_up = False
        if (latest := self._latest) is None:
            return Loads(is_up)
        age = self._reader.clock() - latest.at
        if age >= SHOWN_FOR:
            return Loads(is_up)
        return Loads(is_up, age, self._labelled(latest), latest.governed)

    def _labelled(self, reading: Reading) -> Mapping[LaneKey, Load]:
        """Return the load by its labels. What was seen once is shown as zero when it is empty."""
        found = dict.fromkeys(self._shown, Load())
        for lane, load in reading.lanes.items():
            label = self._label(lane)
            found[label] = found.get(label, Load()).plus(load)
        return found

    def _label(self, lane: LaneKey) -> LaneKey:
        if lane not in self._shown and len(self._shown) < MOST_LANES:
            self._shown[lane] = lane
        return self._shown[lane]
