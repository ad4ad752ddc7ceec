"""The runs of a worker: starts them, stops them, and collects their outcomes.

Claimed jobs are started one after the other in one task. The first handler that suspends keeps that
task for itself, and a new task starts the rest. So a handler which never suspends costs no task,
and one which does can be cancelled without touching its siblings.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from pulsed.engine.worker.processes.pool import ProcessPool
from pulsed.engine.worker.run import (
    Run,
    StopReason,
    Suspended,
    call,
    finish,
    outcome_of_stop,
    start,
    written,
)
from pulsed.engine.worker.threads import HandlerThreads
from pulsed.model.job import Lease
from pulsed.model.outcome import Outcome

log = logging.getLogger("pulsed.worker")

UNSTOPPABLE_AFTER = 5.0
"""Seconds an async handler gets to obey its cancellation before its slot counts as stuck."""

SLICE = 0.005
"""Seconds of handlers that never suspend, after which the loop's other tasks get their turn."""


SMALLEST_TURN = 100
"""Runs in a turn, unless half of the slots are more. Between two turns the claimer claims for the
free slots, so the database works while Python does; but small claims are expensive."""


class Runner:
    """Owns all runs from start to end. For use in the event loop's thread only."""

    def __init__(
        self,
        slots: int,
        *,
        on_outcome: Callable[[Run, Outcome | None], None],
        on_free_slot: Callable[[], None],
        on_stuck: Callable[[], None],
        threads: HandlerThreads | None = None,
    ) -> None:
        self._turn = max(SMALLEST_TURN, slots // 2)
        self._on_outcome = on_outcome
        self._on_free_slot = on_free_slot
        self._on_stuck = on_stuck
        self._threads = threads or HandlerThreads()
        self._idle = asyncio.Event()
        self._ready: deque[Run] = deque()
        self.processes: ProcessPool | None = None
        """Runs the handlers with ``executor="process"``; the worker sets it if there are any."""
        self.runs: set[Run] = set()
        self.in_processes: set[Run] = set()
        """Those of the runs that have, or wait for, a process of their own."""
        self.stuck: set[Run] = set()
        """Runs whose handler does not stop: reported, but their slot stays taken."""

    def start(self, runs: Iterable[Run]) -> None:
        """Start runs: on the loop or, if neither handler nor surroundings are async, in threads."""
        plain = []
        now = asyncio.get_running_loop().time()
        for run in runs:
            self.runs.add(run)
            if run.handler.in_process and self.processes is not None:
                self._start_in_process(run, self.processes)
            elif run.starts_on_loop:
                self._ready.append(run)
            else:
                plain.append(functools.partial(self._call, run))
                self._arm(run, now)
        self._begin_ready()
        if plain:
            self._threads.put(plain)

    def by_lease(self) -> Mapping[Lease, Run]:
        """Return the runs by their leases."""
        return {run.lease: run for run in self.runs}

    async def until_idle(self) -> None:
        """Wait until all runs have ended but the stuck ones."""
        while len(self.runs) > len(self.stuck):
            self._idle.clear()
            await self._idle.wait()

    def stop_run(self, run: Run, why: StopReason) -> None:
        """Stop a run; if its handler does not obey, its process is killed, or its slot is stuck."""
        run.tell_to_stop(why)
        if run.timer is not None:
            run.timer.cancel()
        if run in self.in_processes:
            if why is StopReason.LOST:  # no grace: another worker may run the job by now
                self.give_up_on(run)
        elif run.handler.is_async:
            run.timer = asyncio.get_running_loop().call_later(
                UNSTOPPABLE_AFTER, self.give_up_on, run
            )
        else:
            self.give_up_on(run)

    def give_up_on(self, run: Run) -> None:
        """Report a run whose handler cannot be stopped; its slot stays taken until it returns.

        A process can be stopped: it is killed, and reported when it has ended.
        """
        if self.processes is not None and run in self.in_processes:
            self.processes.kill(run)
            return
        self._report(run, outcome_of_stop(run))
        if run in self.runs and run not in self.stuck:
            self.stuck.add(run)
            self._idle.set()
            log.error("%s does not stop; its slot is stuck", run, extra=run.log_fields())
            self._on_stuck()

    async def close(self) -> None:
        """End processes, release threads, and the tasks that ``asyncio.run`` would wait for."""
        if self.processes is not None:
            await self.processes.close()
        self._threads.close()
        for run in self.stuck:
            if run.task is not None:
                run.task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001
                asyncio._unregister_task(run.task)  # noqa: SLF001 - documented for such uses

    # -- plain handlers ---------------------------------------------------------------------------

    def _call(self, run: Run) -> Callable[[], None]:
        return functools.partial(self._end, run, call(run))

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread of the handlers, and return what it returns."""
        ended: asyncio.Future[Callable[[], Any]] = asyncio.get_running_loop().create_future()

        def in_thread() -> Callable[[], None]:
            try:
                value = function()
            except BaseException as error:  # noqa: BLE001 - the run's to deal with
                return functools.partial(_resolve, ended, functools.partial(_raise, error))
            return functools.partial(_resolve, ended, lambda: value)

        self._threads.put([in_thread])
        return (await ended)()

    # -- processes --------------------------------------------------------------------------------

    def _start_in_process(self, run: Run, processes: ProcessPool) -> None:
        self.in_processes.add(run)
        # Not create_task, as below.
        run.task = asyncio.Task(self._in_process(run, processes), loop=asyncio.get_running_loop())

    async def _in_process(self, run: Run, processes: ProcessPool) -> None:
        outcome = await processes.run(run, self._begun_in_process)
        self._end(run, await written(run, outcome))

    def _begun_in_process(self, run: Run) -> None:
        self._arm(run, asyncio.get_running_loop().time())

    # -- async handlers ---------------------------------------------------------------------------

    def _begin_ready(self) -> None:
        if self._ready:
            # Not create_task: an eager factory would start it at once, inside the current task.
            asyncio.Task(self._begin(), loop=asyncio.get_running_loop())

    async def _begin(self) -> None:
        """Start ready runs, until one of them suspends and keeps this task."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        now = loop.time()
        until, left = now + SLICE, self._turn
        has_freed_slots = False
        while self._ready:
            run = self._ready.popleft()
            begun = start(run, self._in_thread)
            if isinstance(begun, Suspended):
                if run.handler.is_async:  # otherwise it waits for a thread, which cannot be stopped
                    run.task = run.context._task = task  # noqa: SLF001 - the context is its own
                self._arm(run, now)
                self._begin_ready()
                self._end(run, await finish(run, begun))
                return
            self._discard(run)
            if not has_freed_slots:  # said once: what waits for slots goes on after the turn
                has_freed_slots = True
                self._on_free_slot()
            self._pass_on(run, begun)
            now = loop.time()
            left -= 1
            if left == 0 or now > until or task.cancelling():
                # The turn is over, or a handler cancelled the task that it took for its own: a new
                # task starts the rest.
                self._begin_ready()
                return

    def _arm(self, run: Run, began: float) -> None:
        """Start the timer of a run that has a timeout."""
        timeout = run.assignment.timeout
        if timeout is not None:
            due = began + timeout
            run.timer = asyncio.get_running_loop().call_at(due, self._time_out, run)

    def _time_out(self, run: Run) -> None:
        timeout = run.assignment.timeout
        log.warning("%s timed out after %g s", run, timeout, extra=run.log_fields())
        self.stop_run(run, StopReason.TIMED_OUT)

    # -- ends -------------------------------------------------------------------------------------

    def _end(self, run: Run, outcome: Outcome | None) -> None:
        self._discard(run)
        # First the slot, then the report: the loop that is woken first goes first. The worker
        # waits for the next claim, so that should be in flight while reports are written.
        self._on_free_slot()
        self._pass_on(run, outcome)

    def _discard(self, run: Run) -> None:
        self.runs.discard(run)
        self.in_processes.discard(run)
        self.stuck.discard(run)

    def _pass_on(self, run: Run, outcome: Outcome | None) -> None:
        try:
            self._report(run, outcome)
        except Exception:  # the runs queued behind this one must start
            log.exception("%s: its end could not be noted; its lease will run out", run)
        self._idle.set()

    def _report(self, run: Run, outcome: Outcome | None) -> None:
        """Pass a run's outcome on, once."""
        if run.timer is not None:
            run.timer.cancel()
        if not run.reported:
            run.reported = True
            run.ended = time.monotonic()
            self._on_outcome(run, outcome)


def _resolve(future: asyncio.Future[Callable[[], Any]], result: Callable[[], Any]) -> None:
    """Pass on what a thread's call returned or raised, unless its task was ended meanwhile."""
    if not future.done():
        future.set_result(result)


def _raise(error: BaseException) -> NoReturn:
    raise error
