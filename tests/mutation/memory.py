"""What earlier runs have learned: which test uses which statements, and which killed a mutant.

It only makes runs faster, and is kept outside of the repository's history.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / ".mutation"


@dataclass
class Known:
    """A test as it ran without a mutant."""

    seconds: float
    statements: list[str]


@dataclass
class Memory:
    """What is known about the tests and mutants of one engine."""

    path: Path
    tests: dict[str, Known] = field(default_factory=dict)
    """By their ids; one that failed is not here."""
    killers: dict[str, str] = field(default_factory=dict)
    """The tests that killed mutants, by the mutants' names."""

    @classmethod
    def of(cls, engine: str, folder: Path = FOLDER) -> Memory:
        """Read what is known about an engine, perhaps nothing."""
        memory = cls(folder / f"{engine}.json")
        if memory.path.exists():
            stored = json.loads(memory.path.read_text("utf-8"))
            memory.tests = {name: Known(**known) for name, known in stored["tests"].items()}
            memory.killers = stored["killers"]
        return memory

    def save(self) -> None:
        """Write it, at once or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        tests = {name: asdict(known) for name, known in self.tests.items()}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"tests": tests, "killers": self.killers}), "utf-8")
        new.replace(self.path)
