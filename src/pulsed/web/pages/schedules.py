"""Schedules: when they are due, what they did, and changing them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from pulsed.app import Pulse
from pulsed.client.schedules import Schedule, Schedules
from pulsed.engine.doctor.finding import WAITED_TOO_LONG
from pulsed.engine.why import live
from pulsed.errors import InvalidJob, InvalidOption, PulsedError
from pulsed.model.job import WorkerInfo
from pulsed.model.schedule import (
    ScheduleFilter,
    ScheduleKey,
    ScheduleRow,
    ScheduleSpec,
    ScheduleState,
)
from pulsed.store.schedules import FireMark
from pulsed.web.json_text import NotJson, edited, pretty
from pulsed.web.render import path
from pulsed.web.schedule_form import FIELDS, JSON_FIELDS, changes, faulty_field, texts_of
from pulsed.web.site import PageCall
from pulsed.wording import format_duration

PAGE_SIZE = 15
FIRES = 50
"""Fires that are shown of each schedule."""
COMING = 5
KEPT = 5.0
"""Seconds for which the list is shared by all tabs."""

SHAPES = {
    ScheduleState.ACTIVE: "●",
    ScheduleState.PAUSED: "◐",
    ScheduleState.DONE: "✓",
    ScheduleState.ERROR: "▲",
}


class ScheduleLine(NamedTuple):
    """A schedule as the page shows it."""

    schedule: Schedule
    when: str
    problem: str
    """Why it makes no jobs although it should; empty if all is well."""
    is_overdue: bool
    fires: Sequence[FireMark]
    """The last ones, the oldest first."""

    @property
    def shape(self) -> str:
        """A shape for its state: colour alone is not enough to tell them apart."""
        return SHAPES[self.schedule.state]


async def show(call: PageCall) -> Response:
    """Show the schedules of all apps in the database."""
    after = (call.query.get("after_app", ""), call.query.get("after", ""))
    cursor = ScheduleKey(*after) if all(after) else None
    (lines, is_last), _ = await asyncio.gather(
        call.site.shared.get(("schedules", cursor), lambda: _read(call.app, cursor), seconds=KEPT),
        call.site.summary(),
    )
    last = lines[-1].schedule if lines and not is_last else None
    return await call.page(
        "schedules.html",
        lines=lines,
        is_first=cursor is None,
        with_app=len({line.schedule.app for line in lines} | {call.app.name}) > 1,
        more=call.url("/schedules", after_app=last.app, after=last.name) if last else None,
        link=lambda schedule: call.url(_address(schedule.name), app=schedule.app),
    )


async def _read(app: Pulse, cursor: ScheduleKey | None) -> tuple[list[ScheduleLine], bool]:
    store = app.store
    rows, workers, now = await asyncio.gather(
        store.schedules.list_page(ScheduleFilter(), limit=PAGE_SIZE + 1, after=cursor),
        store.workers(),
        store.now(),
    )
    shown = rows[:PAGE_SIZE]
    fires = await store.schedules.last_fires([row.id for row in shown], limit=FIRES)
    lines = [line_of(row, fires[row.id], workers, now) for row in shown]
    return lines, len(rows) <= PAGE_SIZE


def line_of(
    row: ScheduleRow, fires: Sequence[FireMark], workers: Sequence[WorkerInfo], now: datetime
) -> ScheduleLine:
    """Return what the page shows of a schedule; ``fires`` has the latest first."""
    schedule = Schedule(row)
    try:
        when = schedule.description
    except PulsedError as error:
        when = f"its definition cannot be read: {error}"
    late = (now - row.next_run_at).total_seconds() if row.next_run_at else 0.0
    is_overdue = row.state is ScheduleState.ACTIVE and late > WAITED_TOO_LONG
    problem = row.error or "" if row.state is ScheduleState.ERROR else ""
    if is_overdue:
        reason = (
            "no worker is alive to fire it"
            if not live(workers, now)
            else "no live worker fires it: were they started with --no-schedules, or is its time "
            "zone unknown to them?"
        )
        problem = f"overdue for {format_duration(late)}: {reason}"
    return ScheduleLine(schedule, when, problem, is_overdue, list(reversed(fires)))


async def show_one(call: PageCall) -> Response:
    """Show a schedule."""
    return await _page(call, call.query.get("app") or call.app.name)


async def _page(
    call: PageCall,
    app: str,
    *,
    status: int = 200,
    typed: dict[str, str] | None = None,
    problem: str = "",
) -> Response:
    name = call.path("name")
    (schedule, line, now), _ = await asyncio.gather(
        call.site.shared.get(("schedule", app, name), lambda: _read_one(call.app, app, name)),
        call.site.summary(),
    )
    is_readable = not line.when.startswith("its definition")
    is_active = schedule.state is ScheduleState.ACTIVE
    return await call.page(
        "schedule.html",
        status=status,
        line=line,
        schedule=schedule,
        spec=schedule.spec if is_readable else None,
        coming=schedule.next(COMING) if is_readable and is_active else [],
        now=now,
        base=_address(schedule.name),
        fields=FIELDS,
        values=(typed or _values(call, schedule)) if is_readable else {},
        json_fields=[name for name in JSON_FIELDS if call.visitor.may_see_payloads],
        problem=problem,
        faulty=faulty_field(problem) if problem else "",
        refresh=call.url(_address(schedule.name), app=schedule.app),
        payload=_payload(call, schedule) if is_readable else None,
        headers=_headers(call, schedule) if is_readable else None,
    )


async def _read_one(app: Pulse, owner: str, name: str) -> tuple[Schedule, ScheduleLine, datetime]:
    store = app.store
    schedule = await app.schedules.of(owner).aget(name)
    fires, workers, now = await asyncio.gather(
        store.schedules.last_fires([schedule.id], limit=FIRES), store.workers(), store.now()
    )
    return schedule, line_of(schedule.row, fires[schedule.id], workers, now), now


def _payload(call: PageCall, schedule: Schedule) -> str | None:
    if not call.visitor.may_see_payloads:
        return None
    return pretty(schedule.spec.payload, call.site.redaction)


def _headers(call: PageCall, schedule: Schedule) -> Any:
    if not call.visitor.may_see_payloads:
        return None
    return call.site.redaction.apply(schedule.spec.headers or {})


def _values(call: PageCall, schedule: Schedule) -> dict[str, str]:
    """Return what the form shows: payload and headers only to who may see them."""
    values = texts_of(schedule.spec)
    if call.visitor.may_see_payloads:
        for name in JSON_FIELDS:
            values[name] = pretty(_stored(schedule.spec, name), call.site.redaction)
    return values


def _typed(call: PageCall, spec: ScheduleSpec, name: str, text: str) -> Any:
    """Return what was typed as JSON; what is hidden and was left alone stays as it is."""
    try:
        stored = edited(text, _stored(spec, name), call.site.redaction)
    except NotJson as error:
        raise InvalidOption(f"{name}: {error}") from error
    return msgspec.json.decode(stored)


def _stored(spec: ScheduleSpec, name: str) -> str:
    """Return the JSON text of a field that is edited as JSON."""
    return spec.payload if name == "payload" else msgspec.json.encode(spec.headers or {}).decode()


# -- acts -----------------------------------------------------------------------------------------


async def run_now(call: PageCall) -> Response:
    """Enqueue its job now."""
    schedules, name, back = _target(call)
    job = await schedules.arun_now(name)
    return call.done(f"Enqueued job {job.id} of schedule {name}.", back)


async def pause(call: PageCall) -> Response:
    """Stop making jobs."""
    schedules, name, back = _target(call)
    await schedules.apause(name)
    return call.done(f"Schedule {name} is paused.", back)


async def resume(call: PageCall) -> Response:
    """Make jobs again, from the next occurrence on."""
    schedules, name, back = _target(call)
    await schedules.aresume(name)
    return call.done(f"Schedule {name} is active again.", back)


async def edit(call: PageCall) -> Response:
    """Change what was changed in the form; what is wrong is said at its field."""
    schedules, name, back = _target(call)
    old = await schedules.aget(name)
    shown = _values(call, old)
    given = {name: call.given(name, shown[name]) for name in shown}
    typed = {name: text.replace("\r\n", "\n").strip() for name, text in given.items()}
    try:
        changed = changes(shown, typed)
        for field in JSON_FIELDS:
            if changed.get(field) is not None:
                changed[field] = _typed(call, old.spec, field, typed[field])
        if changed:
            await schedules.aedit(name, **changed)
    except InvalidJob as error:
        return await _page(call, old.app, status=400, typed=typed, problem=str(error))
    if not changed:
        return call.done("Nothing was changed.", back)
    return call.done(f"Schedule {name} is changed: {', '.join(changed)}.", back)


async def delete(call: PageCall) -> Response:
    """Remove a schedule."""
    schedules, name, _ = _target(call)
    if call.given("sure") != "yes":
        raise InvalidOption("Tick the box to confirm: a deleted schedule cannot be brought back.")
    await schedules.adelete(name)
    return call.done(f"Schedule {name} is deleted; the jobs that it made stay.", "/schedules")


def _target(call: PageCall) -> tuple[Schedules, str, str]:
    """Return the schedules of the app that the form names, the name, and where to go then."""
    app, name = call.given("app") or call.app.name, call.path("name")
    return call.app.schedules.of(app), name, call.back(_address(name))


def _address(name: str) -> str:
    return f"/schedules/{path(name)}"
