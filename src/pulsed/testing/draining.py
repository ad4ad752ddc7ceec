"""Drains: run what is due in this process, until nothing is."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, TypeAlias, TypedDict, Unpack, get_args

from pulsed.app import Pulse
from pulsed.client.jobtype import JobType
from pulsed.engine.worker.options import WorkerSettings
from pulsed.errors import ConfigError, InvalidOption, JobFailed
from pulsed.handler.options import checked_count
from pulsed.model.outcome import Released, Report
from pulsed.store.blocking import refuse_in_event_loop
from pulsed.testing.caller_thread import CallerThread
from pulsed.testing.clock import Clock, Span
from pulsed.testing.faults import Crash, Faults, Process, abandon_all
from pulsed.testing.ran import Ran
from pulsed.testing.worker import Drained, DrainingWorker

MOST_RUNS = 1_000
LARGEST_LIMIT = 1_000_000

CANCEL_POLL = 0.2
"""Seconds until a running job is stopped that was cancelled."""

Topic: TypeAlias = JobType[..., Any] | str
"""A job type, or the name of its topic."""


class DrainOptions(TypedDict, total=False):
    """The options of a drain."""

    until: datetime | Span | None
    """Skip time, from one instant at which something is due to the next, until then."""
    skip_time: bool
    """Skip time to retries, delayed jobs, the end of sleeps and of waits, until no job has a time.
    Schedules fire on the way, but time does not move for their sake: they never end."""
    raises: bool
    """Whether to raise what a handler raised, if its job has not recovered at the end. True by
    default."""
    limit: int
    """How many runs may start before ``DrainLimit`` is raised: 1,000 by default."""
    concurrency: int
    """How many jobs run at a time: one by default, so that a test runs the same every time."""
    queues: str | Collection[str] | None
    """The queues to run jobs of; by default, every queue that a handler declares."""
    crash: Crash | None
    """Kill the worker after every checkpoint, or before it; each run goes on where the last one
    died."""
    deliver_twice: bool
    """Run every job that succeeds once more, as if the report of its success had been lost."""
    lose_lease_of: Topic | Collection[Topic]
    """Take the lease of the first run of each of these jobs, as if its worker had been frozen: what
    that run reports is refused, and a second run decides."""


def drain(app: Pulse, **options: Unpack[DrainOptions]) -> list[Ran]:
    """Run what is due, in this process, until nothing is; returns the runs in their order.

    Plain handlers run in your thread, async ones on an event loop beside it.
    """
    refuse_in_event_loop("adrain")
    caller = CallerThread()
    plan = _Plan(app, options, caller)
    ended: Future[None] = Future()
    variables = contextvars.copy_context()
    arguments = (_in_loop, plan, caller, ended)
    thread = threading.Thread(target=variables.run, args=arguments, name="pulsed-drain")
    thread.start()
    try:
        caller.serve()
    except BaseException:  # Ctrl-C while an async handler runs
        plan.stop()
        raise
    finally:
        thread.join()
    ended.result()
    return plan.result()


async def adrain(app: Pulse, **options: Unpack[DrainOptions]) -> list[Ran]:
    """Run what is due, on this event loop, until nothing is; returns the runs in their order.

    Plain handlers run in threads, as in a worker.
    """
    plan = _Plan(app, options, None)
    await plan.run()
    return plan.result()


class _Plan:
    """One drain: its options, checked, and what it has run."""

    def __init__(self, app: Pulse, options: DrainOptions, threads: CallerThread | None) -> None:
        self._app = app
        self._threads = threads
        self._raises = options.get("raises", True)
        self._faults = _faults(options)
        self._drained = _drained(app, options)
        self._worker: DrainingWorker | None = None
        self._stopped = False
        slots = options.get("concurrency", 1)
        self._settings: WorkerSettings = {"concurrency": slots, "poll": CANCEL_POLL}
        if queues := options.get("queues"):
            self._settings["queues"] = queues if isinstance(queues, str) else list(queues)
        app.worker_parts({**self._settings})  # what it refuses is raised in the caller's thread

    def stop(self) -> None:
        """Hand the running jobs back and end; called in another thread."""
        self._stopped = True
        if self._worker is not None:
            self._worker.stop(abort=True)

    async def run(self) -> None:
        """Run workers, one after the other, until one ends by itself."""
        while not self._stopped:
            parts = self._app.worker_parts({**self._settings})
            store = parts["store"]
            process = Process(store, self._faults)
            self._worker = worker = DrainingWorker(process, self._drained, self._threads, **parts)
            await worker.run()
            if not worker.has_died:
                return
            await process.calls_have_ended()
            held = await store.held(worker.id)
            worker.note_lost_answers(held)
            await store.settle([Report(lease, Released()) for lease in held])

    def leave(self) -> None:
        """Leave the event loop, which is about to be closed and cancels all of its tasks."""
        if self._faults.crash is not None:
            abandon_all()

    def result(self) -> list[Ran]:
        """Return the runs, or raise the error of a job that has not recovered."""
        runs = self._drained.runs
        for ran in runs:
            if isinstance(ran.error, KeyboardInterrupt):  # it was meant for the test, not its job
                raise ran.error
        last = {ran.job_id: ran for ran in runs}
        failed = [ran for ran in last.values() if ran.is_failure]
        if failed and self._raises:
            raise _error_of(failed)
        return runs


def _in_loop(plan: _Plan, caller: CallerThread, ended: Future[None]) -> None:
    """Run a drain on an event loop of its own."""

    async def main() -> None:
        try:
            await plan.run()
        finally:
            plan.leave()

    try:
        ended.set_result(asyncio.run(main()))
    except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
        ended.set_exception(error)
    finally:
        caller.finish()


def _error_of(failed: Sequence[Ran]) -> Exception:
    """Return the first error, with a note about the jobs that failed."""
    error, jobs = failed[0].error, [f"{ran.topic} ({ran.job_id})" for ran in failed]
    if not isinstance(error, Exception):  # SystemExit would end the test run
        failure = JobFailed(f"{jobs[0]} raised {error!r}", job_id=failed[0].job_id)
        failure.__cause__ = error
        error = failure
    others = f"; failed as well: {', '.join(jobs[1:6])}" if len(jobs) > 1 else ""
    error.add_note(
        f"Raised by the job {jobs[0]} in attempt {failed[0].attempt}{others}. "
        "drain(raises=False) returns instead, drain(skip_time=True) goes on with the retries."
    )
    return error


def _faults(options: DrainOptions) -> Faults:
    crash, lost = options.get("crash"), options.get("lose_lease_of", ())
    if crash is not None and crash not in get_args(Crash):
        raise InvalidOption(f"crash must be one of {', '.join(get_args(Crash))}, not {crash!r}.")
    topics = [lost] if isinstance(lost, str | JobType) else lost
    return Faults(crash, options.get("deliver_twice", False), {topic_of(each) for each in topics})


def _drained(app: Pulse, options: DrainOptions) -> Drained:
    clock, until = app.settings.clock, options.get("until")
    skip_time = options.get("skip_time", False)
    if not isinstance(clock, Clock):
        if until is not None or skip_time:
            raise ConfigError(
                "Only the time of a sandbox can be skipped: use pulsed.testing.override(app). This "
                "app follows the clock of its database."
            )
        clock = None
    limit = checked_count("limit", options.get("limit", MOST_RUNS), 1, LARGEST_LIMIT)
    end = None if clock is None or until is None else clock.after(until)
    return Drained(limit, clock, end, skip_time)


def topic_of(job: Topic) -> str:
    """Return the topic of a job type, or the name that was given."""
    return job if isinstance(job, str) else job.topic
