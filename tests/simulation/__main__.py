"""Runs many seeds, and shrinks those that fail: `dev.py simulate`.

    python3 dev.py simulate --seeds 10000
    python3 dev.py simulate --seed 154

A seed that fails is run again with fewer and fewer faults. Exit code 1 says that one failed. Ctrl-C
or SIGTERM end it early; what it has done until then counts. With --parts it is noted in a folder,
from where the same command continues; ranges of seeds that were run apart become one report there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.checker import Check
from tests.chaos.report import Report
from tests.simulation.run import Verdict, described, simulate
from tests.simulation.shrinking import shrunk

CHUNK = 20
"""Seeds that a process is given at a time."""
MOST_VIOLATIONS = 5
"""Violations after which the command gives up: one bug makes many."""
SHOW_EVERY = 30.0
ENOUGH = 100
"""Seeds of which some must have put each invariant to the test."""
COUNTED = ("seeds", "jobs", "runs", "fires", "steps", "calls", "messages", "faults")
INVARIANTS = {
    "I1": "acknowledged jobs are there",
    "I2": "RUNNING means leased",
    "I3": "tokens only rise",
    "I4": "only the lease ends a run",
    "I5": "attempts within their number",
    "I6": "expired leases are recovered",
    "I7": "each occurrence is fired once",
    "I8": "each wait is woken once",
    "I9": "stored steps and their effects happen once",
    "I10": "one living job for a key",
    "I11": "nothing is left over",
    "I12": "no limit is exceeded, no slot leaks",
    "I13": "polling finds jobs",
    "surprise": "no task ends by an error",
}


@dataclass
class Part:
    """A range of seeds, and what those that were run have shown."""

    start: int
    seeds: int
    seconds: float = 0.0
    totals: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def left(self) -> range:
        """The seeds that were not run yet."""
        return range(self.start + self.totals["seeds"], self.start + self.seeds)

    def save(self, folder: Path | None) -> None:
        """Note it in a folder, if there is one."""
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{self.start}.json").write_text(json.dumps(vars(self)), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Part:
        noted = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**noted, "totals": Counter(noted["totals"])})


def chunk(seeds: range) -> tuple[Counter[str], list[Verdict]]:
    """Run some seeds; returns what they did, and those that failed."""
    totals: Counter[str] = Counter()
    failed = []
    for seed in seeds:
        verdict = simulate(seed)
        totals.update(verdict.counted)
        totals.update(verdict.checked)
        totals.update(surprise=1, seeds=1, calls=verdict.calls, faults=len(verdict.struck))
        failed += [verdict] if verdict.violations else []
    return totals, failed


def run(part: Part, processes: int, folder: Path | None) -> None:
    """Run the seeds that are left of a part, and print the failures."""
    seeds = part.left
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    before, began = part.seconds, time.monotonic()
    shown = began
    with (
        multiprocessing.Pool(processes, _ignore_interrupts) as pool,
        contextlib.suppress(KeyboardInterrupt),
    ):
        for did, failed in pool.imap(chunk, chunks):
            part.violations += [each for verdict in failed for each in _shrunk(verdict)]
            part.totals.update(did)
            part.seconds = before + time.monotonic() - began
            part.save(folder)
            if len(part.violations) >= MOST_VIOLATIONS:
                break
            if time.monotonic() - shown > SHOW_EVERY:
                shown = time.monotonic()
                sys.stderr.write(f"{part.totals['seeds']:,} seeds\n")


def _shrunk(verdict: Verdict) -> list[str]:
    """Print a failure with as few faults as it needs; returns its violations."""
    found = shrunk(verdict)
    again = f"  again: python3 dev.py simulate --seed {found.seed}"
    sys.stdout.write(f"{described(found)}\n{again}\n")
    return [f"seed {found.seed}: {each}" for each in found.violations]


def _ignore_interrupts() -> None:
    """Leave a Ctrl-C to the main process, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="dev.py simulate", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run (1000)")
    parser.add_argument("--start", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--seed", type=int, help="run this one only")
    parser.add_argument("--processes", type=int, default=1, help="how many run them (1)")
    parser.add_argument("--parts", type=Path, help="continue, and report, what is in this folder")
    parser.add_argument("--save", action="store_true", help="keep the figures in docs/reliability/")
    options = parser.parse_args(arguments)
    part = Part(options.start, options.seeds)
    if options.seed is not None:
        part = Part(options.seed, 1)
    folder: Path | None = options.parts
    if folder is not None and (noted := folder / f"{part.start}.json").exists():
        part = Part.load(noted)
    run(part, options.processes, folder)
    report = _report([part] if folder is None else [*map(Part.load, folder.glob("*.json"))])
    sys.stdout.write(f"{report.text()}\n")
    if options.save:
        report.save()
    return int(bool(report.violations))


def _report(parts: list[Part]) -> Report:
    """Return what all parts together have shown."""
    totals = sum((part.totals for part in parts), Counter[str]())
    violations = [each for part in parts for each in part.violations]
    first, wanted = min(part.start for part in parts), sum(part.seeds for part in parts)
    done = totals["seeds"]
    return Report(
        kind="simulation",
        name="simulation",
        title="simulated fleets",
        command=f"python3 dev.py simulate --seeds {wanted} --start {first}",
        engine="SQLite in memory, with and without servers",
        seconds=sum(part.seconds for part in parts),
        counts={name: totals[name] for name in COUNTED},
        left_out=[] if done == wanted else [f"it was ended after {done:,} of its seeds"],
        checks=[
            _check(name, totals[name], violations)
            for name in INVARIANTS
            if totals[name] or done >= ENOUGH
        ],
    )


def _check(invariant: str, checked: int, violations: list[str]) -> Check:
    found = [each for each in violations if f": {invariant}: " in each]
    return Check(invariant, INVARIANTS[invariant], checked, len(found), *found[:1])


if __name__ == "__main__":
    sys.exit(main())
