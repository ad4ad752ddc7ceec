"""Validation of what runs emit."""

from __future__ import annotations

from typing import Any

from pulsed.handler.options import checked_count
from pulsed.model.stream import LARGEST_STORED, LAST_POSITION, MOST_RUNS, Emission
from pulsed.rpc.messages.errors import invalid
from pulsed.rpc.messages.streams import emission_of
from pulsed.rpc.server.checks import items as checks
from pulsed.rpc.server.json_text import checked_json


def emission(message: Any) -> Emission:
    """Return the items of a message, if they can be stored."""
    emitted: Emission = checks.converted(emission_of, message)
    if not emitted.values:
        raise invalid("An emission must have values.")
    checked_count("run", emitted.run, 1, MOST_RUNS)
    checked_count("first", emitted.first, 1, LAST_POSITION - len(emitted.values))
    for value in emitted.values:
        checked_item(value)
    return emitted


def checked_item(value: str) -> None:
    """Refuse an item that is not JSON, or is too large."""
    if len(value.encode()) > LARGEST_STORED:
        raise invalid(
            f"An item of a stream has at most {LARGEST_STORED:,} bytes, and this one "
            f"{len(value.encode()):,}."
        )
    checked_json("An item of a stream", value)
