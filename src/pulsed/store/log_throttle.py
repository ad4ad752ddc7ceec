"""Rate limit for repeated log lines: one per interval, with the number that were suppressed."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from pulsed.errors import TooManyConnections


class Throttle:
    """Passes one line, then suppresses lines for ``quiet`` seconds."""

    def __init__(self, quiet: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._clock = clock
        self._until = -math.inf
        self._kept_back = 0

    def add(self) -> int | None:
        """Return how many lines were suppressed since the last one; None: suppress this one."""
        if self._clock() < self._until:
            self._kept_back += 1
            return None
        kept_back, self._kept_back = self._kept_back, 0
        self._until = self._clock() + self._quiet
        return kept_back


def level_of(error: BaseException) -> int:
    """Return the log level for an error in a loop; the pools report a full server themselves."""
    return logging.DEBUG if isinstance(error, TooManyConnections) else logging.WARNING
