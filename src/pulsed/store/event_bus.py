"""Delivers events to those who subscribe to them.

A store has one bus, and so has everything that works with the store: its app, its workers. Who
publishes asks ``wanted`` first, so an event that nobody subscribes to is never made. Delivery is a
plain call in the publisher's thread, a batch at a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

from pulsed.model.events import KINDS, Published
from pulsed.store.log_throttle import Throttle

log = logging.getLogger("pulsed.events")

QUIET = 60.0
"""Seconds between two log lines about one subscriber's errors."""

Subscriber: TypeAlias = Callable[[Sequence[Any]], object]
"""Gets events in batches, in any thread. It must be quick, and thread-safe."""


class _Subscription(NamedTuple):
    subscriber: Subscriber
    kinds: frozenset[type[Published]]
    errors: Throttle


class Events:
    """A bus for events. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscriptions: tuple[_Subscription, ...] = ()
        self.wanted: frozenset[type[Published]] = frozenset()
        """The kinds that have a subscriber; only those need to be published."""

    def subscribe(
        self, subscriber: Subscriber, kinds: Collection[type[Published]] = KINDS
    ) -> Callable[[], None]:
        """Call ``subscriber`` with events of these kinds; returns a function that ends this.

        An error of a subscriber is logged, and reaches neither the publisher nor other subscribers.
        """
        made = _Subscription(subscriber, frozenset(kinds), Throttle(QUIET))
        self._change(lambda present: (*present, made))
        return lambda: self._change(lambda present: tuple(s for s in present if s is not made))

    def _change(
        self, change: Callable[[tuple[_Subscription, ...]], tuple[_Subscription, ...]]
    ) -> None:
        with self._lock:
            self._subscriptions = change(self._subscriptions)
            self.wanted = frozenset().union(*(each.kinds for each in self._subscriptions))

    def publish(self, events: Sequence[Published]) -> None:
        """Deliver events to their subscribers. Never raises an ``Exception``."""
        if not events:
            return
        for subscriber, kinds, errors in self._subscriptions:
            if len(events) == 1:
                own = events if type(events[0]) in kinds else ()
            else:
                own = [each for each in events if type(each) in kinds]
            if not own:
                continue
            try:
                subscriber(own)
            except Exception:
                if (kept_back := errors.add()) is not None:
                    more = f" ({kept_back:,} more errors since the last time)" if kept_back else ""
                    log.exception("a subscriber of events failed%s: %r", more, subscriber)
