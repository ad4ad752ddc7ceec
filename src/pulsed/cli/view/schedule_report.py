"""Schedules and what they did: tables and reports for people, JSON for machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from pulsed.cli.plain import in_line
from pulsed.cli.view.output import Table, one_line, print_hanging, raw, status_text
from pulsed.cli.view.times import iso, moment, relative
from pulsed.client.schedules import Schedule, ScheduleFire
from pulsed.engine.doctor.finding import WAITED_TOO_LONG
from pulsed.model.schedule import ScheduleState
from pulsed.model.timetable import Cron
from pulsed.wording import format_duration

WIDE = 116
"""Terminal width from which the timetable has a column of its own; else it stands below."""
LABEL = 14

COLOURS = {
    ScheduleState.ACTIVE: "green",
    ScheduleState.PAUSED: "yellow",
    ScheduleState.DONE: "dim",
    ScheduleState.ERROR: "bold red",
}
STATES = {
    ScheduleState.PAUSED: "it fires no jobs until `pulsed schedules resume`",
    ScheduleState.DONE: "it has no further occurrence",
    ScheduleState.ERROR: "it fires no jobs; fix it with `pulsed schedules edit` or `resume`",
}

CHANGES = {"forward": "← clocks go forward", "back": "← clocks go back"}


def is_readable(schedule: Schedule) -> bool:
    """Whether its spec can be decoded; the table may have been written to by hand."""
    try:
        return bool(schedule.description and schedule.zone)
    except Exception:  # noqa: BLE001 - whatever is wrong with it
        return False


def when(schedule: Schedule) -> str:
    """Return in plain words when it runs."""
    return schedule.description if is_readable(schedule) else "its definition cannot be read"


# -- for machines ---------------------------------------------------------------------------------


def as_json(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as JSON data."""
    fields = msgspec.structs.asdict(schedule.row)
    del fields["spec_text"]
    spec = _spec_as_json(schedule) if is_readable(schedule) else None
    return fields | {"when": when(schedule), "spec": spec}


def _spec_as_json(schedule: Schedule) -> dict[str, Any]:
    spec = schedule.spec
    fields = msgspec.structs.asdict(spec) | {"payload": raw(spec.payload)}
    fields["tz"] = fields.pop("zone") if spec.cron is not None else None
    if spec.every is not None:
        fields["every"] = spec.every / 1_000_000
    return fields


def fire_as_json(fire: ScheduleFire) -> dict[str, Any]:
    """Return a fire as JSON data; the lag in seconds."""
    return fire._asdict() | {"lag": None if fire.lag is None else fire.lag.total_seconds()}


def occurrences_as_json(
    schedule: Schedule, occurrences: Sequence[datetime]
) -> Iterator[dict[str, Any]]:
    """Yield occurrences as JSON data: in UTC, in the schedule's zone, and clock changes."""
    for occurrence, local, change in _with_changes(schedule, occurrences):
        yield {
            "occurrence": occurrence,
            "local": local.isoformat(),
            "zone": schedule.zone.key,
            "clock_change": change,
        }


def _with_changes(
    schedule: Schedule, occurrences: Sequence[datetime]
) -> Iterator[tuple[datetime, datetime, str | None]]:
    """Yield each occurrence with the change of the zone's clocks since the previous one."""
    before: timedelta | None = None
    for occurrence in occurrences:
        local = occurrence.astimezone(schedule.zone)
        offset = local.utcoffset()
        assert offset is not None
        change = None
        if before is not None and offset != before:
            change = "forward" if offset > before else "back"
        before = offset
        yield occurrence, local, change


# -- for people -----------------------------------------------------------------------------------


def show_table(
    to: Console, schedules: Sequence[Schedule], now: datetime, *, with_app: bool
) -> None:
    """Print a line for each schedule; on a narrow terminal, two."""
    wide = to.width >= WIDE
    heads = [*(["APP"] if with_app else []), "NAME", *(["WHEN"] if wide else [])]
    flexible = {"APP": 8, "WHEN": 24, "NAME": 12} if wide else {"APP": 8, "NAME": 12}
    table = Table(
        *heads,
        "NEXT",
        "LAST",
        "STATE",
        "MISSED",
        flexible={head: least for head, least in flexible.items() if head in heads},
        numbers=("MISSED",),
    )
    for schedule in schedules:
        cells: list[str | Text] = [*([schedule.app] if with_app else []), schedule.name]
        cells += [when(schedule)] if wide else []
        table.add(*cells, *_life(schedule, now, wide=wide), below=_below(schedule, wide=wide))
    table.show(to)


def _life(schedule: Schedule, now: datetime, *, wide: bool) -> list[str | Text]:
    last = schedule.last_fired_at
    return [
        _next(schedule, now, wide=wide),
        "never" if last is None else relative(last, now),
        Text(schedule.state, style=COLOURS[schedule.state]),
        f"{schedule.missed:,}",
    ]


def _next(schedule: Schedule, now: datetime, *, wide: bool) -> str | Text:
    instant = schedule.next_run_at
    if instant is None or schedule.state is not ScheduleState.ACTIVE:
        return Text("-", style="dim")
    late = (now - instant).total_seconds()
    at = f"{instant.astimezone(UTC):{'%Y-%m-%d %H:%M:%SZ' if wide else '%m-%d %H:%MZ'}}"
    if late > WAITED_TOO_LONG:
        return Text(f"overdue, {at}", style="bold red")
    return f"{relative(instant, now) if late < 0 else 'due'}, {at}"


