"""The end of a worker: running jobs finish, or are handed back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from typing import Any

from pulsed.engine.worker import runs as runner
from pulsed.engine.worker.run import Run, StopReason
from pulsed.engine.worker.runs import Runner
from pulsed.engine.worker.settler import Settler
from pulsed.wording import counted, format_duration

log = logging.getLogger("pulsed.worker")

LOG_EVERY = 5.0
"""Seconds between two log lines about a drain in progress."""

LAST_WRITES = 5.0
"""Seconds that each of the last writes may take: a claim in flight, the last reports, and the
removal of the worker's presence."""


class Drain:
    """Waits for what a worker has begun, up to a time limit or until ``aborted``.

    ``on_abort`` is called when it stops waiting.
    """

    def __init__(
        self,
        runs: Runner,
        settler: Settler,
        aborted: asyncio.Event,
        limit: float | None,
        on_abort: Callable[[], None],
    ) -> None:
        self._runner = runs
        self._settler = settler
        self._aborted = aborted
        self._limit = limit
        self._on_abort = on_abort

    async def finish_claim(self, claiming: asyncio.Task[None]) -> None:
        """Let a claim in flight finish, since its jobs are leased to this worker; not for ever."""
        async with _cancelled_at_exit(self._aborted.wait()) as aborted:
            await self._first_of(claiming, aborted)
        if not claiming.done():
            self._on_abort()
            # Wait briefly even now: jobs that it has leased would wait for their leases to expire.
            await asyncio.wait([claiming], timeout=LAST_WRITES)
            await end(claiming)

    async def finish_runs(self) -> None:
        """Wait for running jobs while heartbeats go on; hand back those that may not finish."""
        began, running = time.monotonic(), _running(self._runner.runs)
        if running:
            log.info("draining %s", running)
        async with _cancelled_at_exit(self._finished()) as finished:
            async with (
                _cancelled_at_exit(self._aborted.wait()) as aborted,
                _cancelled_at_exit(self._log_progress()),
            ):
                await self._first_of(finished, aborted)
            if not finished.done():
                self._on_abort()
                await self._abort_runs()
                # The leases of jobs that are not handed back by then expire.
                await asyncio.wait([finished], timeout=LAST_WRITES)
            elif running:
                took = format_duration(time.monotonic() - began)
                log.info("drained in %s: every job has ended", took)

    async def _first_of(self, *tasks: asyncio.Task[Any]) -> None:
        await asyncio.wait(tasks, timeout=self._limit, return_when=asyncio.FIRST_COMPLETED)

    async def _finished(self) -> None:
        await self._runner.until_idle()
        await self._settler.flushed()

    async def _log_progress(self) -> None:
        while True:
            await asyncio.sleep(LOG_EVERY)
            log.info("still draining %s", _running(self._runner.runs) or "what is not stored yet")

    async def _abort_runs(self) -> None:
        """Stop all runs and hand their jobs back, even if a handler does not stop."""
        runs, stuck = self._runner.runs, self._runner.stuck
        log.warning("handing back %s", _running(runs - stuck) or "no job: all that run are stuck")
        for run in list(runs):
            run.tell_to_stop(StopReason.ABORTED)
        async with _cancelled_at_exit(self._runner.until_idle()) as idle:
            await asyncio.wait([idle], timeout=runner.UNSTOPPABLE_AFTER)
        for run in list(runs):
            self._runner.give_up_on(run)


def _running(runs: Collection[Run]) -> str:
    """Return the running jobs by topic, for a log line; empty if there are none."""
    counts = Counter(run.assignment.topic for run in runs)
    if not counts:
        return ""
    alone = len(counts) == 1
    names = [topic if alone else f"{number} {topic}" for topic, number in counts.most_common()]
    more = ", …" if len(names) > 5 else ""
    return f"{counted(len(runs), 'running job')} ({', '.join(names[:5])}{more})"


@contextlib.asynccontextmanager
async def _cancelled_at_exit(
    coroutine: Coroutine[Any, Any, Any],
) -> AsyncIterator[asyncio.Task[Any]]:
    """Run ``coroutine`` in a task beside the block, and cancel it at the end."""
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they end: a driver that is connecting may swallow a cancellation."""
    for _ in range(5):
        for task in tasks:
            task.cancel()
        _, pending = await asyncio.wait(tasks, timeout=1)
        if not pending:
            return
