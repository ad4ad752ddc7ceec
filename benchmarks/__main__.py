"""``python3 dev.py bench``: how fast jobs go in and out, beside the bare drivers and the peers.

PostgreSQL runs with fsync and synchronous commits and SQLite with ``synchronous=FULL``, as in
production. Figures of one part may be compared with each other; those of two machines may not.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys

from benchmarks import machine, plots, report, saved
from benchmarks.parts import measure
from benchmarks.peers.peer import PEERS
from benchmarks.saved import Saved
from benchmarks.scale import FIGURE, GLANCE, LONG, Scale
from benchmarks.workloads import BOTH, WORKLOADS
from benchmarks.workloads.phases import SERIES

NEED_PEERS = ("peers-steps",)


def main() -> None:
    arguments = parse()
    if arguments.report:
        draw()
        return
    kept = (saved.read() if arguments.save else None) or Saved()
    here = machine.describe()
    try:
        failed = measure(
            kept,
            chosen(arguments.engine, BOTH, "engine"),
            chosen_workloads(arguments),
            chosen_scale(arguments),
            here,
            missing_only=arguments.missing,
            after_each=save if arguments.save else ignore,
        )
    finally:
        if arguments.save:
            draw()
    print(report.console(kept.on(saved.name_of(here)).results))
    if failed:
        sys.exit(f"not measured, see above: {', '.join(failed)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dev.py bench", description=__doc__)
    parser.add_argument("--engine", metavar="NAMES", help="postgres, sqlite (both)")
    parser.add_argument("--only", metavar="NAMES", help=f"some of {', '.join(WORKLOADS)}")
    parser.add_argument("--peers", metavar="NAMES", help=f"all, or some of {', '.join(PEERS)}")
    parser.add_argument("--repeat", type=int, metavar="N", help="samples of each figure (3)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="a glance, within a minute")
    length.add_argument("--full", action="store_true", help="1,000,000 jobs for memory")
    parser.add_argument(
        "--save",
        action="store_true",
        help="write docs/benchmarks after each part; parts not measured stay as they were saved",
    )
    parser.add_argument(
        "--missing",
        action="store_true",
        help="with --save: only parts that are not saved in this size and of this code",
    )
    parser.add_argument("--report", action="store_true", help="only write the page and plots again")
    return parser.parse_args()


def save(kept: Saved) -> None:
    kept.write()
    report.write(kept)


def ignore(kept: Saved) -> None:
    """Save nothing."""


def draw() -> None:
    """Draw the plots of what was saved, and write the page again, which shows those there are."""
    kept = saved.read() or sys.exit("nothing was saved yet; see bench --save")
    if SERIES.exists():
        shutil.copy(SERIES, saved.FOLDER)
    plots.draw(saved.FILE, saved.FOLDER)
    report.write(kept)
    print(f"wrote {report.PAGE}", file=sys.stderr)


def chosen(asked: str | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    names = known if asked in (None, "all") else tuple(str(asked).split(","))
    for name in names:
        if name not in known:
            sys.exit(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return names


def chosen_workloads(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return what to measure; peers only on request, since they have to be installed."""
    if arguments.only:
        return chosen(arguments.only, tuple(WORKLOADS), "workload")
    return tuple(
        name
        for name, workload in WORKLOADS.items()
        if (arguments.peers if name in NEED_PEERS else workload.quick or not arguments.quick)
    )


def chosen_scale(arguments: argparse.Namespace) -> Scale:
    scale = GLANCE if arguments.quick else LONG if arguments.full else FIGURE
    peers = chosen(arguments.peers, tuple(PEERS), "peer") if arguments.peers else ()
    return dataclasses.replace(scale, repeat=arguments.repeat or scale.repeat, peers=peers)


if __name__ == "__main__":
    main()
