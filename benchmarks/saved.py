"""What was saved: `docs/benchmarks/results.json`, from which the page and the plots are made.

It is saved in parts, one workload on one engine each, so that a long run may be stopped and taken
up again, and a part be measured anew. Figures are compared within a part only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results import Measurement, Results

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
FILE = FOLDER / "results.json"

SAME_MACHINE = ("processor", "memory")
"""What must not have changed for figures to stand on one page."""


@dataclass(frozen=True)
class Part:
    """One workload on one engine, measured in one go."""

    workload: str
    engine: str
    taken: str
    """When it was begun."""
    seconds: float
    code: str
    """The commit of pulsed that was measured."""
    scale: dict[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        return self.workload, self.engine

    def repeats(self, other: Part) -> bool:
        """Say whether the other is of the same code and size; unsaved changes are no code."""
        same = (self.key, self.code, self.scale) == (other.key, other.code, other.scale)
        return same and not self.code.endswith("changes")


@dataclass
class Saved:
    """All parts so far."""

    machine: dict[str, str] = field(default_factory=dict)
    parts: dict[tuple[str, str], Part] = field(default_factory=dict)
    results: Results = field(default_factory=lambda: Results(""))

    def put(self, part: Part, results: Results) -> None:
        """Add a part, or replace it as a whole."""
        self.parts[part.key] = part
        self.results.replace(*part.key, results)
        self.results.about |= results.about

    def has(self, part: Part) -> bool:
        known = self.parts.get(part.key)
        return known is not None and known.repeats(part)

    def on(self, machine: dict[str, str]) -> Saved:
        """Return what may stand beside figures of this machine: nothing of another one."""
        if any(self.machine.get(name) != machine[name] for name in SAME_MACHINE):
            return Saved(machine)
        return Saved(machine, self.parts, self.results)

    def write(self, file: Path = FILE) -> None:
        """Write it whole or not at all, for the run may be interrupted at any time."""
        file.parent.mkdir(parents=True, exist_ok=True)
        about = {"machine": self.machine, "about": self.results.about}
        head = json.dumps(about, indent=1, ensure_ascii=False).removesuffix("\n}")
        parts = ",\n  ".join(_line(asdict(part)) for part in self.parts.values())
        lines = ",\n  ".join(_line(_rounded(measurement)) for measurement in self.results)
        text = f'{head},\n "parts": [\n  {parts}\n ],\n "measurements": [\n  {lines}\n ]\n}}\n'
        draft = file.with_suffix(".new")
        draft.write_text(text, "utf-8")
        draft.replace(file)


def _line(content: dict[str, Any]) -> str:
    """Write it as one line, so that a change can be read."""
    return json.dumps(content, ensure_ascii=False)


def _rounded(measurement: Measurement) -> dict[str, Any]:
    samples = [float(f"{sample:.5g}") for sample in measurement.samples]
    return asdict(measurement) | {"samples": samples}


def read(file: Path = FILE) -> Saved | None:
    """Return what was saved last, if anything was."""
    if not file.exists():
        return None
    content = json.loads(file.read_text("utf-8"))
    results = Results("", [Measurement(**m) for m in content["measurements"]])
    results.about = content["about"]
    parts = [Part(**part) for part in content["parts"]]
    return Saved(content["machine"], {part.key: part for part in parts}, results)
