"""The loop around a tick, one pass of a background task.

No error ends the loop. A hint, a notification that there may be work, cuts its pause short.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from pulsed.errors import StorageError
from pulsed.store.log_throttle import level_of


class Alarm:
    """A pause that a hint cuts short; one task at a time pauses."""

    def __init__(self) -> None:
        self._is_rung = False
        self._paused: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """End the pause, or the next one if none is under way."""
        self._is_rung = True
        if self._paused is not None:
            _wake(self._paused)

    def reset(self) -> None:
        """Discard the hints so far."""
        self._is_rung = False

    async def sleep(self, seconds: float, *, debounce: float = 0.0) -> None:
        """Pause for ``seconds`` or until a hint; those within ``debounce`` seconds count as one.

        A worker's claim begins here. So this is a future and a timer, and not an Event inside of a
        timeout, which runs three times as much code between the hint and the claim.
        """
        deaf = min(seconds, debounce)
        await asyncio.sleep(deaf)
        if not self._is_rung:
            loop = asyncio.get_running_loop()
            self._paused = paused = loop.create_future()
            timer = loop.call_later(seconds - deaf, _wake, paused)
            try:
                await paused
            finally:
                timer.cancel()
                self._paused = None
        self._is_rung = False


def _wake(paused: asyncio.Future[None]) -> None:
    if not paused.done():
        paused.set_result(None)


async def forever(
    tick: Callable[[], Awaitable[float | None]],
    what: str,
    *,
    log: logging.Logger,
    after_failure: Callable[[int], float],
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    level: Callable[[Exception, int], int] = lambda error, _: level_of(error),
) -> None:
    """Call ``tick`` again and again, whatever it raises, with a pause after each.

    Args:
        tick: Returns the seconds until the next one; None ends the loop.
        what: Names the tick in the log line about its failure.
        log: The logger for that line.
        after_failure: Returns the pause after this many consecutive failures.
        sleep: How to pause.
        level: Returns the log level of the nth consecutive failure, from 1 on.
    """
    failures = 0
    while True:
        pause: float | None
        try:
            pause = await tick()
        except Exception as error:
            failures += 1
            pause = after_failure(failures)
            surprise = None if isinstance(error, StorageError) else error
            message_text = "%s failed (%s); again in %.3g s"
            log.log(level(error, failures), message_text, what, error, pause, exc_info=surprise)
        else:
            failures = 0
        if pause is None:
            return
        await sleep(pause)
