"""What was saved: `docs/benchmarks/results.json`, from which the page and the plots are made.

It is saved in parts, one workload on one engine each, so that a long run may be stopped and taken
up again, and a part be measured anew. Figures are compared within a part only, and each part says
which machine it was measured on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results import Measurement, Results

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
FILE = FOLDER / "results.json"

NAME = ("processor", "memory")
"""What a machine is called by: figures stand in one table only if these are the same."""

Machine = dict[str, str]
"""What a part was measured on, as ``machine.describe`` says it."""


def name_of(machine: Machine) -> str:
    """Return what tells a machine from another one."""
    return ", ".join(machine.get(part, "unknown") for part in NAME)


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
    machine: Machine = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        return self.workload, self.engine

    @property
    def where(self) -> str:
        """The name of its machine."""
        return name_of(self.machine)

    def repeats(self, other: Part) -> bool:
        """Say whether the other is of the same code, size and machine.

        Uncommitted changes do not count.
        """
        same = (self.key, self.code, self.scale) == (other.key, other.code, other.scale)
        return same and self.where == other.where and not self.code.endswith("changes")


@dataclass
class Saved:
    """All parts so far."""

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

    @property
    def machines(self) -> dict[str, Machine]:
        """The machines by name, that of the most parts first, each as its latest part saw it."""
        by_time = sorted(self.parts.values(), key=lambda part: part.taken)
        latest = {part.where: part.machine for part in by_time}
        number = Counter(part.where for part in by_time)
        return {name: latest[name] for name, _ in number.most_common()}

    def on(self, name: str) -> Saved:
        """Return what was measured on one machine."""
        parts = {key: part for key, part in self.parts.items() if part.where == name}
        found = [m for m in self.results if (m.workload, m.engine) in parts]
        return Saved(parts, Results(self.results.run, found))

    def write(self, file: Path = FILE) -> None:
        """Write it whole or not at all, because the run may be interrupted at any time."""
        file.parent.mkdir(parents=True, exist_ok=True)
        machines = list(_once(part.machine for part in self.parts.values()))
        about = {"machines": machines, "about": self.results.about}
        head = json.dumps(about, indent=1, ensure_ascii=False).removesuffix("\n}")
        placed = (
            asdict(part) | {"machine": machines.index(part.machine)} for part in self.parts.values()
        )
        parts = ",\n  ".join(map(_line, placed))
        lines = ",\n  ".join(_line(_rounded(measurement)) for measurement in self.results)
        text = f'{head},\n "parts": [\n  {parts}\n ],\n "measurements": [\n  {lines}\n ]\n}}\n'
        draft = file.with_suffix(".new")
        draft.write_text(text, "utf-8")
        draft.replace(file)


def _line(content: dict[str, Any]) -> str:
    """Write it as one line, so that a change can be read."""
    return json.dumps(content, ensure_ascii=False)


def _once(machines: Iterable[Machine]) -> Iterable[Machine]:
    """Leave out those that were named before."""
    return {_line(machine): machine for machine in machines}.values()


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
    machines = content["machines"]
    parts = [Part(**part | {"machine": machines[part["machine"]]}) for part in content["parts"]]
    return Saved({part.key: part for part in parts}, results)
