"""Log lines that would come by the hundred: one now and then, with the number of the others."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from pulsed.errors import TooManyConnections


class Throttle:
    """Lets one line through, and then none for ``quiet`` seconds."""

    def __init__(self, quiet: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._clock = clock
        self._until = -math.inf
        self._kept_back = 0

    def add(self) -> int | None:
        """Return how many were kept back since the last line; None: keep this one back as well."""
        if self._clock() < self._until:
            self._kept_back += 1
            return None
        kept_back, self._kept_back = self._kept_back, 0
        self._until = self._clock() + self._quiet
        return kept_back


def level_of(error: BaseException) -> int:
    """Return how loudly a loop reports an error; a full server is reported where it refuses."""
    return logging.DEBUG if isinstance(error, TooManyConnections) else logging.WARNING
