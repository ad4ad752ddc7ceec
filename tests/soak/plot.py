"""The plot of a soak, drawn by matplotlib in its own environment.

Run as a script there: ``python plot.py soak-postgres.json FOLDER``. Imports nothing of pulsed.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

OURS, HELD = "#1d4ed8", "#f3f4f6"


def main(results: Path, folder: Path) -> None:
    import matplotlib as mpl  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

    plt.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    said = json.loads(results.read_text("utf-8"))
    minutes = said["series"].pop("minutes")
    measures = {k: v for k, v in said["series"].items() if not all(map(math.isnan, v))}
    rows = (len(measures) + 1) // 2
    figure, axes = plt.subplots(rows, 2, figsize=(10, 1.8 * rows))
    for axis in axes.flat[len(measures) :]:
        axis.set_axis_off()
    for axis, (name, values) in zip(axes.flat, measures.items(), strict=False):
        for begin, end in said["snapshots"]:
            axis.axvspan(begin / 60, end / 60, color=HELD)
        axis.plot(minutes, values, color=OURS, linewidth=1)
        axis.set_title(name, loc="left", fontweight="bold")
        axis.set_ylim(0, 1.1 * max(value for value in values if not math.isnan(value)) or 1)
    axes.flat[len(measures) - 1].set_xlabel("minutes; grey: an old snapshot is held")
    figure.tight_layout()
    figure.savefig(folder / f"{said['name']}.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
