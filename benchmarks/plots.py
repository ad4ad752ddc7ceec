"""Plots of a saved run, drawn by matplotlib in its own environment.

Run as a script there: `python plots.py results.json FOLDER`. Imports nothing of pulsed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

OURS, RAW, OTHERS, BAD = "#1d4ed8", "#9ca3af", "#fbbf24", "#dc2626"
ENGINES = {"postgres": "PostgreSQL", "sqlite": "SQLite, synchronous=FULL"}


def draw(results: Path, folder: Path) -> None:
    """Draw in a Python that has matplotlib, made on demand."""
    from benchmarks.homes import python_with  # noqa: PLC0415 - the script runs without it

    python = python_with("plots", ("matplotlib",))
    subprocess.run([str(python), __file__, str(results), str(folder)], check=True)


class Plots:
    """The plots of one file of results."""

    def __init__(self, results: Path, folder: Path) -> None:
        import matplotlib as mpl  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

        mpl.use("Agg")
        import matplotlib.pyplot as plt  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

        plt.rcParams.update(
            {
                "font.size": 9,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.titlesize": 10,
                "axes.titleweight": "bold",
                "axes.titlelocation": "left",
            }
        )
        self._pyplot: Any = plt
        self._folder = folder
        self._found = _of_one_machine(json.loads(results.read_text("utf-8")))

    def of(self, workload: str, engine: str, metric: str) -> dict[str, list[float]]:
        """Return the samples of every subject."""
        return {
            m["subject"]: m["samples"]
            for m in self._found
            if (m["workload"], m["engine"], m["metric"]) == (workload, engine, metric)
        }

    def save(self, figure: Any, name: str) -> None:
        figure.tight_layout()
        figure.savefig(self._folder / name, dpi=130, metadata={"Software": None})
        self._pyplot.close(figure)

    def rates(self, workload: str, name: str, title: str) -> None:
        """Draw the rates of drains, the fastest on top."""
        bars = {e: found for e in ENGINES if (found := self.of(workload, e, "jobs/s"))}
        if not bars:
            return
        heights = [len(b) for b in bars.values()]
        figure, axes = self._pyplot.subplots(
            len(bars),
            1,
            figsize=(8, 0.9 + 0.27 * sum(heights) + 0.5 * len(bars)),
            height_ratios=heights,
            squeeze=False,
        )
        for (engine, found), (axis,) in zip(bars.items(), axes, strict=True):
            ordered = sorted(found, key=lambda subject: statistics.median(found[subject]))
            _bars(axis, {subject: found[subject] for subject in ordered})
            axis.set_title(f"{title}, jobs per second: {ENGINES[engine]}")
        self.save(figure, name)

    def flatness(self) -> None:
        """Draw the share of the clean rate beside other rows, and a worker's memory over time."""
        shares: dict[str, float] = {}
        for engine, title in ENGINES.items():
            short = title.split(",")[0]
            for workload in ("beside", "snapshot"):
                found = list(self.of(workload, engine, "jobs/s").items())
                if not found:
                    continue
                (_, control), *others = found
                for subject, samples in others:
                    pairs = zip(samples, control, strict=False)
                    name = f"{short}: {subject.removeprefix('pulsed, ')}"
                    shares[name] = statistics.median(own / other for own, other in pairs)
        memory = {e: self.memory(e) for e in ENGINES}
        if not shares:
            return
        figure, (left, right) = self._pyplot.subplots(
            1, 2, figsize=(10, 0.4 * len(shares) + 1.2), width_ratios=(3, 2)
        )
        names = list(shares)[::-1]
        colors = [OURS if shares[name] >= 0.85 else BAD for name in names]
        left.barh(names, [shares[name] for name in names], color=colors)
        left.axvline(1, color=RAW, linewidth=0.8)
        left.axvline(0.85, color=RAW, linewidth=0.8, linestyle="--")
        for name in names:
            left.annotate(
                f"{shares[name]:.2f}",
                (shares[name], name),
                (3, 0),
                textcoords="offset points",
                va="center",
            )
        left.set_title("Drain, as a share of the clean rate")
        for engine, resident in memory.items():
            if resident:
                color = OURS if engine == "postgres" else "#047857"
                title = ENGINES[engine].split(",")[0]
                right.plot(list(resident), list(resident.values()), color=color, label=title)
        right.set_ylim(bottom=0)
        right.set_xlabel("jobs drained")
        right.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        right.set_title("Worker memory, MB")
        if any(memory.values()):
            right.legend(frameon=False)
        self.save(figure, "flatness.png")

    def memory(self, engine: str) -> dict[int, float]:
        """Return a worker's memory by the jobs that it had drained."""
        found = self.of("memory", engine, "MB resident")
        after = {subject.partition(" after ")[2]: samples[0] for subject, samples in found.items()}
        return {int(k.split()[0].replace(",", "")): mb for k, mb in after.items() if k}

    def latency(self) -> None:
        """Draw how soon a job starts."""
        figure, (left, right) = self._pyplot.subplots(1, 2, figsize=(10, 3.4))
        groups: dict[str, list[float]] = {}
        for engine, title in ENGINES.items():
            for subject in self.of("pickup", engine, "p50 ms"):
                values = [
                    statistics.median(self.of("pickup", engine, f"p{p} ms")[subject])
                    for p in (50, 99)
                ]
                groups[f"{title.split(',')[0]}\n{subject}"] = values
        if not groups:
            self._pyplot.close(figure)
            return
        for at, (subject, (p50, p99)) in enumerate(groups.items()):
            color = OURS if subject.endswith("pulsed") else RAW
            left.bar(at - 0.2, p50, 0.4, color=color)
            left.bar(at + 0.2, p99, 0.4, color=color, alpha=0.45)
            for x, value in ((at - 0.2, p50), (at + 0.2, p99)):
                left.annotate(f"{value:.1f}", (x, value), ha="center", va="bottom")
        left.set_xticks(range(len(groups)), list(groups))
        left.set_title("Pick-up by an idle worker, ms: p50 and p99")
        for engine, title in ENGINES.items():
            by_rate = sorted(
                (int(subject.split()[1].replace(",", "")), subject)
                for subject in self.of("steady", engine, "p50 ms")
            )
            for percent, style in ((50, "-"), (95, "--"), (99, ":")):
                found = self.of("steady", engine, f"p{percent} ms")
                right.plot(
                    [rate for rate, _ in by_rate],
                    [statistics.median(found[subject]) for _, subject in by_rate],
                    style,
                    marker="o",
                    markersize=3,
                    color=OURS if engine == "postgres" else "#047857",
                    label=f"{title.split(',')[0]} p{percent}" if by_rate else None,
                )
        right.set_xlabel("jobs per second, open loop")
        right.set_ylim(bottom=0)
        right.set_title("Wait for the start under steady load, ms")
        if right.get_legend_handles_labels()[0]:
            right.legend(frameon=False, fontsize=8)
        self.save(figure, "latency.png")


