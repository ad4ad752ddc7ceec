"""What became of the mutants."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import NamedTuple

from tests.mutation.changes import Kind
from tests.mutation.explained import reason_for
from tests.mutation.mutants import Mutant


class Outcome(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    COVERED = "covered"
    """Another guard of the statement does the same; without both a test fails."""
    EXPLAINED = "explained"
    SURVIVED = "survived"


class Verdict(NamedTuple):
    """What became of a mutant, and by which test."""

    mutant: Mutant
    outcome: Outcome
    killer: str
    """The test that failed; empty if none did."""
    tests: int
    """How many could have; 0 if it was killed in an earlier run."""


class Verdicts:
    """The verdicts of a run, by mutant."""

    def __init__(self) -> None:
        self._of: dict[str, Verdict] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, mutant: Mutant) -> bool:
        return mutant.name in self._of

    def add(self, verdict: Verdict) -> Verdict:
        """Note what became of a mutant; a survivor may be explained."""
        if verdict.outcome is Outcome.SURVIVED and reason_for(verdict.mutant) is not None:
            verdict = verdict._replace(outcome=Outcome.EXPLAINED)
        self._of[verdict.mutant.name] = verdict
        return verdict

    def cover(self, mutant: Mutant) -> Verdict:
        """Note that another guard of the statement covers for a survivor's."""
        if self._of[mutant.name].outcome is Outcome.SURVIVED:
            self._of[mutant.name] = self._of[mutant.name]._replace(outcome=Outcome.COVERED)
        return self._of[mutant.name]

    def forget_kills_but_of(self, tests: AbstractSet[str]) -> None:
        """Keep no verdict of a test that is not there any more."""
        for name, each in list(self._of.items()):
            if each.outcome is Outcome.KILLED and each.killer not in tests:
                del self._of[name]

    def survivors(self) -> list[Mutant]:
        """Return those that no test needs, and that nothing explains."""
        return [each.mutant for each in self._of.values() if each.outcome is Outcome.SURVIVED]

    def pairs(self) -> Iterator[tuple[Mutant, Mutant]]:
        """Yield each survivor with each other one of its statement, explained or not."""
        alive = [each.mutant for each in self._of.values() if each.outcome is Outcome.EXPLAINED]
        alive = [mutant for mutant in alive if mutant.kind is not Kind.ONCE]
        left = self.survivors()
        for at, mutant in enumerate(left):
            for other in (*left[at + 1 :], *alive):
                if mutant.statement == other.statement:
                    yield mutant, other

    def killers(self) -> set[str]:
        """Return the tests that killed mutants in this run."""
        killed = [each for each in self._of.values() if each.outcome is Outcome.KILLED]
        return {each.killer for each in killed if each.tests}

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many had each outcome, by the kind of what was taken out."""
        table: dict[str, Counter[str]] = defaultdict(Counter)
        for each in self._of.values():
            table[each.mutant.kind.value][each.outcome.value] += 1
        return {kind.value: dict(table[kind.value]) for kind in Kind if kind.value in table}
