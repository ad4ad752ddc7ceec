"""Limited jobs of a store: whose turn it is to be claimed, and which keys its runs have in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from pulsed.store.verbs.rotation import Rotation

MOST_ROTATIONS = 1_000
"""Pairs of queue and topic set for which one process keeps a rotation."""

MOST_HELD = 100_000
"""Runs whose keys are remembered; a key that is not is visited again after a second."""


class Held(NamedTuple):
    """The key of a run that was claimed here, and its queue."""

    key: str
    queue: str


class LimitedRuns:
    """What a store remembers about limits. All of it may be lost without harm."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rotations: dict[tuple[str, str], Rotation] = {}
        self._held: dict[UUID, Held] = {}

    def rotation(self, queue: str, topics: str) -> Rotation:
        """Return where the walk over the keys of a queue stands, for one set of topics."""
        known = self._rotations.get((queue, topics))
        if known is None:
            if len(self._rotations) >= MOST_ROTATIONS:
                self._rotations.clear()
            known = self._rotations.setdefault((queue, topics), Rotation(self._clock))
        return known

    def claimed(self, queue: str, keys: dict[UUID, str]) -> None:
        """Remember the keys of new runs."""
        if len(self._held) + len(keys) > MOST_HELD:
            self._held.clear()
        self._held.update((job_id, Held(key, queue)) for job_id, key in keys.items())

    def ended(self, jobs: Iterable[UUID]) -> set[str]:
        """Note that runs have ended; returns the queues in which others may start now."""
        if not self._held:
            return set()
        ended = [held for job_id in jobs if (held := self._held.pop(job_id, None))]
        keys = {held.key for held in ended}
        for rotation in list(self._rotations.values()):
            rotation.unblock(keys)
        return {held.queue for held in ended}
