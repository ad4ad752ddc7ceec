"""The job processes of a worker: started when needed, reused, ended when idle for long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from pulsed.engine.error_text import type_name
from pulsed.engine.worker.processes.child import ChildProcess
from pulsed.engine.worker.processes.messages import Origin, RunOver
from pulsed.engine.worker.run import Run, StopReason, outcome_of_stop
from pulsed.errors import ProcessDied
from pulsed.handler import clean_text
from pulsed.model.outcome import Failed, Outcome
from pulsed.store.base import Store

log = logging.getLogger("pulsed.worker")

IDLE = 60.0
"""Seconds after which a process without a job is ended."""

OUT_OF_MEMORY = type_name(MemoryError)
"""A process that met its limit is replaced: what it keeps would count in its next run."""

LAST_SECONDS = 2.0
"""Seconds that processes get at the end of their worker to close what is open."""


class ProcessOptions(NamedTuple):
    """How a worker uses job processes."""

    jobs: int = 100
    """Runs after which a process is replaced."""
    grace: float = 5.0
    """Seconds between telling a run to stop and killing its process."""


class ProcessPool:
    """Runs jobs in processes, as many at a time as it is given. For the event loop's thread."""

    def __init__(self, origin: Origin, store: Store, options: ProcessOptions) -> None:
        self._origin = origin
        self._store = store
        self._options = options
        self._children: set[ChildProcess] = set()
        self._idle: dict[ChildProcess, asyncio.TimerHandle] = {}
        """Those without a job, the last used at the end, and when each is ended."""
        self._running: dict[Run, ChildProcess] = {}

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        return [child.pid for child in self._children]

    async def run(self, run: Run, on_begin: Callable[[Run], None]) -> Outcome | None:
        """Run a job in a process; to stop it, cancel this call. Never raises."""
        try:
            child = await self._take()
        except asyncio.CancelledError:
            return outcome_of_stop(run)
        except (ProcessDied, OSError) as error:
            return _failed(run, error)
        self._running[run] = child
        try:
            return await self._run_in(child, run, on_begin)
        finally:
            del self._running[run]
            child.end()
            self._give_back(child, is_spent=run.error_type == OUT_OF_MEMORY)

    def kill(self, run: Run) -> None:
        """Kill the process of a run, if it has one."""
        if (child := self._running.get(run)) is not None:
            child.kill()

    async def close(self) -> None:
        """End all processes: kill those that run a job, let the others close what is open."""
        children = list(self._children)
        for child in self._children.difference(self._idle):
            child.kill()
        for child in list(self._idle):
            self._let_go(child)
        ending = [asyncio.create_task(child.died.wait()) for child in children]
        if ending:
            await asyncio.wait(ending, timeout=LAST_SECONDS)
        for task in ending:
            task.cancel()
        for child in self._children:
            child.kill()

    # -- a run --------------------------------------------------------------------------------

    async def _run_in(
        self, child: ChildProcess, run: Run, on_begin: Callable[[Run], None]
    ) -> Outcome | None:
        if run.stop is not None:
            return outcome_of_stop(run)
        run.began = time.monotonic()
        answer = child.begin(run, run.handler.memory_limit)
        on_begin(run)
        try:
            await asyncio.wait([answer])
        except asyncio.CancelledError:
            await self._stopped(child, run, answer)
        return _outcome(run, answer)

    async def _stopped(
        self, child: ChildProcess, run: Run, answer: asyncio.Future[RunOver]
    ) -> None:
        """Wait until a run that is to stop has ended; after a grace period, kill its process."""
        if run.stop is not None:
            child.stop(run.stop)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([answer], timeout=self._options.grace)
        if not answer.done():
            log.warning("%s does not stop; killing its process", run, extra=run.log_fields())
            child.kill()
            while not answer.done():  # not long; a job is reported when its process is dead
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([answer])

    # -- processes ----------------------------------------------------------------------------

    async def _take(self) -> ChildProcess:
        if self._idle:
            child = next(reversed(self._idle))  # the last one used, so that others become idle
            self._idle.pop(child).cancel()
            return child
        starting = asyncio.create_task(self._start())
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._keep_for_later)
            raise

    async def _start(self) -> ChildProcess:
        child = ChildProcess(self._store, self._died)
        self._children.add(child)
        await child.load(self._origin)
        return child

    def _keep_for_later(self, starting: asyncio.Task[ChildProcess]) -> None:
        if not starting.cancelled() and starting.exception() is None:
            self._give_back(starting.result())

    def _give_back(self, child: ChildProcess, *, is_spent: bool = False) -> None:
        if child.is_killed or child.died.is_set():
            return
        if is_spent or child.jobs >= self._options.jobs:
            child.leave()
            return
        loop = asyncio.get_running_loop()
        self._idle[child] = loop.call_later(IDLE, self._let_go, child)

    def _let_go(self, child: ChildProcess) -> None:
        self._idle.pop(child).cancel()
        child.leave()

    def _died(self, child: ChildProcess) -> None:
        self._children.discard(child)
        if (timer := self._idle.pop(child, None)) is not None:
            timer.cancel()


def _outcome(run: Run, answer: asyncio.Future[RunOver]) -> Outcome | None:
    """Return the outcome of a run from what its process has said, or from its death."""
    error = answer.exception()
    if error is not None:
        return outcome_of_stop(run) if run.stop is not None else _failed(run, error)
    ended = answer.result()
    run.error_type, run.error_line = ended.error_type, ended.line
    if run.stop in (StopReason.LOST, StopReason.TIMED_OUT):
        return outcome_of_stop(run)  # the end and the order to stop have crossed
    return ended.outcome


def _failed(run: Run, error: BaseException) -> Failed:
    run.error_type = type_name(type(error))
    return Failed(clean_text(str(error)))
