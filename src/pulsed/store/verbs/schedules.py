"""The verbs on schedules: declaring, changing and reading them. ``firing.py`` fires them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from pulsed.batches import text_size
from pulsed.errors import InvalidOption, ScheduleChanged
from pulsed.model.schedule import (
    ScheduleFilter,
    ScheduleKey,
    ScheduleRow,
    ScheduleSpec,
    ScheduleState,
    Version,
    first_occurrence,
)
from pulsed.model.timetable import Once
from pulsed.store.schedules import Put
from pulsed.store.sql import rows as decode
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.reads import clock
from pulsed.store.verbs.script import Script, Verb, VerbKind, verb

SPEC_BYTES = 400
"""The approximate size of a schedule without its payload."""


class ScheduleChange(NamedTuple):
    """A schedule as a caller or a declaration wants it to be."""

    app: str
    name: str
    spec: ScheduleSpec
    declared: bool
    new_id: UUID
    """The id of the schedule if it has to be created."""
    seen: Version | None = None
    """The only version that may be changed; None for any."""


def put(engine: Engine, wanted: ScheduleChange) -> Verb[Put]:
    """Create a schedule or change it; one that is already as wanted is left alone.

    A retry remembers what an unacknowledged try was about to do.
    """
    meant = "unchanged"

    def script() -> Script[Put]:
        nonlocal meant
        now = yield from clock(engine)
        for _ in range(2):  # the second time if another process inserted it meanwhile
            found = yield Statement(engine.schedules.get, {"app": wanted.app, "name": wanted.name})
            if found:
                row = decode.schedule(engine.dialect, found[0])
                if _says(row, wanted):
                    return Put(row, "created" if row.id == wanted.new_id else meant)
                meant = "changed"
                return (yield from _change(engine, row, wanted, now))
            if wanted.seen is not None:
                raise changed_meanwhile(wanted)
            made = yield Statement(engine.schedules.insert, _new_values(wanted, now))
            if made:
                return Put(decode.schedule(engine.dialect, made[0]), "created")
        raise AssertionError("a schedule was deleted and created again within a moment, twice")

    return Verb("put_schedule", VerbKind.TRANSACTION, script)


def size(wanted: ScheduleChange) -> int:
    """Return the approximate size of a schedule in bytes."""
    return text_size(wanted.spec.payload) + SPEC_BYTES


def declare(engine: Engine, wanted: Sequence[ScheduleChange]) -> Verb[dict[str, str]]:
    """Write the schedules that a program declares; returns the effect on each, by name.

    One that another process inserts or changes at the same time is left out: declare it again.
    A retry remembers what an unacknowledged try was about to do.
    """
    app = {"app": wanted[0].app}
    meant: dict[str, str] = {}

    def script() -> Script[dict[str, str]]:
        now = yield from clock(engine)
        found = yield Statement(engine.schedules.read_named, app, [(each.name,) for each in wanted])
        rows = {row.name: row for row in decode.schedule.all(engine.dialect, found)}
        effects: dict[str, str] = {}
        new, changed = [], []
        for each in wanted:
            row = rows.get(each.name)
            if row is None:
                new.append(_declared_values(each, now))
            elif _says(row, each):
                was = "created" if row.id == each.new_id else meant.get(each.name, "unchanged")
                effects[each.name] = was
            else:
                meant[each.name] = "changed"
                changed.append(_redeclared_values(row, each, now))
        if new:
            made = yield Statement(engine.schedules.insert_declared, app, new)
            effects |= {name: "created" for (name,) in made}
        if changed:
            done = yield Statement(engine.schedules.update_declared, {}, changed)
            effects |= {name: "changed" for (name,) in done}
        return effects

    return Verb("declare_schedules", VerbKind.TRANSACTION, script)


def _declared_values(wanted: ScheduleChange, now: datetime) -> tuple[object, ...]:
    values = _new_values(wanted, now)
    return tuple(values[name] for name in ("id", "name", "spec", "state", "anchor", "cursor"))


def _redeclared_values(
    row: ScheduleRow, wanted: ScheduleChange, now: datetime
) -> tuple[object, ...]:
    anchor, cursor = _phase_after_change(row, wanted.spec, now)
    state = _state_after(row, cursor).value
    return (*row.version, encode_spec(wanted.spec), state, anchor, cursor)


def _says(row: ScheduleRow, wanted: ScheduleChange) -> bool:
    return row.spec_text == encode_spec(wanted.spec) and row.declared == wanted.declared


def _new_values(wanted: ScheduleChange, now: datetime) -> dict[str, object]:
    """Return a new row. A declaration whose end has passed is valid: workers must still start."""
    spec = wanted.spec
    anchor = spec.start or now
    cursor = first_occurrence(
        spec.timetable, now=now, anchor=anchor, start=spec.start, end=spec.end
    )
    if cursor is None and not wanted.declared:
        raise InvalidOption(f"Schedule {wanted.name!r} would never run: nothing is to come.")
    return {
        "id": wanted.new_id,
        "app": wanted.app,
        "name": wanted.name,
        "spec": encode_spec(spec),
        "declared": wanted.declared,
        "state": (ScheduleState.DONE if cursor is None else ScheduleState.ACTIVE).value,
        "anchor": anchor,
        "cursor": cursor,
    }


def _change(engine: Engine, row: ScheduleRow, wanted: ScheduleChange, now: datetime) -> Script[Put]:
    anchor, cursor = _phase_after_change(row, wanted.spec, now)
    if cursor is None and row.state is not ScheduleState.DONE and not wanted.declared:
        raise InvalidOption(f"Schedule {row.name!r} would never run again: nothing is to come.")
    changed = yield Statement(
        engine.schedules.update,
        {
            **(wanted.seen or row.version)._asdict(),
            "spec": encode_spec(wanted.spec),
            "declared": wanted.declared,
            "state": _state_after(row, cursor).value,
            "anchor": anchor,
            "cursor": cursor,
        },
    )
    if not changed:
        raise changed_meanwhile(wanted)
    return Put(decode.schedule(engine.dialect, changed[0]), "changed")


def changed_meanwhile(wanted: ScheduleChange) -> ScheduleChanged:
    """Return the error for a schedule that another process has changed or deleted."""
    return ScheduleChanged(
        f"Schedule {wanted.name!r} of app {wanted.app!r} was changed or deleted since it "
        "was read. Nothing was written: read it again, and decide again."
    )


def _state_after(row: ScheduleRow, cursor: datetime | None) -> ScheduleState:
    if cursor is None:
        return ScheduleState.DONE
    return row.state if row.state is ScheduleState.PAUSED else ScheduleState.ACTIVE


def _phase_after_change(
    row: ScheduleRow, spec: ScheduleSpec, now: datetime
) -> tuple[datetime, datetime | None]:
    """Return anchor and cursor. While the timetable stays, an occurrence that is due stays due."""
    try:
        old = row.spec
    except InvalidOption:  # written by another program
        old = None
    if old is not None and old.times == spec.times:
        return row.anchor, row.next_run_at
    same_phase = old is not None and (old.every, old.start) == (spec.every, spec.start)
    anchor = row.anchor if same_phase else spec.start or now
    return anchor, _cursor_after(row, spec, now, anchor)


def _cursor_after(
    row: ScheduleRow, spec: ScheduleSpec, now: datetime, anchor: datetime
) -> datetime | None:
    """Return the next occurrence after all that were fired, even if the clock was set back."""
    if isinstance(spec.timetable, Once):
        fired = row.last_occurrence is not None and spec.timetable.at <= row.last_occurrence
        return None if fired else spec.timetable.at
    after = now if row.last_occurrence is None else max(now, row.last_occurrence)
    return first_occurrence(
        spec.timetable, now=after, anchor=anchor, start=spec.start, end=spec.end
    )


@verb(VerbKind.READ, name="get_schedule")
def get(engine: Engine, app: str, name: str) -> Script[ScheduleRow | None]:
    """Read a schedule."""
    found = yield Statement(engine.schedules.read, {"app": app, "name": name})
    return decode.schedule(engine.dialect, found[0]) if found else None


@verb(VerbKind.READ, name="find_schedule")
def find(engine: Engine, schedule_id: UUID) -> Script[ScheduleRow | None]:
    """Read a schedule by its id."""
    found = yield Statement(engine.schedules.find, {"id": schedule_id})
    return decode.schedule(engine.dialect, found[0]) if found else None


@verb(VerbKind.READ)
def list_schedules(
    engine: Engine, where: ScheduleFilter, limit: int, after: ScheduleKey | None
) -> Script[list[ScheduleRow]]:
    """Read a page of schedules, by app and name."""
    after = after or ScheduleKey("" if where.app is None else where.app, "")
    params = {
        "after_app": after.app,
        "after_name": after.name,
        "state": None if where.state is None else where.state.value,
        "due_before": where.due_before,
        "most": limit,
    }
    if where.app is None:
        found = yield Statement(engine.schedules.list, params)
    else:
        found = yield Statement(engine.schedules.list_of_app, params | {"app": where.app})
    return decode.schedule.all(engine.dialect, found)


@verb(VerbKind.TRANSACTION, name="pause_schedule")
def pause(engine: Engine, app: str, name: str) -> Script[ScheduleRow | None]:
    """Stop firing; the cursor stays where it is."""
    row = yield from _locked(engine, app, name)
    if row is None or row.state in (ScheduleState.PAUSED, ScheduleState.DONE):
        return row
    return (yield from _set_state(engine, row, ScheduleState.PAUSED, row.next_run_at))


@verb(VerbKind.TRANSACTION, name="resume_schedule")
def resume(engine: Engine, app: str, name: str) -> Script[ScheduleRow | None]:
    """Resume at the next occurrence; those that passed while paused are not made up for."""
    now = yield from clock(engine)
    row = yield from _locked(engine, app, name)
    if row is None or row.state in (ScheduleState.ACTIVE, ScheduleState.DONE):
        return row
    cursor = _cursor_after(row, row.spec, now, row.anchor)
    state = ScheduleState.DONE if cursor is None else ScheduleState.ACTIVE
    return (yield from _set_state(engine, row, state, cursor))


def _locked(engine: Engine, app: str, name: str) -> Script[ScheduleRow | None]:
    """Read a schedule, and lock it until this transaction ends."""
    found = yield Statement(engine.schedules.get, {"app": app, "name": name})
    return decode.schedule(engine.dialect, found[0]) if found else None


def _set_state(
    engine: Engine,
    row: ScheduleRow,
    state: ScheduleState,
    cursor: datetime | None,
) -> Script[ScheduleRow]:
    changed = yield Statement(
        engine.schedules.set_state,
        {
            "id": row.id,
            "revision": row.revision,
            "state": state.value,
            "cursor": cursor,
        },
    )
    return decode.schedule(engine.dialect, changed[0]) if changed else row


def delete(engine: Engine, app: str, name: str) -> Verb[bool]:
    """Remove a schedule; the jobs it made stay. A retry remembers that it existed."""
    existed = False

    def script() -> Script[bool]:
        nonlocal existed
        existed = existed or bool(
            (yield Statement(engine.schedules.get, {"app": app, "name": name}))
        )
        yield Statement(engine.schedules.delete, {"app": app, "name": name})
        return existed

    return Verb("delete_schedule", VerbKind.TRANSACTION, script)


@verb(VerbKind.TRANSACTION, name="prune_schedules", looks_for_work=True)
def prune(engine: Engine, age: float, limit: int) -> Script[int]:
    """Remove schedules that were not declared and have been done for ``age`` seconds."""
    [(count,)] = yield Statement(engine.schedules.prune, {"age": age, "most": limit})
    return int(count)


def encode_spec(spec: ScheduleSpec) -> str:
    """Return a spec as text; equal specs have equal texts."""
    return msgspec.json.encode(spec, order="sorted").decode()
