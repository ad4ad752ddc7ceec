"""A worker: claims jobs for its free slots, runs their handlers, reports how they ended.

One event loop does the work. Beside it: a heartbeat thread (``leases``), threads for plain
functions (``threads``), and small loops for claiming, settling, schedules, upkeep and pruning, each
a timer around a ``tick``. This file only connects them and decides when to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any, TypedDict
from uuid import UUID

from pulsed.engine.around import Arounds, RunArounds
from pulsed.engine.context import Context
from pulsed.engine.database_clock import DatabaseClock
from pulsed.engine.process.service_manager import ServiceManager, reporting
from pulsed.engine.process.stop_signals import on_stop_signals
from pulsed.engine.stats import StatsRecorder
from pulsed.engine.upkeep.bulk import BulkPerformer
from pulsed.engine.upkeep.pruner import Pruner
from pulsed.engine.upkeep.scheduler import Scheduler
from pulsed.engine.upkeep.watchdog import Watchdog
from pulsed.engine.worker import drain
from pulsed.engine.worker.cancel_watch import CancelWatch
from pulsed.engine.worker.claimer import Claimer, SlotGroup
from pulsed.engine.worker.drain import Drain
from pulsed.engine.worker.job_log import JobLog
from pulsed.engine.worker.leases import Fence, Leases
from pulsed.engine.worker.loop_watch import LoopWatch
from pulsed.engine.worker.options import WorkerOptions
from pulsed.engine.worker.processes.messages import Origin
from pulsed.engine.worker.processes.origin import refuse_while_loading
from pulsed.engine.worker.processes.pool import ProcessOptions, ProcessPool
from pulsed.engine.worker.request_watch import RequestWatch
from pulsed.engine.worker.run import Run, StopReason
from pulsed.engine.worker.run_events import RunEvents
from pulsed.engine.worker.runs import Runner
from pulsed.engine.worker.settler import Settler
from pulsed.engine.worker.threads import HandlerThreads
from pulsed.engine.workflow.shared import Workflows
from pulsed.errors import (
    AccessDenied,
    ConfigError,
    ServerTooOld,
    StorageError,
    TransientStorageError,
)
from pulsed.handler import Registry
from pulsed.model.control import ControlScope
from pulsed.model.job import Assignment, Lease, WorkerInfo, WorkerRequest
from pulsed.model.outcome import Beat, Failed, Released, Report
from pulsed.store.base import Store
from pulsed.store.listener import CANCELS, SCHEDULES, Listener, concerns, concerns_jobs
from pulsed.store.results import Accepted
from pulsed.store.retrying import use_own_retry
from pulsed.store.verbs.ticks import BEATS_PER_LEASE
from pulsed.version import __version__
from pulsed.wording import counted

log = logging.getLogger("pulsed.worker")

MOST_UNREPORTED = 1000
"""Unsettled outcomes, beyond its slots, at which a worker stops claiming: backpressure. As many as
are claimed ahead: while one report is in flight, the jobs of the next two claims end."""


class Exit(Enum):
    """Why a worker ended; the value is the exit code of its process."""

    DRAINED = 0
    STUCK = 1
    ABORTED = 130


class WorkerParts(TypedDict):
    """The arguments of a worker, as an app gives them."""

    store: Store
    registry: Registry
    options: WorkerOptions
    lifespan: Callable[[], AbstractAsyncContextManager[Any]]
    declare: Callable[[], Awaitable[None]] | None
    arounds: Arounds
    origin: Callable[[], Origin] | None


class Worker:
    """Runs the handlers of a registry on the jobs of a store."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        options: WorkerOptions | None = None,
        *,
        lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None,
        declare: Callable[[], Awaitable[None]] | None = None,
        arounds: Arounds | None = None,
        threads: HandlerThreads | None = None,
        origin: Callable[[], Origin] | None = None,
    ) -> None:
        self.id: UUID = uuid.uuid4()
        self.store = store
        self.registry = registry
        self.options = options or WorkerOptions()
        self._lifespan = lifespan or contextlib.nullcontext
        self._declare = declare
        self._origin = origin
        self._arounds = arounds or Arounds()
        self._around_runs = RunArounds(self._arounds.runs)
        self._runner = Runner(
            self.options.concurrency,
            on_ended=self._ended,
            on_free_slot=self._slot_freed,
            on_stuck=self._end_if_too_many_are_stuck,
            threads=threads,
        )
        self._job_log = JobLog(self.options.job_log)
        self._clock = DatabaseClock(store)
        self._claims_fail: Callable[[], bool] = lambda: False
        self._listener: Listener | None = None
        self._manager = ServiceManager()
        self._stop_asked = asyncio.Event()
        self._abort_asked = asyncio.Event()
        self._exit = Exit.DRAINED
        self.request: WorkerRequest | None = None
        """What an operator has asked of it; then its process should not be replaced."""
        self._loop_thread: int | None = None

    @property
    def queues(self) -> Sequence[str] | Mapping[str, float]:
        """The queues that it claims from, in their order or with their weights."""
        return self.options.served_queues(self.registry)

    # -- life -----------------------------------------------------------------------------------

    async def run(self, *, handle_signals: bool = False) -> Exit:
        """Work until ``stop()``, then drain. Cancelling this call hands running jobs back first."""
        working = asyncio.create_task(self._run(handle_signals=handle_signals))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            self.stop(abort=True)
            await working
            raise

    async def _run(self, *, handle_signals: bool) -> Exit:
        refuse_while_loading()
        use_own_retry(self.options.own_retry)  # for the tasks and threads that start here
        self.registry.resolve_all()
        if not len(self.registry):
            raise ConfigError(
                "This worker has no handlers. Declare jobs with @app.job in a module it imports."
            )
        if handle_signals:  # then this process is the worker's own
            self._manager = ServiceManager.take()
        self._runner.processes = self._process_pool()
        await self._check_database()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        listening = on_stop_signals(self._loop, self.stop) if handle_signals else None
        with listening or contextlib.nullcontext():
            async with self._lifespan():
                await self._work()
        return self._exit

    def stop(self, *, abort: bool = False) -> None:
        """Stop claiming and drain; with ``abort``, hand running jobs back instead.

        May be called from any thread.
        """
        if self._loop_thread not in (None, threading.get_ident()):
            self._loop.call_soon_threadsafe(functools.partial(self.stop, abort=abort))
            return
        self._stop_asked.set()
        if abort:
            self._abort_asked.set()

    def obey(self, request: WorkerRequest) -> None:
        """Do what an operator asks: drain, or stop. Asked again, it does nothing more."""
        if request is not self.request:
            log.info("worker %s was asked to %s", self.id, request)
            self.request = request
            self.stop(abort=request is WorkerRequest.STOP)

    def _process_pool(self) -> ProcessPool | None:
        """Return the processes for handlers that want one; without an app, they run here."""
        if self._origin is None or not any(handler.in_process for handler in self.registry):
            return None
        options = self.options
        how = ProcessOptions(options.jobs_per_process, options.kill_after)
        return ProcessPool(self._origin(), self.store, how)

    async def _check_database(self) -> None:
        """Raise on a permanent error; a database that is only unreachable is waited for."""
        try:
            await self._clock.measure()
        except TransientStorageError as error:
            log.warning("the database is not there yet (%s); waiting for it", error)

    async def _work(self) -> None:
        upkeep = self._make_parts()
        self._leases.start()
        watch = LoopWatch(self.registry, lambda: bool(self._runner.runs))
        watch.start()
        log.info("worker %s started: %s", self.id, self.options.summary(self.registry))
        try:
            wanted = (*self.queues, SCHEDULES, CANCELS)
            async with self.store.listen(wanted, self._hinted) as listener:
                self._listener = listener
                async with reporting(self._manager, self._status):
                    await self._claim_until_asked_to_stop(upkeep)
        finally:
            watch.stop()
            self._leases.stop()
            await self._runner.close()
            self._job_log.close()
        log.info("worker %s ended: %s", self.id, self._exit.name.lower())

    def _make_parts(self) -> Watchdog:
        """Make the parts that belong to the running event loop; returns the watchdog."""
        options = self.options
        self._run_events = RunEvents(self.store.events, self._clock, self.id)
        self._leases = Leases(
            self.store, self._beat_answers, self._beats_were_late, fence=self._fence
        )
        self._settler = Settler(self.store, self._settled, self._leases.shortest)
        self._drain = Drain(
            self._runner, self._settler, self._abort_asked, options.drain_timeout, self._aborts
        )
        self._claimer = Claimer(
            self.store,
            self.id,
            self._leases,
            queues=self.queues,
            groups=self._groups(),
            poll=options.poll,
            start=self._start,
            prepare=self._declare_controls,
        )
        self._claims_fail = self._claimer.is_failing
        self._cancel_watch = CancelWatch(
            self.store, self.id, poll=options.poll, runs=self._runner.by_lease
        )
        self._request_watch = RequestWatch(self.store, self.id, self.obey)
        self._workflows = Workflows(self.store, self.registry, self._arounds)
        self._scheduler = Scheduler(
            self.store, declare=self._declare, limits=self.registry.limit_rules
        )
        self._recorder = StatsRecorder(self.store, self.id) if options.stats else None
        return Watchdog(
            self.store,
            tick=self._tick(),
            describe=self.describe,
            on_ended=self._recorder.count if self._recorder else None,
            on_request=self.obey,
            now=self._clock.now,
        )

    async def _declare_controls(self) -> None:
        """Store the limits that the program declares, before the first claim."""
        declared = {
            ControlScope.QUEUE: self.registry.queues,
            ControlScope.LIMIT: self.registry.limits(),
        }
        for scope, numbers in declared.items():
            try:
                await self.store.controls.declare(scope, numbers)
            except (AccessDenied, ServerTooOld) as error:
                log.warning("the numbers of each %s are as they were stored: %s", scope, error)

    async def _claim_until_asked_to_stop(self, upkeep: Watchdog) -> None:
        background = [
            asyncio.create_task(self._settler.run(), name="pulsed-settle"),
            asyncio.create_task(upkeep.run(), name="pulsed-upkeep"),
            asyncio.create_task(self._cancel_watch.run(), name="pulsed-cancel"),
            asyncio.create_task(self._request_watch.run(), name="pulsed-request"),
            asyncio.create_task(self._clock.run(), name="pulsed-clock"),
        ]
        if self.options.schedules:
            firing = asyncio.create_task(self._scheduler.run(), name="pulsed-schedules")
            background.append(firing)
        pruner = Pruner(self.store, self.options.retention)
        background.append(asyncio.create_task(pruner.run(), name="pulsed-prune"))
        bulk = BulkPerformer(self.store)
        background.append(asyncio.create_task(bulk.run(), name="pulsed-bulk"))
        if self._recorder is not None:
            self._recorder.start()
            background.append(asyncio.create_task(self._recorder.run(), name="pulsed-stats"))
        claiming = asyncio.create_task(self._claimer.run(), name="pulsed-claim")
        asked = asyncio.create_task(self._stop_asked.wait(), name="pulsed-stop")
        try:
            await asyncio.wait([claiming, asked, *background], return_when=asyncio.FIRST_COMPLETED)
            self._claimer.stop()
            self._manager.stopping(self._status())
            await self._drain.finish_claim(claiming)
            await self._drain.finish_runs()
            for task in (claiming, *background):  # a task that ended by itself has a bug: raise it
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            await drain.end(asked, *background)
            await self._leave()

    async def _leave(self) -> None:
        """Write what is left to write when no run is left."""
        self._run_events.close()
        if self._recorder is not None:
            await self._recorder.close()
        with contextlib.suppress(StorageError, TimeoutError):
            async with asyncio.timeout(drain.LAST_WRITES):
                await self.store.retire(self.id)

    def _aborts(self) -> None:
        self._exit = Exit.ABORTED

    def _hinted(self, names: Collection[str] | None) -> None:
        """Handle a hint: poll for what it names, or for everything if that is not known.

        Each part sends statements, which would compete with the claim of a job just announced.
        """
        if concerns_jobs(names):
            self._claimer.wake()
        if concerns(names, SCHEDULES):
            self._scheduler.wake()
        if concerns(names, CANCELS):
            self._cancel_watch.wake()
            self._request_watch.wake()

    # -- runs -----------------------------------------------------------------------------------

    def _groups(self) -> list[SlotGroup]:
        """Return the groups to claim for: jobs in processes do not take the slots of others."""
        handlers = list(self.registry)
        uses_processes = self._runner.processes is not None
        here = [each.policy for each in handlers if not (uses_processes and each.in_process)]
        apart = [each.policy for each in handlers if uses_processes and each.in_process]
        groups = [
            SlotGroup(here, self.options.concurrency, self._free_slots),
            SlotGroup(apart, self.options.most_processes, self._free_processes),
        ]
        return [group for group in groups if group.topics]

    def _free_slots(self, unstarted: int = 0) -> int:
        return self._runner.room(unstarted) if self._may_claim() else 0

    def _free_processes(self, _unstarted: int) -> int:
        in_processes = len(self._runner.in_processes)
        return self.options.most_processes - in_processes if self._may_claim() else 0

    def _may_claim(self) -> bool:
        if self._stop_asked.is_set():
            return False
        # Backpressure: the database accepts no reports.
        return self._settler.backlog <= self.options.concurrency + MOST_UNREPORTED

    def _start(self, assignments: list[Assignment], asked_at: float) -> None:
        for lost in self._leases.add(assignments, asked_at):
            # This worker went silent, and has claimed a job that it was still running.
            self._lost(self._runner.by_lease().get(lost))
        now = time.monotonic()
        waited = now - asked_at
        if self._abort_asked.is_set():  # no run starts any more
            waited = math.inf
        find, make_context, arounds = self.registry.get, self._context_of, self._around_runs
        handler, topic, runs = None, None, []
        for each in assignments:
            if waited > each.lease_seconds:
                self._settler.put([Report.of(each, Released())])
                continue
            if handler is None or each.topic != topic:
                topic = each.topic
                handler = find(topic)
            runs.append(Run(each, handler, make_context, arounds))
        self._runner.start(runs)
        self._run_events.started(runs, now)

    def _context_of(self, assignment: Assignment) -> Context:
        return Context(assignment, self.store, self._workflows)

    def _slot_freed(self) -> None:
        self._claimer.slot_freed()

    def _ended(self, runs: Sequence[Run]) -> None:
        """Report how runs have ended, unless their leases are lost."""
        reports, lost = [], []
        for run in runs:
            outcome = run.outcome
            if outcome is None:
                lost.append(run.lease)
                continue
            if type(outcome) is Failed:
                self._run_events.failed(run)
            reports.append(Report.of(run.assignment, outcome, run))
        if lost:
            self._leases.give_up(lost)
        self._settler.put(reports)
        self._job_log.ended(runs)
        for run in runs:
            run.error = None  # breaks a cycle: its traceback refers to the run

    def _settled(self, reports: Sequence[Report], accepted: Accepted) -> None:
        self._leases.drop([report.lease for report in reports])
        self._run_events.settled(reports, accepted)
        self._claimer.slot_freed()  # a long backlog of reports withholds slots, too
        if len(accepted) < len(reports):
            refused = [report for report in reports if report.lease not in accepted]
            self._leases.give_up([report.lease for report in refused])
            for report in refused:
                log.warning(
                    "job %s: the outcome %s came too late, the lease was lost; another run decides",
                    report.lease.job_id,
                    type(report.outcome).__name__,
                )

    def _lost(self, run: Run | None) -> None:
        """Stop a run that lost its lease; if its report is in flight, settle decides."""
        if run is not None and not run.reported:
            log.warning("%s lost its lease; stopping it", run, extra=run.log_fields())
            self._leases.give_up([run.lease])
            self._run_events.lost(run)
            self._runner.stop_run(run, StopReason.LOST)

    def _end_if_too_many_are_stuck(self) -> None:
        """Drain if half of the slots are stuck, to make room for a fresh process.

        Runs that only lost their lease do not count: they will end.
        """
        wedged = sum(run.stop is StopReason.TIMED_OUT for run in self._runner.stuck)
        if 2 * wedged >= self.options.concurrency and not self._stop_asked.is_set():
            log.error("%d of %d slots are stuck; draining", wedged, self.options.concurrency)
            self._exit = Exit.STUCK
            self.stop()

    # -- heartbeats (from their own thread) -------------------------------------------------------

    def _beat_answers(self, answers: dict[Lease, Beat]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            self._loop.call_soon_threadsafe(self._act_on_answers, answers)

    def _act_on_answers(self, answers: dict[Lease, Beat]) -> None:
        runs = self._runner.by_lease()
        for lease, answer in answers.items():
            run = runs.get(lease)
            if answer is Beat.LOST:
                self._lost(run)
            elif answer is Beat.CANCEL and run is not None:
                run.tell_to_stop(StopReason.CANCELLED)

    def _beats_were_late(self, seconds: float, topics: list[str]) -> None:
        log.warning(
            "heartbeats were %.1f s late: something held the interpreter, or the machine slept; "
            "running: %s",
            seconds,
            ", ".join(topics),
        )

    # -- presence -------------------------------------------------------------------------------

    def describe(self) -> WorkerInfo:
        """Return this worker's presence: what other processes see of it."""
        return WorkerInfo(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=tuple(self.queues),
            topics=tuple(handler.topic for handler in self.registry),
            slots=self.options.slots(self.registry),
            running=self._runner.in_use,
            stuck=len(self._runner.stuck),
            state=self._state(),
            version=__version__,
        )

    @property
    def state(self) -> str:
        """``starting``, ``running``, ``failing`` (its claims do) or ``draining``."""
        is_starting = self._listener is None and not self._stop_asked.is_set()
        return "starting" if is_starting else self._state()

    def _state(self) -> str:
        if self._stop_asked.is_set():
            return "draining"
        return "failing" if self._claims_fail() else "running"

    def _status(self) -> str:
        """Return what a service manager shows about this worker."""
        slots = self.options.slots(self.registry)
        return f"{self._state()}: {self._runner.in_use} of {counted(slots, 'slot')} in use"

    @property
    def _fence(self) -> Fence:
        match self.options.fence:
            case None:
                return Fence.UNHEARD if self.store.is_remote else Fence.NEVER
            case always:
                return Fence.UNCONFIRMED if always else Fence.NEVER

    def _tick(self) -> float:
        """Return the longest time between two scans for silent workers.

        No more than a gap that is harmless to all of this worker's leases: a watchdog that scans
        less often cannot tell a dead worker from one that was cut off, and has to wait before it
        recovers jobs.
        """
        shortest = min(policy.lease for policy in self.registry.policies())
        return min(self.options.tick, shortest / BEATS_PER_LEASE)
