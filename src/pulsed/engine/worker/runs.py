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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from pulsed.engine.worker import pace
from pulsed.engine.worker.pace import Pace
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
from pulsed.model.outcome import Outcome, Released

log = logging.getLogger("pulsed.worker")

UNSTOPPABLE_AFTER = 5.0
"""Seconds an async handler gets to obey its cancellation before its slot counts as stuck."""

SLICE = 0.005
"""Seconds of handlers that never suspend, after which the loop's other tasks get their turn."""

LONGEST_TURN = 0.02
"""Seconds of such a turn that are never due to other work on a busy machine."""

SMALLEST_TURN = 100
"""Runs in a turn, unless half of the slots are more. Between two turns the claimer claims for the
free slots, so the database works while Python does; but small claims are expensive."""

QUICK_RUNS = 100
"""Runs in a row that have to end at once, or as many as there are slots, before a claim ahead."""

AHEAD_WITHIN = 0.02
"""Seconds of work to claim ahead: as many jobs as run in that time at the pace of the last turn."""

MOST_AHEAD = 1000
"""Jobs claimed ahead at most, however quick they are."""

CLAIM_AHEAD = 500
"""Jobs in a claim ahead, unless there are more slots: a claim of 100 costs the worker and the
database a third more for each job."""

AHEAD_FOR = 0.1
"""Seconds that jobs claimed ahead wait for their slots before they are handed back."""

CLOCK_STEP = 1e-6
"""Seconds that a turn takes at least: some clocks do not advance within a short one."""


