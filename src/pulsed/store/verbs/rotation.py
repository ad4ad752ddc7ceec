"""Whose turn it is: the keys of limits share the slots that a claim has to give.

A rotation is the memory of one process about one queue, for one set of topics. It remembers where
the next claim begins, so that keys take turns, and which keys had nothing to give a moment ago, so
that a claim does not lock and count them again. Nothing depends on it but speed and fairness: what
a claim may have is decided by the database, under the lock of the key.

A claim may run in the thread of a writer while runs end in an event loop. So what is remembered is
changed in place, and iterated over as a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

BLOCKED_FOR = 1.0
"""Seconds for which a key is skipped that had no slot to give, unless one of its jobs ends here."""

MOST_BLOCKED = 10_000
"""Keys that are remembered so."""

KEYS = 256
"""Keys that one step of a walk visits, each once for each of its priorities, of which there are
fewer than this."""

MOST_STEPS = 16
"""Steps of one claim. The next one begins where it stopped: at once, unless this one has reached
the last key, or keys of which none may start a job would be walked without a pause."""

KEY_SCAN_INTERVAL = 0.8
"""Seconds between two scans for jobs that lack their key."""

IDLE = 0.05
"""Seconds for which a queue without limited jobs stays known as one, under load."""


class Rotation:
    """Where the walk over the keys of a queue stands."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.after = ""
        """The walk begins behind this key."""
        self.most_in_use = 100
        """How many jobs of a key are counted: more than any limit that was seen allows."""
        self.scanned: dict[int, tuple[Any, Any]] = {}
        """How far each priority was scanned for jobs that lack their key."""
        self._was_first = False
        self._credit = 0
        self._blocked: dict[str, float] = {}
        self._freed: set[str] = set()
        """Keys that had a run end while a claim was deciding, perhaps by an older count."""
        self._permits: dict[str, float] = {}
        self._scanned_at = self._emptied_at = -KEY_SCAN_INTERVAL

    def begin(self) -> None:
        """Begin a walk: what ends from now on may not be in its counts."""
        self._freed.clear()

    def blocked(self) -> set[str]:
        """Return the keys to skip."""
        now = self.clock()
        for key, until in list(self._blocked.items()):
            if not now < until <= now + BLOCKED_FOR:
                self._blocked.pop(key, None)
        return set(self._blocked)

    def block(self, key: str, seconds: float = BLOCKED_FOR) -> None:
        """Skip a key for a while, unless one of its jobs has ended since the walk began."""
        if key in self._freed:
            return
        if len(self._blocked) >= MOST_BLOCKED:
            self._blocked.clear()
        self._blocked[key] = self.clock() + min(seconds, BLOCKED_FOR)

    def unblock(self, keys: Iterable[str]) -> None:
        """Visit keys again: one of their jobs has ended."""
        for key in keys:
            if len(self._freed) < MOST_BLOCKED:
                self._freed.add(key)
            self._blocked.pop(key, None)

    def await_permit(self, key: str, seconds: float) -> None:
        """Skip a key until its rate has a permit again."""
        self.block(key, seconds)
        if len(self._permits) >= MOST_BLOCKED:
            self._permits.clear()
        self._permits[key] = self.clock() + seconds

    def saw_all(self, keys: set[str]) -> None:
        """Await no permit for a key that has no job any more; these are all that have one."""
        for key in self._permits.keys() - keys:
            self._permits.pop(key, None)

    def next_permit(self) -> float | None:
        """Return the seconds until a key that waits for one has a permit."""
        now = self.clock()
        for key, at in list(self._permits.items()):
            if at <= now:
                self._permits.pop(key, None)
        return min(self._permits.values()) - now if self._permits else None

    def move(
        self, order: list[str], claimed: Mapping[str, int], weights: Mapping[str, int]
    ) -> None:
        """Begin the next walk behind the last key that had its turn.

        A key keeps its turn until it has had as many jobs as its weight: a claim may be for less.
        """
        had = [place for place, key in enumerate(order) if claimed.get(key)]
        if not had:
            return
        last = order[had[-1]]
        self._credit = (self._credit if len(had) == 1 else 0) + claimed[last]
        if self._credit >= weights.get(last, 1):
            self.after, self._credit = last, 0
        elif had[-1] > 0:
            self.after = order[had[-1] - 1]

    def scan_is_due(self) -> bool:
        """Whether to scan for jobs that lack their key, once per interval."""
        now = self.clock()
        if 0 <= now - self._scanned_at < KEY_SCAN_INTERVAL:
            return False
        self._scanned_at = now
        return True

    def found_keys(self, *, found: bool) -> None:
        """Note whether the queue has limited jobs at all."""
        self._emptied_at = -KEY_SCAN_INTERVAL if found else self.clock()

    def take_turn(self) -> bool:
        """Return whether a claim begins with limited jobs: every other one does.

        If there were none a moment ago, the jobs without a limit come first.
        """
        is_idle = 0 <= self.clock() - self._emptied_at < IDLE
        self._was_first = not self._was_first and not is_idle
        return self._was_first


def shares(most: Mapping[str, int], weights: Mapping[str, int], slots: int) -> dict[str, int]:
    """Divide slots among keys by their weights; none gets more than its ``most``.

    What a key cannot use goes to the others. In the order given, each gets at least one while there
    are any.
    """
    given = dict.fromkeys(most, 0)
    wanting = [key for key, number in most.items() if number > 0]
    while slots > 0 and wanting:
        total, pot = sum(weights.get(key, 1) for key in wanting), slots
        for key in wanting:
            part = max(1, pot * weights.get(key, 1) // total)
            part = min(part, most[key] - given[key], slots)
            given[key] += part
            slots -= part
        wanting = [key for key in wanting if given[key] < most[key]]
    return given
