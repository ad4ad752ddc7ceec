"""``python3 dev.py bench``: how fast jobs go in and out, beside the raw drivers and the peers.

PostgreSQL runs with fsync and synchronous commits and SQLite with ``synchronous=FULL``, as in
production. Figures of one run may be compared with each other; those of two machines may not.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from datetime import UTC, datetime

from benchmarks.databases import serving
from benchmarks.results import Results
from benchmarks.scale import FIGURE, GLANCE, LONG, Scale
from benchmarks.workloads import WORKLOADS


def main() -> None:
    arguments = parse()
    results = Results(datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    for engine in names(arguments.engine, ("postgres", "sqlite"), "engine"):
        with serving(engine) as server:
            for name in names(arguments.only, tuple(WORKLOADS), "workload"):
                if engine in WORKLOADS[name].engines:
                    WORKLOADS[name].measure(server, results, scale(arguments))
    show(results)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dev.py bench", description=__doc__)
    parser.add_argument("--engine", metavar="NAMES", help="postgres, sqlite (both)")
    parser.add_argument("--only", metavar="NAMES", help=f"of {', '.join(WORKLOADS)} (all)")
    parser.add_argument("--repeat", type=int, metavar="N", help="samples of each figure (3)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="a glance: less of everything")
    length.add_argument("--full", action="store_true", help="memory over 1,000,000 jobs")
    return parser.parse_args()


def names(asked: str | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    chosen = tuple(asked.split(",")) if asked else known
    for name in chosen:
        if name not in known:
            sys.exit(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return chosen


def scale(arguments: argparse.Namespace) -> Scale:
    chosen = GLANCE if arguments.quick else LONG if arguments.full else FIGURE
    if arguments.repeat:
        chosen = dataclasses.replace(chosen, repeat=arguments.repeat)
    return chosen


def show(results: Results) -> None:
    for m in results:
        print(f"{m.workload:<10} {m.engine:<9} {m.subject:<46} {m.median:>12,.4g} {m.metric}")


if __name__ == "__main__":
    main()
