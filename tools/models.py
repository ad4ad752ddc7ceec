"""Checks the models in `models/` with Spin: what holds must hold, and what is broken must be found.

A model is a small Promela program; its opening comment says what is checked. The macros that it
tests for are its broken variants: each leaves out one guard, and must yield a counter-example.
Run by `dev.py models`. Spin and a C compiler come from the system (Debian: `apt install spin gcc`).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "models"
FIGURES = FOLDER.parent / "docs/reliability/models.json"
TOOLS = ("spin", "gcc")
DEEPEST = 200_000
"""Steps of a run that are explored; a search that needs more is no proof."""
MOST_SECONDS = 600


class Verdict(NamedTuple):
    """What a search of one variant found."""

    states: int
    violation: str
    """The first violation; empty if there is none."""


def missing_tools() -> list[str]:
    """Return the programs that are needed and not installed."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def models() -> list[Path]:
    """Return all models."""
    return sorted(FOLDER.glob("*.pml"))


def broken_variants(model: Path) -> list[str]:
    """Return the macros that a model tests for: each breaks it on purpose."""
    lines = [line for line in model.read_text("utf-8").splitlines() if line.startswith("#")]
    found = re.findall(r"(?:ifdef|ifndef|defined\()\s*([A-Z_]+)", "\n".join(lines))
    return list(dict.fromkeys(found))


def search(model: Path, variant: str = "") -> Verdict:
    """Explore every interleaving of a model, or of one of its broken variants."""
    with tempfile.TemporaryDirectory() as folder:
        define = [f"-D{variant}"] if variant else []
        _run(folder, "spin", "-a", *define, str(model))
        _run(folder, "gcc", "-O1", "-w", "-DSAFETY", "-o", "pan", "pan.c")
        told = _run(folder, "./pan", f"-m{DEEPEST}")
    if "max search depth too small" in told:
        raise RuntimeError(f"{model.name} {variant}: the search is not complete")
    states = re.search(r"(\d+) states, stored", told)
    violated = re.search(r"pan:\d+: (.*) \(at depth", told)
    errors = re.search(r"errors: (\d+)", told)
    if states is None or errors is None or bool(int(errors[1])) != bool(violated):
        raise RuntimeError(f"{model.name} {variant}: cannot read Spin's answer:\n{told}")
    return Verdict(int(states[1]), violated[1] if violated else "")


def _run(folder: str, *command: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=MOST_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Check all models, or those that are named; 1 if one does not answer as it should.

    With ``--save``, the figures are kept for docs/reliability.md.
    """
    if missing := missing_tools():
        print(f"models need {' and '.join(missing)}; on Debian or Ubuntu: apt install spin gcc")
        return 1
    names = [each for each in arguments if each != "--save"]
    chosen = [model for model in models() if not names or model.stem in names]
    if not chosen:
        print(f"no such model; there are {', '.join(model.stem for model in models())}")
        return 2
    wrong = states = 0
    began = time.monotonic()
    for model in chosen:
        for variant in ("", *broken_variants(model)):
            verdict = search(model, variant)
            is_right = bool(verdict.violation) == bool(variant)
            wrong += not is_right
            states += verdict.states
            found = f"found: {verdict.violation}" if verdict.violation else "holds"
            told = f"{verdict.states:>9,} states  {found}{'' if is_right else '  WRONG'}"
            print(f"{model.stem:<8} {variant or 'as built':<27} {told}", flush=True)
    if "--save" in arguments:
        broken = sum(len(broken_variants(model)) for model in chosen)
        counts = {"models": len(chosen), "broken variants": broken, "states": states}
        _save(counts, wrong, time.monotonic() - began)
    return int(bool(wrong))


def _save(counts: dict[str, int], wrong: int, seconds: float) -> None:
    """Keep the figures for docs/reliability.md."""
    FIGURES.parent.mkdir(exist_ok=True)
    run = {"kind": "models", "name": "models", "title": "checked models"}
    run |= {
        "command": "python3 dev.py models",
        "date": datetime.now(UTC).date().isoformat(),
        "engine": "Spin",
    }
    figures = {**run, "seconds": round(seconds, 1), "counts": counts, "violations": wrong}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
