"""Plots of a saved run, drawn by matplotlib in its own environment.

Run as a script there: `python plots.py results.json FOLDER`. Imports nothing of pulsed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

OURS, BARE, OTHERS, BAD = "#1d4ed8", "#9ca3af", "#9ca3af", "#dc2626"
STEADY = 0.9
"""The share of the clean rate that a drain is to keep."""
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
        self._saved = json.loads(results.read_text("utf-8"))
        self._found: list[dict[str, Any]] = []

    def about(self, *workloads: str) -> None:
        """Take what was measured on the machine of the latest part of these workloads."""
        parts = [part for part in self._saved["parts"] if part["workload"] in workloads]
        names = [(m["processor"], m["memory"]) for m in self._saved["machines"]]
        latest = max(parts, key=lambda part: str(part["taken"]), default={"machine": -1})
        here = {
            (part["workload"], part["engine"])
            for part in parts
            if names[part["machine"]] == names[latest["machine"]]
        }
        measured = self._saved["measurements"]
        self._found = [m for m in measured if (m["workload"], m["engine"]) in here]

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

    def drains(self) -> None:
        """Draw the rates of pulsed and of other queues, for somebody who sees them first."""
        self.about("drain")
        bars = {e: found for e in ENGINES if (found := self._queues(e))}
        if not bars:
            return
        heights = [len(b) for b in bars.values()]
        figure, axes = self._pyplot.subplots(
            len(bars),
            1,
            figsize=(8, 0.9 + 0.27 * sum(heights) + 0.6 * len(bars)),
            height_ratios=heights,
            squeeze=False,
        )
        for (engine, found), (axis,) in zip(bars.items(), axes, strict=True):
            ordered = sorted(found, key=lambda subject: statistics.median(found[subject]))
            _bars(axis, {subject: found[subject] for subject in ordered})
            axis.set_title(f"{ENGINES[engine].split(',')[0]}: jobs per second (longer is better)")
        figure.supxlabel(
            "one worker process, jobs that do nothing, in turns on the same two cores", fontsize=8
        )
        self.save(figure, "drain.png")

    def _queues(self, engine: str) -> dict[str, list[float]]:
        """Return the rates of queues, without the bare driver, which is none."""
        found = self.of("drain", engine, "jobs/s")
        return {name: rates for name, rates in found.items() if not name.startswith("bare")}

    def flatness(self) -> None:
        """Draw the share of the clean rate beside other rows, and a worker's memory over time."""
        self.about("beside", "snapshot", "memory")
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
        colors = [OURS if shares[name] >= STEADY else BAD for name in names]
        left.barh(names, [shares[name] for name in names], color=colors)
        left.axvline(1, color=BARE, linewidth=0.8)
        left.axvline(STEADY, color=BARE, linewidth=0.8, linestyle="--")
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
        """Draw how soon an idle worker starts a job: p50, and behind it p99."""
        self.about("pickup")
        bars: dict[str, tuple[float, float]] = {}
        for engine, title in ENGINES.items():
            slow = self.of("pickup", engine, "p99 ms")
            for subject, samples in self.of("pickup", engine, "p50 ms").items():
                pair = (statistics.median(samples), statistics.median(slow[subject]))
                bars[f"{title.split(',')[0]}: {subject}"] = pair
        if not bars:
            return
        figure, axis = self._pyplot.subplots(figsize=(8, 0.9 + 0.36 * len(bars)))
        for name, (p50, p99) in reversed(bars.items()):
            color = OURS if ": pulsed" in name else OTHERS
            axis.barh(name, p99, color=color, alpha=0.35)
            axis.barh(name, p50, color=color)
            axis.annotate(
                f"{p50:.1f} and {p99:.1f}",
                (p99, name),
                (3, 0),
                textcoords="offset points",
                va="center",
            )
        axis.set_xscale("log")
        axis.set_xlim(0.5, 6 * max(p99 for _, p99 in bars.values()))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_title("Idle pick-up, ms: p50, and p99 behind it (shorter is better)")
        self.save(figure, "latency.png")

    def long_horizon(self) -> None:
        """Draw a steady load before, beside and after a transaction that stays open."""
        series = self._folder / "long-horizon.jsonl"
        if not series.exists():
            return
        records = [json.loads(line) for line in series.read_text("utf-8").splitlines()]
        start = datetime.fromisoformat(records[0]["t"])
        for record in records:
            record["s"] = (datetime.fromisoformat(record["t"]) - start).total_seconds()
        figure, axes = self._pyplot.subplots(3, 1, figsize=(8, 5.4), sharex=True)
        for axis, (title, metrics) in zip(axes, LONG_HORIZON.items(), strict=True):
            for metric, (label, color) in metrics.items():
                points = [(r["s"], r["value"]) for r in records if r["metric"] == metric]
                axis.plot(*zip(*points, strict=True), color=color, linewidth=1.2, label=label)
            axis.set_title(title)
            axis.set_ylim(0, 1.2 * axis.get_ylim()[1])
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            _phases(axis, records)
        axes[1].legend(frameon=False, loc="upper right", fontsize=8)
        axes[-1].set_xlabel("seconds")
        self.save(figure, "long-horizon.png")


LONG_HORIZON = {
    "Jobs done per second": {"completion_rate": ("done", OURS)},
    "Milliseconds from enqueue to start": {
        "claim_p50_ms": ("p50", OURS),
        "claim_p99_ms": ("p99", "#93b4f8"),
    },
    "Dead rows in the table": {"dead_rows": ("dead", BAD)},
}


def _phases(axis: Any, records: list[dict[str, Any]]) -> None:
    """Shade the phase in which a transaction stays open, and name each."""
    for name in dict.fromkeys(record["phase"] for record in records):
        times = [record["s"] for record in records if record["phase"] == name]
        if "transaction" in name:
            axis.axvspan(min(times), max(times), color="#fde68a", alpha=0.5, linewidth=0)
        axis.annotate(
            name,
            (min(times), 1),
            (3, -3),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            va="top",
            fontsize=8,
            color="#4b5563",
        )


def _bars(axis: Any, found: dict[str, list[float]]) -> None:
    medians = {subject: statistics.median(samples) for subject, samples in found.items()}
    colors = [OURS if subject.startswith("pulsed") else OTHERS for subject in medians]
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
    plots.drains()
    plots.flatness()
    plots.latency()
    plots.long_horizon()
