"""The form in which an operator sets the numbers of a queue or a limit."""

from __future__ import annotations

from typing import Any, NamedTuple

from pulsed.model.control import Control, described
from pulsed.model.control_text import typed_numbers
from pulsed.web.site import PageCall


class ControlField(NamedTuple):
    """A field of the form."""

    name: str
    label: str
    hint: str


RUNNING = ControlField("running", "Jobs at the same time", "5")
RATE = ControlField("rate", "Starts per time", "60/1m")
BURST = ControlField("burst", "of those, at once", "10")
AGE = ControlField("age", "Waiting that raises a priority by 1", "5m")

OF_LIMITS = (RUNNING, RATE, BURST)
OF_QUEUES = (RUNNING, RATE, BURST, AGE)


def typed_in(call: PageCall, fields: tuple[ControlField, ...]) -> dict[str, Any]:
    """Return the numbers in a form. A field that was emptied means that there is no such limit."""
    return typed_numbers({field.name: call.given(field.name) for field in fields})


def whose(control: Control) -> str:
    """Return in words where the numbers come from."""
    if control.override is None:
        return "declared by the code" if control.declared is not None else ""
    declared = "nothing" if control.declared is None else described(control.declared)
    return f"set by an operator; the code declares {declared}"
