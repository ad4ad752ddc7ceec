"""The parts of a store."""

from typing import Any


def part_with(store: Any, verb: str) -> Any:
    """Return the part of a store that has a verb: itself, its workflows, or its schedules."""
    parts = (store, store.workflows, store.schedules)
    return next(part for part in parts if hasattr(part, verb))
