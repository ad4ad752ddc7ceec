"""The verbs on controls. A control that governs nothing has no row, so that claims stay fast."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from pulsed.errors import InvalidOption
from pulsed.model.audit import LONGEST_NAME, Operator, printable
from pulsed.model.control import (
    MOST_CONTROLS,
    NO_NUMBERS,
    Control,
    ControlKey,
    ControlScope,
    Numbers,
    changed,
    encoded,
)
from pulsed.store.sql import rows as decode
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, Verb, VerbKind, verb

Change = Callable[[Control], Control]


class Changed(NamedTuple):
    """A control after an act, and whether the act has changed it."""

    control: Control
    is_new: bool


@verb(VerbKind.READ, name="get_control")
def get(engine: Engine, scope: ControlScope, name: str) -> Script[Control]:
    """Read a control; a neutral one if there is no row."""
    return (yield from read(engine, ControlKey(scope, name)))


def read(engine: Engine, key: ControlKey, *, lock: bool = False) -> Script[Control]:
    """Read a control as part of a verb, and lock it if it is about to be changed."""
    sql = engine.controls.lock_control if lock else engine.controls.read_control
    found = yield Statement(sql, {"scope": key.scope.value, "name": key.name})
    if not found:
        return Control(scope=key.scope, name=key.name)
    return decode.control(engine.dialect, found[0])


@verb(VerbKind.READ)
def list_controls(
    engine: Engine, scope: ControlScope | None, limit: int, after: ControlKey | None
) -> Script[list[Control]]:
    """Read a page of controls, by scope and name."""
    params = {
        "scope": None if scope is None else scope.value,
        "after_scope": "" if after is None else after.scope.value,
        "after_name": "" if after is None else after.name,
        "most": limit,
    }
    return decode.control.all(
        engine.dialect, (yield Statement(engine.controls.list_controls, params))
    )


def pause(engine: Engine, key: ControlKey, by: Operator | None) -> Verb[Changed]:
    """Pause; the first who did stays recorded."""
    who = None if by is None else printable(by.actor, LONGEST_NAME)

    def paused(control: Control) -> Control:
        return control if control.paused else replace(control, paused=True, paused_by=who)

    return _act("pause_control", engine, key, paused)


def resume(engine: Engine, key: ControlKey) -> Verb[Changed]:
    """Resume."""
    return _act(
        "resume_control", engine, key, lambda old: replace(old, paused=False, paused_by=None)
    )


def override(
    engine: Engine, key: ControlKey, numbers: Numbers, fields: Collection[str] | None
) -> Verb[Changed]:
    """Set an operator's numbers, or some of them."""

    def overridden(control: Control) -> Control:
        new = numbers if fields is None else changed(control.numbers, numbers, fields)
        return replace(control, override=new)

    return _act("override_control", engine, key, overridden)


def clear(engine: Engine, key: ControlKey) -> Verb[Changed]:
    """Return to the declared numbers."""
    return _act("clear_control", engine, key, lambda old: replace(old, override=None))


def _act(name: str, engine: Engine, key: ControlKey, change: Change) -> Verb[Changed]:
    """Return the verb that changes a control; a retry remembers what it was about to do."""
    meant = False

    def script() -> Script[Changed]:
        nonlocal meant
        yield from _lock(engine, [key])
        done = yield from _change(engine, key, change)
        meant = meant or done.is_new
        return done._replace(is_new=meant)

    return Verb(name, VerbKind.TRANSACTION, script)


def _change(engine: Engine, key: ControlKey, change: Change) -> Script[Changed]:
    """Change a control whose lock this transaction has."""
    old = None
    with suppress(InvalidOption):  # numbers that cannot be read are replaced, or removed
        old = yield from read(engine, key, lock=True)
    new = change(old or Control(scope=key.scope, name=key.name))
    if new == old:
        return Changed(new, is_new=False)
    if new.is_neutral:
        yield from remove(engine, key)
        return Changed(Control(scope=key.scope, name=key.name), is_new=True)
    if old is not None and old.is_neutral:
        yield from _check_room(engine)
    names = {"scope": key.scope.value, "name": key.name}
    values = {
        "paused": new.paused,
        "paused_by": new.paused_by,
        "declared": encoded(new.declared),
        "override": encoded(new.override),
    }
    [row] = yield Statement(engine.controls.put_control, names | values)
    return Changed(decode.control(engine.dialect, row), is_new=True)


def remove(engine: Engine, key: ControlKey) -> Script[None]:
    """Remove a control that governs nothing, under its lock."""
    names = {"scope": key.scope.value, "name": key.name}
    yield Statement(engine.controls.remove_control, names)


def _lock(engine: Engine, keys: Iterable[ControlKey]) -> Script[None]:
    """Lock controls, also those that have no row yet, and the queues that they govern.

    Claims from these wait, and read what is changed here.
    """
    names = sorted(keys)
    yield from engine.lock_keys(("control", f"{key.scope} {key.name}") for key in names)
    for key in names:
        if key.scope is ControlScope.QUEUE:
            yield from engine.lock_queue(key.name)


@verb(VerbKind.READ)
def claims_in_flight(engine: Engine) -> Script[set[Any]]:
    """Find the claims that may not have seen a control that was just stored."""
    return (yield from engine.claims_in_flight())


def _check_room(engine: Engine) -> Script[None]:
    [(number,)] = yield Statement(engine.controls.count_controls, {"most": MOST_CONTROLS})
    if number >= MOST_CONTROLS:
        raise InvalidOption(
            f"{number:,} queues, topics and limits are governed already, which is the most. Resume "
            "or clear some first. Nothing was changed."
        )


def declare(
    engine: Engine, scope: ControlScope, declared: Mapping[str, Numbers]
) -> Verb[dict[str, str]]:
    """Write a program's numbers, in the order of names, as all programs do."""
    wanted = {
        ControlKey(scope, name): None if numbers == NO_NUMBERS else numbers
        for name, numbers in sorted(declared.items())
    }
    meant: set[str] = set()

    def script() -> Script[dict[str, str]]:
        different = []
        for key, numbers in wanted.items():  # none, at most starts of a worker
            if (yield from read(engine, key)).declared != numbers:
                different.append(key)
        if different:
            yield from _lock(engine, different)
        for key in different:
            declare = partial(_declared_as, wanted[key])
            if (yield from _change(engine, key, declare)).is_new:
                meant.add(key.name)
        return {name: "changed" if name in meant else "unchanged" for name in declared}

    return Verb("declare_controls", VerbKind.TRANSACTION, script)


def _declared_as(numbers: Numbers | None, old: Control) -> Control:
    return replace(old, declared=numbers)


@verb(VerbKind.READ, name="read_rates")
def rates(engine: Engine, scope: ControlScope, keys: Sequence[str]) -> Script[dict[str, datetime]]:
    """Read the theoretical arrival times of rates."""
    return (yield from read_rates(engine, scope, keys))


def read_rates(
    engine: Engine, scope: ControlScope, keys: Sequence[str]
) -> Script[dict[str, datetime]]:
    """Read theoretical arrival times as part of a verb."""
    batch = [(key,) for key in dict.fromkeys(keys)]
    found = yield Statement(engine.controls.read_rates, {"scope": scope.value}, batch)
    return {key: engine.dialect.time(tat) for key, tat in found}


def write_rates(engine: Engine, scope: ControlScope, tats: Mapping[str, datetime]) -> Script[None]:
    """Write theoretical arrival times as part of a verb that has the locks of their keys."""
    batch = sorted(tats.items())
    yield Statement(engine.controls.write_rates, {"scope": scope.value}, batch)
