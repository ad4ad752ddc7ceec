"""The page about a saved run: `docs/benchmarks/README.md`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.headline import ENGINES, headline
from benchmarks.peers.peer import OURS, PEERS
from benchmarks.results import PULSED, Measurement, Results, readable
from benchmarks.saved import FOLDER, Part, Saved
from benchmarks.scale import Scale
from benchmarks.targets import TARGETS
from benchmarks.targets.target import Target
from benchmarks.workloads import WORKLOADS

PAGE = FOLDER / "README.md"
NOTES = Path(__file__).with_name("notes.md")
GLANCE = "drain.png"
PLOTS = {
    "beside": "flatness.png",
    "phases": "long-horizon.png",
    "pickup": "latency.png",
}
VERDICT = ("workload", "engine", "wanted", "measured", "met")
ENOUGH = 3
"""Samples below which a figure is not to be quoted."""

INTRODUCTION = """\
Measured with every guarantee switched on, beside other queues on the same server and the bare
driver on a table of three columns. One command measures it on your machine:

```console
$ python3 dev.py bench               # all of it
$ python3 dev.py bench --quick       # a glance, within a minute
$ python3 dev.py bench --only drain --engine postgres --repeat 5
$ python3 dev.py bench --only drain --peers all             # beside other queues
$ python3 dev.py bench --peers all --full --save            # this page, in an hour
$ python3 dev.py bench --peers all --full --save --missing  # the rest of it, after a stop
```

**Compare ratios, not rates.** Every workload measures what it is compared with in the same run
and alternates with it. The rates hold for the machine that they were measured on; its clock speed
and its disk vary from hour to hour.

<!-- Made by `python3 dev.py bench --save` from results.json and benchmarks/notes.md. -->
"""

SILENCE = """\
## What this does not say

- A no-op handler shows the cost of the queue and nothing else. A real job costs more, and then no
  queue on this page is the bottleneck.
- Client, worker and server share the cores of one machine, and the network is the loopback. With
  a dedicated server, rates and round trips are different for every queue here.
- The bare loops do less than a queue must: no result, no lease, no retry, no heartbeat, no handler,
  no decoding of payloads. They are a ceiling, not a rival.
- The peers promise different things; the table above says which. Each runs with the settings that
  its own documentation names for speed, where it names any; if you know better ones, change its
  script.
- The time of a drain of pulsed does not include its last report: a job's end is the time of the
  transaction that reports it.
- A short drain says nothing about a day of load. `--full` drains a million jobs through one
  worker.
"""

PROMISES = """\
What each does for a job, with these settings, is not the same:
"""

PARTS = """\
The run was measured in parts, each in one go and at the time given. A part that is measured again
replaces the old one. Ratios are within a part. Figures are medians, with minimum and maximum. No
table mixes two machines.
"""


def write(saved: Saved) -> None:
    """Write the page."""
    PAGE.write_text(text(saved), "utf-8")


def text(saved: Saved) -> str:
    parts = [_top(saved), INTRODUCTION, _about(saved), _targets(saved), _notes()]
    parts += [_workload(name, saved) for name in WORKLOADS if any(saved.results.of(name))]
    return "\n".join([part for part in parts if part] + [SILENCE])


def _top(saved: Saved) -> str:
    """Say first what a reader came for, in words and in a picture."""
    lines = ["# Benchmarks", "", headline(saved.results), ""]
    if (FOLDER / GLANCE).exists():
        lines += [f"![Jobs per second of pulsed and of other queues]({GLANCE})", ""]
    return "\n".join(lines)


def _about(saved: Saved) -> str:
    minutes = sum(part.seconds for part in saved.parts.values()) / 60
    lines = ["## The run\n", f"{PARTS}All of them took {minutes:.0f} minutes.\n"]
    for name, machine in saved.machines.items():
        lines += [f"### {name}\n", _table(("", ""), list(machine.items())), _parts(saved.on(name))]
    return "\n".join(lines)


def _parts(saved: Saved) -> str:
    head = ("part", "engine", "taken", "samples", "size", "seconds", "commit")
    places = [(name, engine) for name in WORKLOADS for engine in ENGINES]
    return _table(head, [_part(saved.parts[place]) for place in places if place in saved.parts])


def _part(part: Part) -> tuple[str, ...]:
    scale = Scale(**part.scale)
    workload = WORKLOADS[part.workload]
    glance = "" if scale.repeat >= ENOUGH else ": **only a glance**"
    samples = f"{workload.samples(scale)}{glance}"
    size, seconds = workload.size(scale), f"{part.seconds:.0f}" if part.seconds else "unknown"
    return (
        workload.title,
        ENGINES[part.engine],
        part.taken,
        samples,
        size,
        seconds,
        part.code,
    )


def _targets(saved: Saved) -> str:
    lines = ["## What it should reach, and whether it does\n"]
    for name in saved.machines:
        if rows := _verdicts(saved.on(name).results):
            lines += [*_place(name, saved), _table(VERDICT, rows)]
    said = " ".join(_notes().split())
    silent = [name for name in missed(saved.results) if name not in said]
    if silent:
        lines.append(f"Missed, and not explained below: {'; '.join(silent)}.\n")
    return "\n".join(lines)


def _place(name: str, saved: Saved) -> list[str]:
    """Name the machine of the table that follows, if there are several."""
    return [f"On {name}:\n"] if len(saved.machines) > 1 else []


def missed(results: Results) -> list[str]:
    """Return the targets that were not reached, by the names that the notes call them."""
    verdicts = _verdicts(results)
    return list(
        dict.fromkeys(f"{what} ({engine})" for what, engine, _, _, met in verdicts if met != "yes")
    )


def _verdicts(results: Results) -> list[tuple[str, ...]]:
    return [row for target in TARGETS if (row := _verdict(target, results))]


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
        if found := list(saved.results.of(name, engine)):
            part = saved.parts.get((name, engine))
            lines += _place(part.where, saved) if part else []
            lines += [_figures(title, found)]
    return "\n".join(lines + (_peers(saved) if name == "drain" else []))


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


def _peers(saved: Saved) -> list[str]:
    """Say what ran how, and what it is worth."""
    promises = {PULSED: OURS} | {peer.title: peer.promise for peer in PEERS.values()}
    settings = [
        (name, *about.partition("; ")[::2])
        for name, about in saved.results.about.items()
        if name in promises
    ]
    kept = [
        (name, promise.row, promise.result, promise.commit, promise.late)
        for name, promise in promises.items()
        if name == PULSED or name in saved.results.about
    ]
    head = ("", "row of a finished job", "its result", "a commit reports", "a late report is")
    return [
        _table(("peer", "version", "settings"), settings),
        PROMISES,
        _table(head, kept),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def console(results: Results) -> str:
    """Write the figures and verdicts for a terminal."""
    lines = [
        f"{m.workload:<10} {m.engine:<9} {m.subject:<46} {readable(m.median):>10} {m.metric}"
        for m in results
    ]
    verdicts = _verdicts(results)
    if verdicts:
        lines.append("")
    for what, engine, wanted, shown, met in verdicts:
        mark = " " if met == "yes" else "✗"
        lines.append(f"{mark} {what:<42} {engine:<11} {shown:>18}   wanted {wanted}")
    return "\n".join(lines)
