"""Runs many seeds, and shrinks those that fail: `dev.py simulate`.

    python3 dev.py simulate --seeds 10000
    python3 dev.py simulate --seed 154

A seed that fails is run again with fewer and fewer faults. Exit code 1 says that one failed. Ctrl-C
or SIGTERM end it early; what it has done until then counts.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import signal
import sys
import time
from collections import Counter

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
COUNTED = ("seeds", "jobs", "runs", "fires", "steps", "calls", "faults")
INVARIANTS = {
    "I1": "acknowledged jobs are there",
    "I2": "RUNNING means leased",
    "I3": "tokens only rise",
    "I4": "only the lease ends a run",
    "I5": "attempts within their number",
    "I6": "expired leases are recovered",
    "I7": "each occurrence is fired once",
    "I8": "each wait is woken once",
    "I9": "stored steps do not run again",
    "I10": "one living job for a key",
    "I11": "nothing is left over",
    "I12": "no limit is exceeded, no slot leaks",
    "I13": "polling finds jobs",
    "surprise": "no task ends by an error",
}


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


def run(seeds: range, processes: int, totals: Counter[str]) -> list[str]:
    """Run seeds and print the failures; returns their violations."""
    violations: list[str] = []
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        multiprocessing.Pool(processes, _ignore_interrupts) as pool,
        contextlib.suppress(KeyboardInterrupt),
    ):
        shown = time.monotonic()
        for did, failed in pool.imap_unordered(chunk, chunks):
            totals.update(did)
            for verdict in failed:
                found = shrunk(verdict)
                violations += [f"seed {found.seed}: {each}" for each in found.violations]
                again = f"  again: python3 dev.py simulate --seed {found.seed}"
                sys.stdout.write(f"{described(found)}\n{again}\n")
            if len(violations) >= MOST_VIOLATIONS:
                break
            if time.monotonic() - shown > SHOW_EVERY:
                shown = time.monotonic()
                sys.stderr.write(f"{totals['seeds']:,} seeds\n")
    return violations


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
    parser.add_argument("--save", action="store_true", help="keep the figures in docs/reliability/")
    options = parser.parse_args(arguments)
    first, number = (options.start, options.seeds) if options.seed is None else (options.seed, 1)
    totals: Counter[str] = Counter()
    began = time.monotonic()
    violations = run(range(first, first + number), options.processes, totals)
    report = Report(
        kind="simulation",
        name="simulation",
        title="simulated fleets",
        command=f"python3 dev.py simulate --seeds {number} --start {first}",
        engine="SQLite in memory",
        seconds=time.monotonic() - began,
        counts={name: totals[name] for name in COUNTED},
        checks=[
            _check(name, totals[name], violations)
            for name in INVARIANTS
            if totals[name] or number >= ENOUGH
        ],
    )
    sys.stdout.write(f"{report.text()}\n")
    if options.save:
        report.save()
    return int(bool(violations))


def _check(invariant: str, checked: int, violations: list[str]) -> Check:
    found = [each for each in violations if f": {invariant}: " in each]
    return Check(invariant, INVARIANTS[invariant], checked, len(found), *found[:1])


if __name__ == "__main__":
    sys.exit(main())
