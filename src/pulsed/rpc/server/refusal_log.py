"""The calls that a server refused: all counted, and logged at a limited rate."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

import grpc

from pulsed.rpc.server.access import Caller

log = logging.getLogger("pulsed.server")

LOGGED = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
EVERY = 10.0
"""Seconds between two log lines about the same caller."""
MOST_KNOWN = 1_000
"""Callers that are tracked one by one; all others count as one."""
OTHERS = "others"


class RefusalLog:
    """Counts refused calls, and logs them at a limited rate for each caller."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[str, float] = {}
        self._untold: Counter[str] = Counter()
        self.counts: Counter[grpc.StatusCode] = Counter()

    @property
    def total(self) -> int:
        """How many calls were refused."""
        return sum(self.counts.values())

    def note(
        self, code: grpc.StatusCode, text: str, method: str, caller: Caller | None, peer: str
    ) -> None:
        """Count a refused call; log it unless this caller was logged within ``EVERY`` seconds."""
        if code not in LOGGED:
            return
        self.counts[code] += 1
        who = self._known(peer.rpartition(":")[0] if caller is None else caller.name)
        now = self._clock()
        if now - self._told.get(who, float("-inf")) < EVERY:
            self._untold[who] += 1
            return
        self._told[who] = now
        more = self._untold.pop(who, 0)
        before = f", and {more:,} more since the last such line" if more else ""
        log.warning("refused %s of %s (%s): %s%s", method, who, code.name, text, before)

    def _known(self, who: str) -> str:
        if who in self._told or len(self._told) < MOST_KNOWN:
            return who
        return OTHERS
