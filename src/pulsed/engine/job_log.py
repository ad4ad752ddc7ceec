"""A line in the log for each run that ends: failures for everybody, the rest for who asks.

The logger is ``pulsed.job``; at DEBUG it also tells of success.
"""

from __future__ import annotations

import logging

from pulsed.engine.run import Run
from pulsed.job import Cancelled, Failed, Outcome, Released, Snoozed, Succeeded, Waiting

log = logging.getLogger("pulsed.job")


def note(run: Run, outcome: Outcome) -> None:
    """Say how a run ended."""
    if type(outcome) is Succeeded and not log.isEnabledFor(logging.DEBUG):
        return  # nearly all of them, and nobody asks
    match outcome:
        case Failed():
            attempt, most = run.assignment.attempt, run.assignment.max_attempts
            error = outcome.error.partition("\n")[0]
            log.warning("%s failed, attempt %d of %d: %s", run, attempt, most, error)
            if outcome.traceback and log.isEnabledFor(logging.DEBUG):
                log.debug("%s", outcome.traceback)
        case _ if not log.isEnabledFor(logging.DEBUG):
            pass
        case Succeeded():
            log.debug("%s succeeded", run)
        case Snoozed():
            log.debug("%s snoozed for %g s", run, outcome.delay)
        case Cancelled():
            log.debug("%s cancelled", run)
        case Released():
            log.debug("%s handed back", run)
        case Waiting():
            log.debug("%s waits: %s", run, outcome.wait.kind.lower())
