"""A line in the log for each run that ends, on the logger ``pulsed.job``.

Success is INFO, a failure that is retried WARNING with the handler's line, a dead letter ERROR with
its traceback and ``exc_info``. Every record carries the job in ``extra``. Under load, successes are
limited to a few lines a second, and the rest are counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TypeAlias

from pulsed.engine.error_text import from_the_handler, handler_line
from pulsed.engine.worker.options import JobLogging
from pulsed.engine.worker.run import Run
from pulsed.model.lifecycle import is_dead_letter
from pulsed.model.outcome import Cancelled, Failed, Outcome, Released, Snoozed, Succeeded, Waiting
from pulsed.wording import counted, format_duration

log = logging.getLogger("pulsed.job")
worker_log = logging.getLogger("pulsed.worker")

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

LINES = 20
"""Lines about successes in each ``WINDOW``, in the mode ``limited``."""
WINDOW = 1.0
"""Seconds."""
LONGEST_ERROR = 1_000
"""Characters of an error in the line; ``exc_info`` and the job have all of it."""


class JobLog:
    """Logs how runs end. For use in the event loop's thread only."""

    def __init__(self, mode: JobLogging = "limited") -> None:
        self._mode = mode
        self._window_ends = 0.0
        self._lines = 0
        self._unlogged = 0
        self._summary: asyncio.TimerHandle | None = None

    def ended(self, runs: Sequence[Run]) -> None:
        """Log how runs ended."""
        logs_info = self._mode != "failures" and log.isEnabledFor(logging.INFO)
        now = time.monotonic()
        for run in runs:
            outcome = run.outcome
            try:
                if type(outcome) is Succeeded:
                    if logs_info:
                        self._succeeded(run, now)
                elif type(outcome) is Failed:
                    _failed(run, outcome)
                elif outcome is not None and logs_info:
                    log.info("%s %s", str(run), _interim(outcome), extra=run.log_fields())
            except Exception:  # noqa: BLE001 - of a user's log handler
                worker_log.exception("%s: its end could not be logged", run)

    def close(self) -> None:
        """Log the number of successes that have no line yet."""
        if self._summary is not None:
            self._summary.cancel()
            self._sum_up()

    def _succeeded(self, run: Run, now: float) -> None:
        if self._mode == "limited" and not self._may_log(now):
            self._unlogged += 1
            if self._summary is None:
                loop = asyncio.get_running_loop()
                self._summary = loop.call_later(WINDOW, self._sum_up)
            return
        extra = run.log_fields() | {"duration_ms": run.milliseconds()}
        log.info(
            "%s succeeded in %s%s",
            str(run),
            format_duration(run.seconds()),
            _attempt(run),
            extra=extra,
        )

    def _may_log(self, now: float) -> bool:
        if now >= self._window_ends:
            self._window_ends, self._lines = now + WINDOW, 0
        self._lines += 1
        return self._lines <= LINES

    def _sum_up(self) -> None:
        count, self._unlogged, self._summary = self._unlogged, 0, None
        log.info("%s succeeded; --job-log all shows each", counted(count, "more job"))


def _failed(run: Run, outcome: Failed) -> None:
    job = run.assignment
    dead = is_dead_letter(outcome, job.attempt, job.max_attempts)
    if not log.isEnabledFor(logging.ERROR if dead else logging.WARNING):
        return
    error = outcome.error.partition("\n")[0][:LONGEST_ERROR]
    line = run.error_line if run.error is None else handler_line(run.error, run.handler.fn)
    where = f" ({line})" if line else ""
    extra = run.log_fields() | {"duration_ms": run.milliseconds(), "error": outcome.error}
    if dead:
        log.error(
            "%s is dead-lettered, attempt %d of %d failed: %s%s; see `pulsed jobs show %s`",
            *(str(run), job.attempt, job.max_attempts, error, where, job.job_id),
            exc_info=_exc_info(run.error),
            extra=extra,
        )
    else:
        log.warning(
            "%s failed and will be retried, attempt %d of %d: %s%s",
            *(str(run), job.attempt, job.max_attempts, error, where),
            exc_info=_exc_info(run.error) if log.isEnabledFor(logging.DEBUG) else None,
            extra=extra,
        )


def _exc_info(error: BaseException | None) -> ExcInfo | None:
    return None if error is None else (type(error), error, from_the_handler(error))


def _attempt(run: Run) -> str:
    return f" in attempt {run.assignment.attempt}" if run.assignment.attempt > 1 else ""


def _interim(outcome: Outcome) -> str:
    match outcome:
        case Snoozed():
            return f"snoozed for {format_duration(outcome.delay)}"
        case Cancelled():
            return "was cancelled"
        case Released():
            return "was handed back"
        case Waiting():
            return f"waits: {outcome.wait.kind.lower().replace('_', '-')}"
        case _:
            return "ended"
