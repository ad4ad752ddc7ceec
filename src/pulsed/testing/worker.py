"""A worker that runs what is due and ends when nothing is.

It is the worker of production in all but one thing: claims, runs and settles go on by turns, until
a turn finds nothing to do, instead of side by side for ever. So a test knows when it is over.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Unpack

from pulsed.engine.upkeep.watchdog import Watchdog
from pulsed.engine.worker import drain
from pulsed.engine.worker.run import Run
from pulsed.engine.worker.threads import HandlerThreads
from pulsed.engine.worker.worker import Worker, WorkerParts
from pulsed.errors import DrainLimit
from pulsed.model.job import FOREVER, Assignment, JobFilter, Lease, Status
from pulsed.model.outcome import Outcome, Report
from pulsed.store.results import Accepted
from pulsed.testing.clock import Clock
from pulsed.testing.faults import Process, abandon
from pulsed.testing.ran import Ended, Ran
from pulsed.wording import counted

PAGE = 1_000
"""Jobs read at a time, to find the next one that is due."""


@dataclass(slots=True)
class Drained:
    """What a drain has run so far, how much it may run, and how far it may skip time."""

    limit: int
    clock: Clock | None = None
    until: datetime | None = None
    skip_time: bool = False
    runs: list[Ran] = field(default_factory=list)
    started: int = 0

    def check_limit(self) -> None:
        """Raise if so many runs were started that this will hardly end."""
        if self.started > self.limit:
            raise DrainLimit(
                f"The drain was stopped after {counted(self.started, 'run')}, and jobs are still "
                f"due. Last: {self._last()}. A job that enqueues or snoozes itself, or a schedule, "
                "goes on for ever; drain(limit=…) allows more runs, drain(until=…) ends at a time."
            )

    def _last(self) -> str:
        last = collections.Counter(str(ran) for ran in self.runs[-20:])
        return ", ".join(f"{number} times {name}" for name, number in last.most_common(5))


class DrainingWorker(Worker):
    """Runs what is due until nothing is, or until its process dies."""

    def __init__(
        self,
        process: Process,
        drained: Drained,
        threads: HandlerThreads | None,
        **parts: Unpack[WorkerParts],
    ) -> None:
        parts["store"] = process.store
        parts["origin"] = None  # handlers with executor="process" run here, where the sandbox is
        super().__init__(**parts, threads=threads)
        self._process = process
        self._drained = drained
        self._reports: dict[Run, tuple[Outcome, BaseException | None]] = {}
        """The reports that were not answered yet, and what the handlers raised."""

    @property
    def has_died(self) -> bool:
        """Whether a crash ended it."""
        return self._process.died.is_set()

    # -- turns ------------------------------------------------------------------------------------

    def _make_parts(self) -> Watchdog:
        upkeep = super()._make_parts()
        self._workflows.pause = self._pause
        return upkeep

    async def _claim_until_asked_to_stop(self, upkeep: Watchdog) -> None:
        background = [
            asyncio.create_task(self._settler.run(), name="pulsed-settle"),
            asyncio.create_task(self._cancel_watch.run(), name="pulsed-cancel"),
        ]
        if self._recorder is not None:
            self._recorder.start()
        draining = asyncio.create_task(self._drain_all(upkeep), name="pulsed-drain")
        died = asyncio.create_task(self._process.died.wait(), name="pulsed-died")
        stop = asyncio.create_task(self._stop_asked.wait(), name="pulsed-stop")
        try:
            await asyncio.wait([draining, died, stop], return_when=asyncio.FIRST_COMPLETED)
            if not self.has_died:
                await self._finish(draining)
        finally:
            await drain.end(draining, died, stop, *background)
            await self._leave()

    async def _leave(self) -> None:
        if not self.has_died:
            await super()._leave()
            return
        self._abandon_runs()
        self._run_events.close()
        if self._recorder is not None:
            self._recorder.stop()

    async def _finish(self, draining: asyncio.Task[None]) -> None:
        """End like any worker: what runs is finished, or handed back if that is asked for."""
        self._claimer.stop()
        if not draining.done():  # the caller was cancelled
            await drain.end(draining)
        await self._drain.finish_runs()
        if not draining.cancelled():
            draining.result()

    async def _drain_all(self, upkeep: Watchdog) -> None:
        if self.options.schedules and self._declare is not None:
            await self._declare()
        await self._drain_instant(upkeep)
        while await self._skip_time():
            await self._drain_instant(upkeep)

    async def _drain_instant(self, upkeep: Watchdog) -> None:
        """Do what is due at this instant, and what that makes due."""
        await upkeep.tick()
        while await self.store.bulk.advance(self.id) is not None:
            pass
        before = -1
        while before != self._drained.started:
            self._drained.check_limit()
            before = self._drained.started
            if self.options.schedules:
                await self._scheduler.tick()
            while not await self._claimer.tick():
                self._drained.check_limit()
            await self._runner.until_idle()
            await self._settler.flushed()

    # -- runs -------------------------------------------------------------------------------------

    def _start(self, assignments: list[Assignment], asked_at: float) -> None:
        self._drained.started += len(assignments)
        super()._start(assignments, asked_at)

    def _ended(self, runs: Sequence[Run]) -> None:
        for run in runs:
            kept = self._process.faults.reported(run.assignment, run.outcome)
            if kept is None or kept is not run.outcome:
                self._note(run, Ended.LOST)
            else:
                self._reports[run] = kept, run.error
            run.outcome = kept
        super()._ended(runs)

    def _settled(self, reports: Sequence[Report], accepted: Accepted) -> None:
        for report in reports:
            if report.run in self._reports:
                outcome, error = self._reports.pop(report.run)
                self._note(report.run, outcome if report.lease in accepted else Ended.LOST, error)
        super()._settled(reports, accepted)

    def _note(self, run: Run, ended: Outcome | Ended, error: BaseException | None = None) -> None:
        self._drained.runs.append(Ran.of(run.assignment, ended, error))

    def _abandon_runs(self) -> None:
        """Leave the handlers where they are, as a kill does."""
        for run in self._runner.runs:
            self._note(run, Ended.CRASHED)
            if run.timer is not None:
                run.timer.cancel()
            flow = run.flow
            for task in {run.task} if flow is None else {run.task, *flow.tasks_beside()}:
                if task is not None:
                    abandon(task)

    def note_lost_answers(self, held: Collection[Lease]) -> None:
        """Note the runs whose reports were in flight when it died; ``held`` were not stored."""
        for run, (outcome, error) in self._reports.items():
            self._note(run, Ended.CRASHED if run.lease in held else outcome, error)

    # -- time -------------------------------------------------------------------------------------

    async def _pause(self, seconds: float) -> None:
        """Pause between two tries of a step: in the sandbox's time, if it has one."""
        if self._drained.clock is None:
            await asyncio.sleep(seconds)
        else:
            self._drained.clock.advance(seconds)

    async def _skip_time(self) -> bool:
        """Go to the next instant at which something is due; False if there is none to go to."""
        clock, until = self._drained.clock, self._drained.until
        if clock is None or (until is None and not self._drained.skip_time):
            return False
        instants = [await self._next_job(), self._next_permit(clock)]
        if until is not None:  # schedules go on for ever, so only an end makes them due
            instants += [(await self.store.schedules.due(1)).next_run_at, until]
        later = [instant for instant in instants if instant is not None and instant > clock.now]
        if not later or (until is not None and min(later) > until):
            return False
        clock.move_to(min(later))
        await self._clock.measure()
        return True

    def _next_permit(self, clock: Clock) -> datetime | None:
        """Return when a rate permits a job that is due; None: none holds one back."""
        seconds = self._claimer.again_in
        return None if seconds is None else clock.now + timedelta(seconds=seconds, microseconds=1)

    async def _next_job(self) -> datetime | None:
        """Return when the next job of these handlers is due; None: none has a time."""
        waiting = JobFilter(status=(Status.PENDING, Status.RETRYING, Status.WAITING))
        topics, now = {handler.topic for handler in self.registry}, await self.store.now()
        soonest, before = FOREVER, None
        while True:
            page = await self.store.list_jobs(waiting, limit=PAGE, before=before)
            due = (job.next_run_at for job in page if job.topic in topics)
            soonest = min([soonest, *(instant for instant in due if instant > now)])
            if (before := page.next) is None:
                return None if soonest == FOREVER else soonest
