"""What earlier runs have learned: which test uses which statements, and which killed a mutant.

It only makes runs faster, and is kept outside of the repository's history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parents[2] / ".mutation"


@dataclass
class Known:
    """A test as it ran without a mutant."""

    seconds: float
    statements: list[str]


class Decided(NamedTuple):
    """What became of a mutant, as a run that is resumed takes it over."""

    outcome: str
    killer: str
    tests: int
    texts: str
    """A digest of the mutant's texts: one that was changed since is run again."""


@dataclass
class Memory:
    """What is known about the tests and mutants of one engine."""

    path: Path
    tests: dict[str, Known] = field(default_factory=dict)
    """By their ids; one that failed is not here."""
    killers: dict[str, str] = field(default_factory=dict)
    """The tests that killed mutants, by the mutants' names."""
    decided: dict[str, Decided] = field(default_factory=dict)
    """The mutants of the last run, by their names; ``--resume`` goes on with the others."""
    took: float = 0.0
    """Seconds that this run, and those that it resumed, have taken so far."""

    @classmethod
    def of(cls, engine: str, folder: Path = FOLDER) -> Memory:
        """Read what is known about an engine, perhaps nothing."""
        memory = cls(folder / f"{engine}.json")
        if memory.path.exists():
            stored = json.loads(memory.path.read_text("utf-8"))
            memory.tests = {name: Known(**known) for name, known in stored["tests"].items()}
            memory.killers = stored["killers"]
            decided = stored.get("decided", {}).items()
            memory.decided = {name: Decided(*values) for name, values in decided}
            memory.took = stored.get("took", 0.0)
        return memory

    def begin_again(self, mutants: Iterable[str]) -> None:
        """Forget what was decided about these mutants; what was learned is kept."""
        for name in mutants:
            self.decided.pop(name, None)
        if not self.decided:
            self.took = 0.0

    def save(self) -> None:
        """Write it, at once or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        stored = {name: each for name, each in asdict(self).items() if name != "path"}
        new.write_text(json.dumps(stored), "utf-8")
        new.replace(self.path)