def _below(schedule: Schedule, *, wide: bool) -> Text | None:
    text = Text() if wide else Text(when(schedule), style="dim")
    if schedule.error:
        text.append("  " if text.plain else "").append(one_line(schedule.error), style="red")
    return text if text.plain else None


def show_briefly(to: Console, schedule: Schedule, now: datetime) -> None:
    """Print a schedule's name, state, timetable and next occurrence."""
    _head(to, schedule)
    for label, value in _timetable_fields(schedule, now):
        _field(to, label, value)


def show(
    to: Console,
    schedule: Schedule,
    coming: Sequence[datetime],
    fires: Sequence[ScheduleFire],
    now: datetime,
) -> None:
    """Print the full report on a schedule."""
    _head(to, schedule)
    if schedule.state in STATES:
        print_hanging(to, Text("→ ", style="yellow").append(STATES[schedule.state]), 2)
    if schedule.error:
        print_hanging(to, Text("→ ", style="yellow").append(in_line(schedule.error)), 2)
    to.print()
    for label, value in (*_timetable_fields(schedule, now), *_fields(schedule, now)):
        _field(to, label, value)
    if coming:
        to.print()
        show_occurrences(to, schedule, coming, now)
    if fires:
        to.print()
        show_fires(to, fires, now)


def _head(to: Console, schedule: Schedule) -> None:
    state = Text(schedule.state, style=COLOURS[schedule.state])
    head = Text.assemble((in_line(schedule.name), "bold"), "  ", state)
    to.print(head.append(f"  app {in_line(schedule.app)}", style="dim"))


def _field(to: Console, label: str, value: str) -> None:
    to.print(Text(f"{label:{LABEL}}", style="dim").append(in_line(value)), soft_wrap=True)


def _timetable_fields(schedule: Schedule, now: datetime) -> Iterator[tuple[str, str]]:
    yield "when", when(schedule)
    if is_readable(schedule) and isinstance(cron := schedule.spec.timetable, Cron):
        yield "cron", cron.expression
    if schedule.next_run_at is not None and schedule.state is ScheduleState.ACTIVE:
        yield "next run", moment(schedule.next_run_at, now)


def _fields(schedule: Schedule, now: datetime) -> Iterator[tuple[str, str]]:
    if is_readable(schedule):
        yield from _job_fields(schedule)
    if schedule.last_occurrence is not None:
        yield "last occurred", moment(schedule.last_occurrence, now)
    if schedule.last_fired_at is not None:
        yield "last fired", moment(schedule.last_fired_at, now)
    yield "missed", f"{schedule.missed:,}"
    yield "written by", "a program's declaration" if schedule.row.declared else "hand"
    yield "created", moment(schedule.row.created_at, now)
    if schedule.row.revision:
        yield "changed", moment(schedule.row.updated_at, now)
    yield "id", str(schedule.id)


def _job_fields(schedule: Schedule) -> Iterator[tuple[str, str]]:
    spec = schedule.spec
    yield "job", f"{spec.topic} {msgspec.json.format(spec.payload, indent=0)}"
    yield "queue", spec.queue if not spec.priority else f"{spec.queue}, priority {spec.priority}"
    yield "catch-up", spec.catch_up + (f", at most {spec.limit:,}" if spec.limit else "")
    yield "overlap", spec.overlap
    if spec.jitter:
        yield "jitter", f"{spec.jitter:g} s"
    for label in ("start", "end"):
        if (instant := getattr(spec, label)) is not None:
            yield label, iso(instant.replace(microsecond=0)) or ""
    if spec.max_attempts is not None:
        yield "max attempts", str(spec.max_attempts)
    for label in ("expires", "timeout", "lease"):
        if (seconds := getattr(spec, label)) is not None:
            yield label, f"{seconds:g} s"
    if spec.tags:
        yield "tags", ", ".join(spec.tags)
    for name, value in (spec.headers or {}).items():
        yield "header", f"{name}: {value}"


def show_occurrences(
    to: Console, schedule: Schedule, occurrences: Sequence[datetime], now: datetime
) -> None:
    """Print coming occurrences in the schedule's zone and in UTC, with clock changes marked."""
    zone = schedule.zone.key
    seconds = ":%S" if any(occurrence.second for occurrence in occurrences) else ""
    zones = ["UTC"] if zone == "UTC" else [zone, "UTC"]
    table = Table("COMING", *zones, "", flexible={}, optional=zones[1:])
    for occurrence, local, change in _with_changes(schedule, occurrences):
        there = f"{local:%a %Y-%m-%d %H:%M{seconds} %z}"
        table.add(
            "due" if schedule.next_run_at == occurrence <= now else relative(occurrence, now),
            *([] if zone == "UTC" else [there]),
            f"{occurrence.astimezone(UTC):%a %Y-%m-%d %H:%M{seconds}}",
            Text(CHANGES.get(change or "", ""), style="yellow"),
        )
    table.show(to)


def show_fires(to: Console, fires: Sequence[ScheduleFire], now: datetime) -> None:
    """Print the jobs that a schedule made."""
    heads = ("JOB", "DUE (UTC)", "FIRED", "LAG", "STATUS")
    table = Table(*heads, flexible={}, optional=("LAG",))
    for fire in fires:
        occurrence = "by hand" if fire.occurrence is None else f"{fire.occurrence:%m-%d %H:%M:%S}"
        lag = "-" if fire.lag is None else format_duration(fire.lag.total_seconds())
        job = str(fire.job_id)
        table.add(job, occurrence, relative(fire.fired_at, now), lag, status_text(fire.status))
    table.show(to)
