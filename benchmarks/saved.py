"""The saved run: `docs/benchmarks/results.json`, from which the page and the plots are made."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.results import Measurement, Results

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
FILE = FOLDER / "results.json"


@dataclass
class Saved:
    """A run, or several of which each brought some of the workloads."""

    results: Results
    machine: dict[str, str]
    scale: dict[str, Any]
    peers: dict[str, str] = field(default_factory=dict)

    def write(self) -> None:
        FOLDER.mkdir(parents=True, exist_ok=True)
        about = {
            "run": self.results.run,
            "machine": self.machine,
            "scale": self.scale,
            "peers": self.peers,
        }
        head = json.dumps(about, indent=1, ensure_ascii=False).removesuffix("\n}")
        lines = ",\n  ".join(_line(measurement) for measurement in self.results)
        FILE.write_text(f'{head},\n "measurements": [\n  {lines}\n ]\n}}\n', "utf-8")


def _line(measurement: Measurement) -> str:
    """Write one measurement as one line, so that a change can be read."""
    samples = [float(f"{sample:.5g}") for sample in measurement.samples]
    return json.dumps(asdict(measurement) | {"samples": samples}, ensure_ascii=False)


def read() -> Saved | None:
    """Return what was saved last, if anything was."""
    if not FILE.exists():
        return None
    content = json.loads(FILE.read_text("utf-8"))
    measurements = [Measurement(**m) for m in content["measurements"]]
    results = Results(content["run"], measurements)
    return Saved(results, content["machine"], content["scale"], content["peers"])