class Runner:
    """Owns all runs from start to end. For use in the event loop's thread only."""

    def __init__(
        self,
        slots: int,
        *,
        on_ended: Callable[[Sequence[Run]], None],
        on_free_slot: Callable[[], None],
        on_stuck: Callable[[], None],
        threads: HandlerThreads | None = None,
    ) -> None:
        self._slots = slots
        self._turn = max(SMALLEST_TURN, slots // 2)
        self._quick = 0
        """Runs in a row that ended without suspending, in turns that were not too long."""
        self._ahead = 0
        """Jobs to claim ahead while handlers are quick."""
        self._was_late = False
        """Whether the last turn was too long, which counts only if it was not the first."""
        self._pace = Pace()
        self._is_beginning = False
        """Whether a task that starts ready runs is about to."""
        self._handing_back: asyncio.TimerHandle | None = None
        self._on_ended = on_ended
        self._on_free_slot = on_free_slot
        self._on_stuck = on_stuck
        self._threads = threads or HandlerThreads()
        self._idle = asyncio.Event()
        self._ready: deque[Run] = deque()
        self._ended_in_threads: list[Run] = []
        """Runs whose ends are noted in the loop's next turn, together."""
        self.processes: ProcessPool | None = None
        """Runs the handlers with ``executor="process"``; the worker sets it if there are any."""
        self.runs: set[Run] = set()
        self.in_processes: set[Run] = set()
        """Those of the runs that have, or wait for, a process of their own."""
        self.stuck: set[Run] = set()
        """Runs whose handler does not stop: reported, but their slot stays taken."""

    def start(self, runs: Sequence[Run]) -> None:
        """Start runs: on the loop or, if neither handler nor surroundings are async, in threads."""
        free = self._slots - self._started
        plain: list[Run] = []
        self.runs.update(runs)
        for run in runs:
            if self.processes is not None and run.handler.in_process:
                self._start_in_process(run, self.processes)
            elif run.starts_on_loop or len(plain) >= free:
                self._ready.append(run)
            else:
                plain.append(run)
        self._begin_ready()
        if plain:
            self._start_in_threads(plain)
        self._see_to_surplus()

    def room(self, unstarted: int = 0) -> int:
        """Return for how many more jobs there is room, besides ``unstarted`` ones.

        While handlers end at once, there is room for more than the free slots: the next claim is in
        flight while the jobs of the last one run. It is a large one, or none.
        """
        here = len(self.runs) - len(self.in_processes) + unstarted
        is_quick = self._quick >= max(QUICK_RUNS, self._slots) and self.processes is None
        if not is_quick:
            return self._slots - here
        free = self._slots - (self._started - self._pace.running)
        ahead = self._ahead if free > 0 else 0
        batch = min(max(CLAIM_AHEAD, self._slots), free + ahead)
        room = min(self._slots + ahead - here, batch)
        return room if 2 * room >= batch else 0

    @property
    def in_use(self) -> int:
        """How many slots and processes have a run."""
        return len(self.runs) - self._surplus

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
        run.outcome = outcome_of_stop(run)
        self._report([run])
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
        if self._handing_back is not None:
            self._handing_back.cancel()
        for run in self.stuck:
            if run.task is not None:
                run.task._log_destroy_pending = False  # type: ignore[attr-defined] # noqa: SLF001
                asyncio._unregister_task(run.task)  # noqa: SLF001 - documented for such uses

    # -- jobs claimed ahead of their slots --------------------------------------------------------

    @property
    def _here(self) -> int:
        """How many runs are not in processes."""
        return len(self.runs) - len(self.in_processes)

    @property
    def _started(self) -> int:
        """How many of them have started, and so have a slot."""
        return len(self.runs) - len(self.in_processes) - len(self._ready)

    @property
    def _surplus(self) -> int:
        """How many of them have no slot."""
        return max(0, self._here - self._slots)

    def _was_slow(self) -> None:
        """Claim no more ahead: a handler suspended, or takes its time."""
        self._quick = 0

    def _see_to_surplus(self) -> None:
        """Hand back what has no slot, unless slots become free soon."""
        if len(self.runs) <= self._slots:
            return
        if self._surplus and self._ready and self._handing_back is None:
            loop = asyncio.get_running_loop()
            self._handing_back = loop.call_later(AHEAD_FOR, self._hand_back, self._ready[-1])

    def _hand_back(self, last: Run) -> None:
        """Hand back what has no slot if ``last``, which was the last one ready, has none yet."""
        self._handing_back = None
        if self._started < self._slots or last not in self._ready:
            self._see_to_surplus()  # what has no slot now gets one, or has not waited for long
            return
        self._quick = 0
        for _ in range(min(self._surplus, len(self._ready))):
            run = self._ready.pop()
            run.outcome = Released() if run.stop is None else outcome_of_stop(run)
            self._end([run])

    # -- plain handlers ---------------------------------------------------------------------------

    def _start_in_threads(self, runs: Iterable[Run]) -> None:
        now = time.monotonic()
        calls = []
        for run in runs:
            self._arm(run, now)
            calls.append(functools.partial(self._call, run))
        self._pace.begin(len(calls), now)
        self._threads.put(calls)

    def _call(self, run: Run) -> Callable[[], None]:
        outcome = call(run)
        return functools.partial(self._end_in_thread, run, outcome)

    def _end_in_thread(self, run: Run, outcome: Outcome | None) -> None:
        """End a run with all others whose ends the loop is told of in the same turn."""
        if not self._ended_in_threads:
            asyncio.get_running_loop().call_soon(self._end_those_in_threads)
        run.outcome = outcome
        self._ended_in_threads.append(run)

    def _end_those_in_threads(self) -> None:
        runs, self._ended_in_threads = self._ended_in_threads, []
        timed = self._pace.end(time.monotonic(), len(runs))
        if timed is not None:
            self._note_pace(*timed)
            if timed.is_quick:
                self._quick += pace.RUNS
            else:
                self._was_slow()
        self._end(runs)

    def _next_plain(self) -> list[Run]:
        """Take the plain runs from the head of the ready ones, as many as have slots."""
        runs = []
        while self._ready and self._started < self._slots and not self._ready[0].starts_on_loop:
            runs.append(self._ready.popleft())
        return runs

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
        run.outcome = await written(run, outcome)
        self._end([run])

    def _begun_in_process(self, run: Run) -> None:
        self._arm(run, time.monotonic())

    # -- async handlers ---------------------------------------------------------------------------

    def _begin_ready(self) -> None:
        """Start ready runs that have slots: plain functions now, and the others in a task."""
        if self._ready and not self._ready[0].starts_on_loop:
            self._start_in_threads(self._next_plain())  # they were claimed ahead
        if self._ready and not self._is_beginning and self._started < self._slots:
            self._is_beginning = True
            # Not create_task: an eager factory would start it at once, inside the current task.
            asyncio.Task(self._begin(), loop=asyncio.get_running_loop())

    async def _begin(self) -> None:
        """Start ready runs, until the turn is over or one of them suspends and keeps this task."""
        self._is_beginning = False
        task = asyncio.current_task()
        assert task is not None
        began, ended = time.monotonic(), list[Run]()
        try:
            suspended = self._take_turn(task, ended, began + SLICE)
        finally:
            self._quick += len(ended)
            self._end(ended)
        if suspended is None:
            self._note_turn(time.monotonic() - began, len(ended))
            return
        run, rest = suspended
        self._was_slow()
        if run.handler.is_async:  # otherwise it waits for a thread, which cannot be stopped
            run.keep(task)
        self._arm(run, run.began)
        await finish(run, rest)
        self._end([run])

    def _take_turn(
        self, task: asyncio.Task[Any], ended: list[Run], until: float
    ) -> tuple[Run, Suspended] | None:
        """Start ready runs one after the other; returns the first that suspends, which is the last.

        Those that end without suspending are added to ``ended``. They take turns at one slot.
        """
        ready, in_thread, now = self._ready, self._in_thread, time.monotonic()
        if self._started >= self._slots:
            return None
        handler = None
        while ready:
            run = ready[0]
            if run.handler is not handler:
                if not run.starts_on_loop:
                    return None
                handler = run.handler
            ready.popleft()
            run.began = now
            rest = start(run, in_thread)
            if rest is not None:
                return run, rest
            now = run.ended = time.monotonic()
            ended.append(run)
            # If a handler cancelled the task that it took for its own, a new one starts the rest.
            if len(ended) == self._turn or now > until or task.cancelling():
                return None
        return None

    def _note_pace(self, runs: int, seconds: float) -> None:
        """Claim as many jobs ahead as run in ``AHEAD_WITHIN`` at the pace of these runs."""
        self._ahead = int(min(MOST_AHEAD, AHEAD_WITHIN * runs / max(seconds, CLOCK_STEP)))

    def _note_turn(self, seconds: float, runs: int) -> None:
        """Judge by a turn's time whether handlers are quick.

        One that is too long may be due to other work of the machine, which took the processor away.
        """
        if runs:
            self._note_pace(runs, seconds)
        if seconds <= SLICE:
            self._was_late = False
        elif self._was_late or seconds > LONGEST_TURN:
            self._was_slow()
        else:
            self._was_late = True

    def _arm(self, run: Run, began: float) -> None:
        """Start the timer of a run that has a timeout."""
        timeout = run.assignment.timeout
        if timeout is not None:
            left = began + timeout - time.monotonic()
            run.timer = asyncio.get_running_loop().call_later(left, self._time_out, run)

    def _time_out(self, run: Run) -> None:
        timeout = run.assignment.timeout
        log.warning("%s timed out after %g s", run, timeout, extra=run.log_fields())
        self.stop_run(run, StopReason.TIMED_OUT)

    # -- ends -------------------------------------------------------------------------------------

    def _end(self, runs: Sequence[Run]) -> None:
        if runs:
            for some in (self.runs, self.in_processes, self.stuck):
                if some:
                    some.difference_update(runs)
            # First the slots, then the reports: the loop that is woken first goes first. The worker
            # waits for the next claim, so that should be in flight while reports are written.
            self._on_free_slot()
            self._report(runs)
            self._idle.set()
        self._begin_ready()

    def _report(self, runs: Sequence[Run]) -> None:
        """Pass the outcomes of runs on, each once."""
        now = time.monotonic()
        unreported = [run for run in runs if not run.reported]
        for run in unreported:
            run.reported = True
            run.ended = run.ended or now
            if run.timer is not None:
                run.timer.cancel()
        try:
            self._on_ended(unreported)
        except Exception:  # the runs queued behind these must start
            for run in unreported:
                log.exception("%s: its end could not be noted; its lease will run out", run)


def _resolve(future: asyncio.Future[Callable[[], Any]], result: Callable[[], Any]) -> None:
    """Pass on what a thread's call returned or raised, unless its task was ended meanwhile."""
    if not future.done():
        future.set_result(result)


def _raise(error: BaseException) -> NoReturn:
    raise error
