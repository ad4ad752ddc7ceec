"""What a server accepts of the controls of queues, topics and limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pulsed.errors import InvalidOption
from pulsed.model.checked import checked_name
from pulsed.model.control import ControlKey, ControlScope, Numbers
from pulsed.rpc.messages.controls import numbers_of, scope_of
from pulsed.rpc.messages.errors import invalid
from pulsed.rpc.server.access import Caller
from pulsed.rpc.server.checks.items import converted

MOST_RATES = 1_000
LONGEST_KEY = 1_000
"""Characters of a rate's key."""


def key_of(request: Any, caller: Caller) -> ControlKey:
    """Return the name of a control that the caller may use."""
    wanted = scope(request.scope)
    name = checked_name(f"name of the {wanted}", request.name)
    caller.check_control(wanted, name)
    return ControlKey(wanted, name)


def scope(number: int) -> ControlScope:
    """Return what a control governs."""
    found: ControlScope = converted(scope_of, number)
    return found


def numbers(message: Any) -> Numbers:
    """Return numbers, if they are in range."""
    found: Numbers = converted(numbers_of, message)
    for value in found.weights:
        if not value.isprintable():
            raise invalid(f"A weight is for a printable value, not {value!a:.60}.")
    return found


def fields(names: Sequence[str]) -> list[str] | None:
    """Return which numbers are meant; None: all of them."""
    for name in names:
        if name not in Numbers.__struct_fields__:
            raise InvalidOption(f"A control has no number {name!r:.60}.")
    return list(dict.fromkeys(names)) or None


def rate_keys(keys: Any, wanted: ControlScope, caller: Caller) -> list[str]:
    """Return the keys of rates, each of a control that the caller may use."""
    if len(keys) > MOST_RATES:
        raise invalid(f"{len(keys):,} rates are too many for one request: at most {MOST_RATES:,}.")
    for key in keys:
        if len(key) > LONGEST_KEY:
            raise invalid(f"A rate's key has at most {LONGEST_KEY:,} characters.")
        caller.check_control(wanted, key.partition(",")[0])
    return list(keys)
