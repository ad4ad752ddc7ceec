"""The score of a run, as a table for people and as a file for docs/reliability."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.mutation.verdicts import Outcome, Verdicts

FILE = Path(__file__).resolve().parents[2] / "docs" / "reliability" / "mutation.json"


class Score:
    """What became of the mutants of one engine."""

    def __init__(
        self,
        engine: str,
        verdicts: Verdicts,
        unstable: Sequence[str],
        seconds: float,
        *,
        left_out: int = 0,
    ) -> None:
        self._engine = engine
        self._verdicts = verdicts
        self._unstable = unstable
        self._seconds = seconds
        self._left_out = left_out

    @property
    def ok(self) -> bool:
        """Whether tests or explanations account for every mutant, and some were killed."""
        killed = self._total().get(Outcome.KILLED.value, 0)
        wrong = self._verdicts.survivors() or self._unstable or self._left_out
        return bool(killed) and not wrong

    def text(self) -> str:
        """Return the table, and what is to be done."""
        lines = [f"guards removed from the statements of {self._engine}: {self._seconds:.0f} s"]
        lines += [_line("", [outcome.value for outcome in Outcome])]
        rows = {**self._verdicts.counts(), "all": self._total()}
        for kind, counted in rows.items():
            lines.append(_line(kind, [counted.get(outcome.value, 0) for outcome in Outcome]))
        lines += [f"  no test needs {each.name}" for each in self._verdicts.survivors()]
        lines += [f"  fails without a mutant too: {name}" for name in self._unstable]
        if self._left_out:
            lines.append(f"  {self._left_out} were not run: the time was over")
        return "\n".join(lines)

    def save(self, file: Path = FILE) -> None:
        """Keep the figures beside those of the other engine."""
        stored: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
        engines = stored.get("engines", {})
        engines[self._engine] = {
            "seconds": round(self._seconds, 1),
            "kinds": self._verdicts.counts(),
            "left_out": self._left_out,
            "survivors": [each.name for each in self._verdicts.survivors()],
        }
        record = _record(dict(sorted(engines.items())))
        file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")

    def _total(self) -> dict[str, int]:
        return summed(self._verdicts.counts())


def summed(kinds: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the outcomes of all kinds together."""
    return {
        outcome.value: sum(counted.get(outcome.value, 0) for counted in kinds.values())
        for outcome in Outcome
    }


def _record(engines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    totals = [summed(each["kinds"]) for each in engines.values()]
    counts = {outcome.value: sum(each[outcome.value] for each in totals) for outcome in Outcome}
    missing = [
        f"{each['left_out']} mutants of {name}, for which there was no time"
        for name, each in engines.items()
        if each["left_out"]
    ]
    return {
        "kind": "mutation",
        "name": "mutation",
        "title": "guards removed from statements",
        "command": "python3 dev.py mutate",
        "date": datetime.now(UTC).date().isoformat(),
        "engine": ", ".join(engines),
        "seconds": sum(each["seconds"] for each in engines.values()),
        "counts": {"mutants": sum(counts.values()), **counts},
        "violations": counts[Outcome.SURVIVED.value],
        "left_out": missing,
        "engines": engines,
    }


def _line(name: str, cells: Sequence[object]) -> str:
    return f"  {name:28}" + "".join(f"{cell!s:>11}" for cell in cells)
