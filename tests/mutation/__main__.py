"""Removes each guard from each statement, and runs the tests that use it: `dev.py mutate`.

    python3 dev.py mutate
    python3 dev.py mutate --engine postgres --only settling.settle
    python3 dev.py mutate --engine postgres --seconds 600 --resume

A mutant is a statement with one condition that is always true, or without a lock, an order of
locks, a MATERIALIZED or an ON CONFLICT. It is killed if a test fails. Guards that cover for each
other survive alone, so those of a statement are then removed together. What still survives no test
needs: write the test, or explain it in tests/mutation/explained.py. Exit code 1 says that there is
one which is neither.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import pytest

from tests.mutation.changes import Kind
from tests.mutation.explained import reason_for
from tests.mutation.memory import FOLDER, Memory
from tests.mutation.mutants import Mutant, mutants
from tests.mutation.runner import Mutating
from tests.mutation.score import Score
from tests.mutation.verdicts import Outcome, Verdict

TESTS = Path(__file__).resolve().parent.parent
CORE = (
    "*guard*", "store_*", "*races*", "keys*", "limit*", "queue*", "schedule*", "workflow_*",
    "expiry*", "signals", "stream*", "sqlite*", "postgres_concurrency", "postgres_locks",
    "postgres_plans", "postgres_queues", "postgres_steps", "postgres_joined", "floors",
    "settle_ways", "rollup*", "retention", "prune*", "why", "bulk_api", "jobs_api", "audit",
    "submi*", "worker_upkeep", "long_horizon", "mutation_locks",
)  # fmt: skip
"""The files of the suite that test what stores do."""
SLOW = ("*kills", "*races_long", "workflow_crashes", "schedule_crashes", "workflow_scale")
"""Those that start processes, or take long."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="dev.py mutate", description=__doc__.split("\n\n")[0])
    parser.add_argument("--engine", choices=["sqlite", "postgres"], help="only this one")
    parser.add_argument("--only", nargs="*", default=[""], help="mutants that begin like this")
    parser.add_argument("--kind", nargs="*", choices=[kind.name.lower() for kind in Kind])
    parser.add_argument("--survivors", action="store_true", help="not those killed before")
    parser.add_argument("--resume", action="store_true", help="go on where the last run ended")
    parser.add_argument("--tests", nargs="*", default=core(), help="files of tests")
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time (2)")
    parser.add_argument("--most", type=int, default=2_000, help="tests for each mutant (2000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutant later")
    parser.add_argument(
        "--memory", type=Path, default=FOLDER, help="what earlier runs have learned"
    )
    parser.add_argument("--save", action="store_true", help="keep the figures in docs/reliability/")
    options = parser.parse_args(arguments)
    if options.save and not is_whole(options):
        parser.error("--save keeps the figures of all mutants and tests: it goes with no choice")
    engines = [options.engine] if options.engine else ["sqlite", "postgres"]
    scores = [run(engine, options) for engine in engines]
    return int(not all(score.ok for score in scores))


def is_whole(options: argparse.Namespace) -> bool:
    """Whether a run counts all mutants, by what all tests do to the statements of today."""
    chosen = options.only != [""] or options.kind or options.survivors
    return not chosen and options.tests == core()


def run(engine: str, options: argparse.Namespace) -> Score:
    """Run the mutants of one engine, and print their score."""
    began = time.monotonic()
    memory = Memory.of(engine, options.memory)
    chosen = [each for each in mutants(engine) if each.name.startswith(tuple(options.only))]
    if options.kind:
        chosen = [each for each in chosen if each.kind.name.lower() in options.kind]
    chosen.sort(key=lambda each: list(Kind).index(each.kind))
    if not options.resume:
        memory.begin_again(each.name for each in chosen)
    known = [known_before(each, memory, options) for each in chosen]
    plugin = Mutating(
        engine,
        chosen,
        memory,
        print_line,
        known=[verdict for verdict in known if verdict is not None],
        processes=options.processes,
        most_tests=options.most,
        until=began + options.seconds,
    )
    quiet = "-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider"
    pytest.main(["-q", "-s", *quiet, *options.tests], plugins=[plugin])
    left_out = len(chosen) - len(plugin.verdicts)
    score = Score(engine, plugin.verdicts, plugin.unstable, memory.took, left_out=left_out)
    print_line(score.text())
    if options.save:
        score.save()
    return score


def known_before(mutant: Mutant, memory: Memory, options: argparse.Namespace) -> Verdict | None:
    """Return what became of a mutant in an earlier run, if that counts."""
    decided = memory.decided.get(mutant.name)
    if decided is not None and decided.texts == mutant.digest:
        verdict = Verdict(mutant, Outcome(decided.outcome), decided.killer, decided.tests)
        if verdict.outcome is not Outcome.EXPLAINED or reason_for(mutant) is not None:
            return verdict
    if options.survivors and mutant.name in memory.killers:
        return Verdict(mutant, Outcome.KILLED, memory.killers[mutant.name], 0)
    return None


def core() -> list[str]:
    """Return the files of tests that mutants have to survive."""
    found = {path for name in CORE for path in TESTS.glob(f"test_{name}.py")}
    slow = {path for name in SLOW for path in TESTS.glob(f"test_{name}.py")}
    return sorted(str(path) for path in found - slow)


def print_line(text: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
