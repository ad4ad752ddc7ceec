"""From a failing run to the fewest faults that still make it fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from pulsed.store.verbs.engine import Engine
from tests.simulation.faults import Fault
from tests.simulation.run import Verdict, simulate

T = TypeVar("T")


def shrunk(found: Verdict, engine: Engine | None = None) -> Verdict:
    """Return the same failure with as few faults as it needs, each as short as it can be."""
    best = found

    def still_fails(faults: Sequence[Fault]) -> bool:
        nonlocal best
        verdict = simulate(found.seed, faults, engine)
        if _invariants(verdict) & _invariants(found):
            best = verdict
            return True
        return False

    minimal(list(found.struck), still_fails)
    return replace(best, faults=best.struck)


def minimal(items: list[T], still_fails: Callable[[list[T]], bool]) -> list[T]:
    """Return a part of a failing list that passes if any one item is removed (delta debugging)."""
    if still_fails([]):
        return []
    parts = 2
    while len(items) >= 2:
        size = max(1, len(items) // parts)
        rests = [items[:at] + items[at + size :] for at in range(0, len(items), size)]
        smaller = next((rest for rest in rests if rest and still_fails(rest)), None)
        if smaller is not None:
            items, parts = smaller, max(parts - 1, 2)
        elif size == 1:
            break
        else:
            parts = min(2 * parts, len(items))
    return items


def _invariants(verdict: Verdict) -> set[str]:
    return {violation.split(":")[0] for violation in verdict.violations}
