"""Removes each guard from each statement, and runs the tests that use it: `dev.py mutate`.

    python3 dev.py mutate
    python3 dev.py mutate --only settling.settle

A mutant is a statement with one condition that is always true. It is killed if a test fails. Guards
that cover for each other survive alone, so those of a statement are then removed together. What
still survives no test needs: write the test, or explain it in tests/mutation/explained.py. Exit
code 1 says that there is one which is neither.
"""

from __future__ import annotations

import argparse
import sys
import time

import pytest

from tests.chaos.checker import Check
from tests.chaos.report import Report
from tests.mutation.explained import is_explained
from tests.mutation.mutants import engine_named, mutants
from tests.mutation.runner import Mutating

CORE = (
    "test_guards", "test_schedule_guards", "test_workflow_guards", "test_limit_guards",
    "test_prune_guards", "test_bulk_guards", "test_store_beat", "test_store_bulk",
    "test_store_checkpoints", "test_store_children", "test_store_claim", "test_store_controls",
    "test_store_families", "test_store_fencing", "test_store_operators", "test_store_prune",
    "test_store_settle", "test_store_submit", "test_store_waits", "test_store_watchdog",
    "test_store_crashes", "test_schedule_changes", "test_schedule_fires", "test_expiry",
    "test_schedule_retention", "test_keys", "test_limits", "test_queue_controls", "test_streams",
    "test_store_streams", "test_settle_ways", "test_store_ambiguous", "test_limit_model",
    "test_schedule_broken", "test_store_places", "test_why", "test_workflow_replays",
    "test_keys_races",
)  # fmt: skip
"""The files of the suite that test what stores do."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="dev.py mutate", description=__doc__.split("\n\n")[0])
    parser.add_argument("--engine", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--only", nargs="*", default=[""], help="statements that begin like this")
    parser.add_argument("--tests", nargs="*", default=CORE, help="files of tests, without .py")
    parser.add_argument("--processes", type=int, default=2, help="mutants at a time (2)")
    parser.add_argument("--most", type=int, default=2_000, help="tests for each mutant (2000)")
    parser.add_argument("--save", action="store_true", help="keep the figures in docs/reliability/")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    engine = engine_named(options.engine)
    chosen = [each for each in mutants(engine) if each.name.startswith(tuple(options.only))]
    plugin = Mutating(options.engine, chosen, options.processes, options.most, print_line)
    files = [f"tests/{name}.py" for name in options.tests]
    quiet = "-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider"
    pytest.main(["-q", *quiet, *files], plugins=[plugin])
    unexplained = [each.name for each in plugin.survivors if not is_explained(each.name)]
    report = Report(
        kind="mutation",
        name=f"mutation-{options.engine}",
        title=f"guards removed from the statements of {options.engine}",
        command=f"python3 dev.py mutate --engine {options.engine} --most {options.most}",
        engine=options.engine,
        seconds=time.monotonic() - began,
        counts={
            "mutants": len(chosen),
            "killed": len(plugin.killed),
            "covered by another guard of the statement": len(plugin.covered),
            "survived": len(plugin.survivors),
            "explained": len(plugin.survivors) - len(unexplained),
        },
        checks=[
            Check("", "each guard is needed by a test", len(chosen), len(unexplained)),
        ],
    )
    print_line(report.text())
    for name in unexplained:
        print_line(f"  unexplained: {name}")
    if options.save:
        report.save()
    return int(bool(unexplained or not plugin.killed))


def print_line(text: str) -> None:
    """Print, past what pytest captures."""
    sys.__stdout__.write(f"{text}\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


if __name__ == "__main__":
    sys.exit(main())
