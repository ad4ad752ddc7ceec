"""Failover between the hosts of a URL: their order, and whether a silent one was replaced.

A primary that hangs neither answers nor ends its connections. With one host, callers can only wait.
With several, another one may have become the primary: then statements in flight on the silent one
are aborted. A host that still accepts connections is only slow, and callers keep waiting.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pulsed.store.postgres.address import PostgresAddress

log = logging.getLogger("pulsed.store")

SILENT_AFTER = 2.0
"""Seconds without an answer after which a host is checked."""
CHECK_EVERY = 5.0
"""Least seconds between two checks of a host, however many statements wait."""
AVOID_FOR = 30.0
"""Seconds for which a replaced host is tried last."""


class Hosts:
    """The hosts of one address, shared by threads and event loops."""

    def __init__(
        self,
        address: PostgresAddress,
        accepts: Callable[[PostgresAddress], bool | None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``accepts`` connects to a host: True if it can, None if the host answers but refuses."""
        self.address = address
        self.each = address.alternatives()
        self.several = len(self.each) > 1
        """Whether there is more than one host."""
        self._accepts = accepts
        self._clock = clock
        self._checked_at = [-math.inf] * len(self.each)
        self._avoid_until = [-math.inf] * len(self.each)
        self.forget_inherited()

    def forget_inherited(self) -> None:
        """Reset the state in a forked child."""
        self._checking = threading.Lock()
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="pulsed-hosts")

    def in_order(self) -> list[int]:
        """Return the indexes of all hosts, those recently replaced last."""
        return sorted(range(len(self.each)), key=self._is_avoided)

    def preferred(self) -> PostgresAddress:
        """Return the address with its hosts in that order."""
        order = self.in_order()
        return self.address if order == sorted(order) else self.address.reordered(order)

    def connected(self, place: int) -> None:
        """Record that a host has accepted a connection."""
        self._avoid_until[place] = -math.inf

    def is_replaced(self, place: int) -> bool:
        """Whether a silent host accepts no connection while another does. Takes some seconds."""
        with self._checking:
            if self._clock() < self._checked_at[place] + CHECK_EVERY:
                return self._is_avoided(place)
            replacement = self._replacement(place)
            self._checked_at[place] = self._clock()
            if replacement is None:
                return False
            self._avoid_until[place] = self._clock() + AVOID_FOR
            log.warning(
                "PostgreSQL host %s does not answer, and %s does: what waits for the first is "
                "given up and tried again there",
                self.each[place].at,
                replacement.at,
            )
            return True

    def _replacement(self, place: int) -> PostgresAddress | None:
        if self._accepts(self.each[place]) is not False:
            return None
        others = [each for other, each in enumerate(self.each) if other != place]
        return next((each for each in others if self._accepts(each)), None)

    def _is_avoided(self, place: int) -> bool:
        return self._clock() < self._avoid_until[place]

    def close(self) -> None:
        """Release the thread; a later check starts another one."""
        threads, self.threads = self.threads, ThreadPoolExecutor(1, "pulsed-hosts")
        threads.shutdown(wait=False)
