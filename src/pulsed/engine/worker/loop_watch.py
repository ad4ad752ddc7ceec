"""Detects a handler that blocks the event loop, and logs its topic, file and line.

A thread pings the loop every second while jobs run. Heartbeats do not depend on the loop, so a
blocked one costs no lease; but no other async handler goes on, and nothing is claimed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from pulsed.handler import Registry
from pulsed.handler.function import code_of

log = logging.getLogger("pulsed.worker")

PING_EVERY = 1.0
"""Seconds."""
BLOCKED_AFTER = 2.0
"""Seconds without an answer after which the loop counts as blocked."""
REPEAT_AFTER = 30.0
"""Seconds until the same blockage is logged again."""


class LoopWatch:
    """Pings an event loop from a thread. Made and started in the loop's own thread."""

    def __init__(self, registry: Registry, is_busy: Callable[[], bool]) -> None:
        self._handlers = {code_of(handler.fn): handler.topic for handler in registry}
        self._is_busy = is_busy
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._pinged_at: float | None = None
        """When the ping in flight was sent; None if there is none."""
        self._logged_at: float | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulsed-loop-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(PING_EVERY):
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        """Log a ping that has been unanswered for too long; send one if none is in flight."""
        if self._pinged_at is None:
            if self._is_busy():
                self._pinged_at = now
                self._loop.call_soon_threadsafe(self._answered)
            return
        blocked_for = now - self._pinged_at
        last = self._logged_at
        if blocked_for >= BLOCKED_AFTER and (last is None or now - last >= REPEAT_AFTER):
            self._logged_at = now
            log.warning(
                "the event loop has been blocked for %.0f s%s; no other async job can run. Declare "
                "such a handler with a plain `def`, or await asyncio.to_thread(…)",
                blocked_for,
                self._blocked_by(),
            )

    def _answered(self) -> None:
        if self._logged_at is not None and self._pinged_at is not None:
            blocked_for = time.monotonic() - self._pinged_at
            log.warning("the event loop is free again after %.1f s", blocked_for)
        self._logged_at = self._pinged_at = None

    def _blocked_by(self) -> str:
        """Return the handler on the loop's stack, its line, and the line that blocks."""
        innermost = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the documented way
        frame = innermost
        stack: list[FrameType] = []
        while frame is not None:
            stack.append(frame)
            if (topic := self._handlers.get(frame.f_code)) is not None:
                file = frame.f_code.co_filename
                own = next(each for each in stack if each.f_code.co_filename == file)
                inside = "" if own is stack[0] else f", in {_line(stack[0])}"
                return f" by {topic} ({_line(own)}{inside})"
            frame = frame.f_back
        return ""


def _line(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
