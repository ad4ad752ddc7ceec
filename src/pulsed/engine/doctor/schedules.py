"""The doctor's checks of schedules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from pulsed.engine.doctor.finding import CLOCK_TOLERANCE, WAITED_TOO_LONG, Finding, Severity
from pulsed.engine.state_reads import StateReads
from pulsed.errors import InvalidOption, UnknownZone
from pulsed.model.schedule import ScheduleFilter, ScheduleRow, ScheduleState
from pulsed.model.timetable import zone_of
from pulsed.store.base import Store
from pulsed.store.schedules import SCHEDULE_PAGE
from pulsed.wording import format_duration


async def check_schedules(store: Store, reads: StateReads) -> list[Finding]:
    """Report schedules that cannot be fired, are overdue, or were fired in the future."""
    now = await reads.now()
    since = now - timedelta(seconds=WAITED_TOO_LONG)
    active = await store.schedules.list_page(ScheduleFilter(state=ScheduleState.ACTIVE))
    broken = await store.schedules.list_page(ScheduleFilter(state=ScheduleState.ERROR))
    late = await store.schedules.list_page(ScheduleFilter(None, ScheduleState.ACTIVE, since))
    found = []
    if broken:
        errors = [f"{_named(row)}: {row.error}" for row in broken]
        detail = f"{_number(broken)} cannot be fired: {_several(errors)}"
        advice = "`pulsed schedules show` says more; `edit` or `resume` starts it again"
        found.append(Finding("schedules", Severity.FAIL, detail, advice))
    if late:
        ages = [f"{_named(row)} for {format_duration(_overdue_by(row, now))}" for row in late]
        detail = f"{_number(late)} due, and no worker fires them: {_several(ages)}"
        advice = (
            "start a worker: each fires schedules of all apps, unless started with --no-schedules"
        )
        found.append(Finding("overdue schedules", Severity.FAIL, detail, advice))
    found += _unknown_zones({row.key: row for row in [*late, *active]}.values())
    if (ahead := max((_fired_ahead_by(row, now) for row in active), default=0.0)) > CLOCK_TOLERANCE:
        detail = f"fired {format_duration(ahead)} in the future: the clock has been set back since"
        advice = "what was fired already is not fired again: they are silent until then"
        found.append(Finding("schedules and clock", Severity.WARN, detail, advice))
    return found or [
        Finding("schedules", Severity.OK, f"{_number(active)} active, none is overdue")
    ]


def _unknown_zones(active: Iterable[ScheduleRow]) -> Iterator[Finding]:
    """Report time zones unknown to this machine: its workers leave their schedules to others."""
    unknown: dict[str, list[str]] = {}
    for row in active:
        if (zone := _zone_missing_here(row)) is not None:
            unknown.setdefault(zone, []).append(_named(row))
    for zone, names in unknown.items():
        detail = f"this machine does not know {zone!r}, the zone of {_several(names)}"
        advice = (
            "workers here leave that to other machines; where none knows the zone, it is not "
            "fired: update the time zones of the system, or `pip install -U tzdata`"
        )
        yield Finding("time zones", Severity.WARN, detail, advice)


def _zone_missing_here(row: ScheduleRow) -> str | None:
    try:
        zone = row.spec.zone
        zone_of(zone)
    except UnknownZone:
        return zone
    except InvalidOption:  # unreadable: the schedule's error says so once it is due
        return None
    return None


def _number(rows: list[ScheduleRow]) -> str:
    return f"{SCHEDULE_PAGE:,} or more" if len(rows) >= SCHEDULE_PAGE else f"{len(rows):,}"


def _overdue_by(row: ScheduleRow, now: datetime) -> float:
    return (now - (row.next_run_at or now)).total_seconds()


def _fired_ahead_by(row: ScheduleRow, now: datetime) -> float:
    return ((row.last_fired_at or now) - now).total_seconds()


def _named(row: ScheduleRow) -> str:
    return f"{row.name!r} of {row.app!r}"


def _several(texts: list[str], most: int = 3) -> str:
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more