def _of_one_machine(saved: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the measurements of the machine that most parts were measured on."""
    names = [(machine["processor"], machine["memory"]) for machine in saved["machines"]]
    machines = {(p["workload"], p["engine"]): names[p["machine"]] for p in saved["parts"]}
    most = statistics.mode(machines.values())
    return [m for m in saved["measurements"] if machines[m["workload"], m["engine"]] == most]


def _bars(axis: Any, found: dict[str, list[float]]) -> None:
    medians = {subject: statistics.median(samples) for subject, samples in found.items()}
    colors = [
        OURS if subject.startswith("pulsed") else RAW if subject.startswith("raw") else OTHERS
        for subject in medians
    ]
    axis.barh(list(medians), list(medians.values()), color=colors)
    for subject, value in medians.items():
        axis.annotate(
            f"{value:,.0f}" if value >= 10 else f"{value:.1f}",
            (value, subject),
            (3, 0),
            textcoords="offset points",
            va="center",
        )
    axis.set_xlim(right=1.12 * max(medians.values()))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


if __name__ == "__main__":
    plots = Plots(Path(sys.argv[1]), Path(sys.argv[2]))
    plots.rates("drain", "drain.png", "Drain of no-op jobs")
    plots.rates("peers", "peers.png", "In turns with other queues")
    plots.flatness()
    plots.latency()
