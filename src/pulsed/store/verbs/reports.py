"""Reports as rows of statements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

from pulsed.errors import LONGEST_DELAY
from pulsed.handler import clean_text
from pulsed.model.job import Status
from pulsed.model.lifecycle import outcome_name
from pulsed.model.outcome import Cancelled, Failed, Released, Report, Snoozed, Succeeded, Waiting
from pulsed.store.results import Accepted
from pulsed.store.sql import rows as decode
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script

CANCELLED = Status.CANCELLED.value


def report_values(report: Report) -> tuple[Any, ...]:
    """Return a row of REPORT."""
    result: str | None = None
    error: str | None = None
    delay: float | None = None
    final = False
    match report.outcome:
        case Succeeded():
            result = report.outcome.result
        case Failed():
            error, delay = clean_text(report.outcome.error), report.outcome.delay
            final = report.outcome.final
        case Snoozed():
            delay = report.outcome.delay
        case Cancelled():
            error = clean_text(report.outcome.reason)
        case Released() | Waiting():
            pass
        case _:
            assert_never(report.outcome)
    return (*report.lease, outcome_name(report.outcome), result, error, storable(delay), final)


def storable(delay: float | None) -> float | None:
    """Return a delay within range: one outside must not fail its whole batch."""
    if delay is None or math.isnan(delay):
        return None
    return min(max(delay, 0.0), LONGEST_DELAY)


def settled_before(engine: Engine, reports: Sequence[Report]) -> Script[Accepted]:
    """Find the leases for which the same report is stored, by this try or by an earlier one."""
    values = [report_values(report) for report in reports]
    before = yield Statement(engine.settling.settled_before, {}, values)
    leases = {decode.lease(engine.dialect, row): row[3] for row in before}
    return Accepted(leases, (lease for lease, status in leases.items() if status == CANCELLED))


def record_failures(engine: Engine, found: Iterable[tuple[Any, ...]]) -> Script[None]:
    """Insert one row for each failed attempt."""
    values = list(found)
    if values:
        yield Statement(engine.settling.record_failures, {}, values)
