"""The page about a saved run: `docs/benchmarks/README.md`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Measurement, Results, readable
from benchmarks.saved import FOLDER, Saved
from benchmarks.targets import TARGETS, Target
from benchmarks.workloads import WORKLOADS

PAGE = FOLDER / "README.md"
NOTES = Path(__file__).with_name("notes.md")
ENGINES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
PLOTS = {"drain": "drain.png", "beside": "flatness.png", "pickup": "latency.png"}

INTRODUCTION = """\
<!-- Made by `python3 dev.py bench --save` from results.json and benchmarks/notes.md. -->

# Benchmarks

How fast pulsed is, beside the raw drivers on the same table and beside other queues on the same
server, with every guarantee switched on. One command measures it on your machine:

```console
$ python3 dev.py bench               # all of it
$ python3 dev.py bench --quick       # a glance, within a minute
$ python3 dev.py bench --only drain --engine postgres --repeat 5
$ python3 dev.py bench --peers all --save
```

**Compare ratios, not rates.** Every workload measures what it is compared with in the same run
and in turns with it. The rates belong to the machine below; its clock and its disk vary from hour
to hour.
"""

SILENCE = """\
## What this does not say

- A no-op handler shows the cost of the queue and nothing else. A job that does something costs
  that much more, and then no queue on this page is the bottleneck.
- Client, worker and server share the cores of one machine, and the network is the loopback. With
  a server of its own, rates and round trips are different for everybody here.
- The raw loops do less than a queue must: no retry, no heartbeat, no handler, no decoding of
  payloads, no notification. They are a ceiling, not a rival.
- The peers promise different things. graphile-worker deletes finished jobs, PgQueuer moves them
  to a log, Huey loses a job whose process dies; pulsed keeps the row, the result and a fence on
  every report. Each runs with the best settings that we found in its documentation; if you know
  better ones, change its script.
- The last report of a drain is not waited for by its clock: the time of a job's end is that of
  the transaction that reports it, for pulsed and for the raw loops alike.
- A short drain says nothing about a day of load. `--full` drains a million jobs through one
  worker.
"""

PEERS = """\
## Peers

Each drains no-op jobs in one process, on an empty database of the same server (Huey: a file on the
same disk). The time runs from the first call of the handler to the last.
"""


def write(saved: Saved) -> None:
    """Write the page."""
    PAGE.write_text(text(saved), "utf-8")


def text(saved: Saved) -> str:
    parts = [INTRODUCTION, _about(saved), _targets(saved.results), _notes()]
    parts += [_workload(name, saved) for name in WORKLOADS if any(saved.results.of(name))]
    parts += [_peers(saved), SILENCE]
    return "\n".join(part for part in parts if part)


def _about(saved: Saved) -> str:
    runs = sorted({measurement.run for measurement in saved.results})
    when = f"Measured on {runs[-1]}." if len(runs) == 1 else _several(saved.results, runs)
    rows = [(name, value) for name, value in saved.machine.items()]
    return f"## The run\n\n{when} {_sizes(saved.scale)}\n\n{_table(('', ''), rows)}"


def _several(results: Results, runs: Sequence[str]) -> str:
    """Say it when the figures do not come from one run."""
    lines = []
    for run in runs:
        names = dict.fromkeys(m.workload for m in results if m.run == run)
        lines.append(f"- {run}: {', '.join(names)}")
    return "The workloads were measured in several runs; ratios are within one.\n\n" + "\n".join(
        lines
    )


def _sizes(scale: dict[str, Any]) -> str:
    return (
        f"Figures are medians of {scale['repeat']}, with the least and the most. "
        f"A drain is {scale['drain']:,} jobs, a crowd {scale['beside']:,} rows, "
        f"a pick-up figure {scale['pickups']} jobs."
    )


def _targets(results: Results) -> str:
    rows = [row for target in TARGETS if (row := _verdict(target, results))]
    head = ("workload", "engine", "wanted", "measured", "met")
    return f"## What it should reach, and whether it does\n\n{_table(head, rows)}"


def _verdict(target: Target, results: Results) -> tuple[str, ...] | None:
    value = target.figure(results)
    if value is None:
        return None
    shown = f"{value:.2f} ×" if target.unit == "×" else f"{readable(value)} {target.unit}"
    met = "yes" if target.met(value) else "**no**"
    return target.what, ENGINES[target.engine], target.wanted, shown, met


def _notes() -> str:
    return NOTES.read_text("utf-8") if NOTES.exists() else ""


def _workload(name: str, saved: Saved) -> str:
    workload = WORKLOADS[name]
    lines = [f"## {workload.title}", "", workload.method, ""]
    if name in PLOTS and (FOLDER / PLOTS[name]).exists():
        lines += [f"![{workload.title}]({PLOTS[name]})", ""]
    for engine, title in ENGINES.items():
        found = [m for m in saved.results.of(name, engine) if "in time" not in m.metric]
        if found:
            lines += [_figures(title, found)]
    return "\n".join(lines)


def _figures(title: str, found: list[Measurement]) -> str:
    metrics = list(dict.fromkeys(m.metric for m in found))
    subjects = dict.fromkeys(m.subject for m in found)
    by_key = {(m.subject, m.metric): m for m in found}
    rows = [
        (subject, *(_cell(by_key.get((subject, metric))) for metric in metrics))
        for subject in subjects
    ]
    return _table((title, *metrics), rows)


def _cell(measurement: Measurement | None) -> str:
    if measurement is None:
        return ""
    median, samples = readable(measurement.median), measurement.samples
    if len(samples) < 2:
        return median
    return f"{median} ({readable(min(samples))} to {readable(max(samples))})"


def _peers(saved: Saved) -> str:
    if not saved.peers:
        return ""
    rows = []
    for name, about in saved.peers.items():
        found = [m for m in saved.results.of("peers") if m.subject == name]
        version, _, settings = about.partition("; ")
        cells = {m.metric: _cell(m) for m in found}
        figures = (cells.get(metric, "") for metric in ("jobs/s", "enqueued in bulk/s"))
        rows.append((name, version, settings, *figures))
    head = ("peer", "version", "settings", "drained, jobs/s", "enqueued in bulk, jobs/s")
    return f"{PEERS}\n{_table(head, rows)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def console(results: Results) -> str:
    """Write the figures and verdicts for a terminal."""
    lines = [
        f"{m.workload:<10} {m.engine:<9} {m.subject:<46} {readable(m.median):>10} {m.metric}"
        for m in results
        if "in time" not in m.metric
    ]
    verdicts = [row for target in TARGETS if (row := _verdict(target, results))]
    if verdicts:
        lines.append("")
    for what, engine, wanted, shown, met in verdicts:
        mark = " " if met == "yes" else "✗"
        lines.append(f"{mark} {what:<42} {engine:<11} {shown:>18}   wanted {wanted}")
    return "\n".join(lines)
