"""What a run has shown, as a table for people and as a file for docs/reliability."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.chaos.checker import Check

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reliability"


@dataclass
class Report:
    """One run of the lab."""

    kind: str
    name: str
    title: str
    command: str
    engine: str
    seconds: float
    counts: Mapping[str, float]
    checks: list[Check]
    left_out: list[str] = field(default_factory=list)
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return all(each.holds for each in self.checks)

    @property
    def violations(self) -> int:
        return sum(each.violations or not each.checked for each in self.checks)

    def text(self) -> str:
        """Return the table."""
        counts = ", ".join(f"{what} {number:,.12g}" for what, number in self.counts.items())
        lines = [f"{self.title}: {self.seconds:.0f} s; {counts}"]
        lines += [f"  left out: {each}" for each in self.left_out]
        width = max(len(each.what) for each in self.checks)
        lines.append(f"  {'':4} {'invariant':{width}} {'checked':>9} violations")
        lines += [f"  {line}" for each in self.checks for line in _lines(each, width)]
        lines.append("every invariant held" if self.ok else f"VIOLATED: {self.violations}")
        return "\n".join(lines)

    def save(self, folder: Path = FOLDER) -> Path:
        """Write the file that docs/reliability.md is made from."""
        folder.mkdir(exist_ok=True)
        path = folder / f"{self.name}.json"
        said = {
            "kind": self.kind,
            "name": self.name,
            "title": self.title,
            "command": self.command,
            "date": datetime.now(UTC).date().isoformat(),
            "engine": self.engine,
            "seconds": round(self.seconds, 1),
            "python": platform.python_version(),
            "counts": dict(self.counts),
            "left_out": self.left_out,
            "checks": [asdict(each) for each in self.checks],
            "violations": self.violations,
            **self.more,
        }
        path.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return path


def _lines(check: Check, width: int) -> list[str]:
    bad = f"{check.violations:>10,}" if check.checked else " unchecked"
    line = f"{check.invariant:4} {check.what:{width}} {check.checked:>9,} {bad}"
    return [line, f"       such as {check.example}"] if check.violations else [line]


class Progress:
    """One line that changes on a terminal, and now and then a line elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._live = sys.stderr.isatty()
        self._next = 0.0

    def __call__(self, text: str) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (0.2 if self._live else 10)
        line = f"{self._name:8}  {text}"
        sys.stderr.write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
