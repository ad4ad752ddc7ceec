"""``python3 dev.py bench``: how fast jobs go in and out, beside the raw drivers and the peers.

PostgreSQL runs with fsync and synchronous commits and SQLite with ``synchronous=FULL``, as in
production. Figures of one run may be compared with each other; those of two machines may not.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from datetime import UTC, datetime

from benchmarks import machine, plots, report, saved
from benchmarks.databases import serving
from benchmarks.peers import PEERS, measure_peers
from benchmarks.results import Results
from benchmarks.saved import Saved
from benchmarks.scale import FIGURE, GLANCE, LONG, Scale
from benchmarks.workloads import BOTH, WORKLOADS


def main() -> None:
    arguments = parse()
    if arguments.report:
        kept = saved.read() or sys.exit("nothing was saved yet; see bench --save")
        publish(kept)
        return
    run = measure(arguments)
    print(report.console(run.results))
    if arguments.save:
        run.write()
        publish(run)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dev.py bench", description=__doc__)
    parser.add_argument("--engine", metavar="NAMES", help="postgres, sqlite (both)")
    parser.add_argument("--only", metavar="NAMES", help=f"some of {', '.join(WORKLOADS)}")
    parser.add_argument("--peers", metavar="NAMES", help=f"all, or some of {', '.join(PEERS)}")
    parser.add_argument("--repeat", type=int, metavar="N", help="samples of each figure (3)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="a glance, within a minute")
    length.add_argument("--full", action="store_true", help="5 samples, 1,000,000 jobs for memory")
    parser.add_argument(
        "--save",
        action="store_true",
        help="write docs/benchmarks; with --only, the other workloads stay as they were saved",
    )
    parser.add_argument("--report", action="store_true", help="only write the page and plots again")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> Saved:
    """Run what was asked for; a run that is to be saved continues the saved one."""
    scale = chosen_scale(arguments)
    workloads = chosen_workloads(arguments)
    peers = chosen(arguments.peers, tuple(PEERS), "peer") if arguments.peers else ()
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    before = saved.read() if arguments.save else None
    results = Results(now, list(before.results) if before else [])
    about = dict(before.peers) if before else {}
    for engine in chosen(arguments.engine, BOTH, "engine"):
        with serving(engine) as server:
            for name in workloads:
                if engine in WORKLOADS[name].engines:
                    results.drop(name, engine)
                    WORKLOADS[name].measure(server, results, scale)
            about |= measure_peers(server, results, scale, peers)
    return Saved(results, machine.describe(), dataclasses.asdict(scale), about)


def publish(run: Saved) -> None:
    plots.draw(saved.FILE, saved.FOLDER)
    report.write(run)
    print(f"wrote {report.PAGE}", file=sys.stderr)


def chosen(asked: str | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    names = known if asked in (None, "all") else tuple(str(asked).split(","))
    for name in names:
        if name not in known:
            sys.exit(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return names


def chosen_workloads(arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.quick and not arguments.only:
        return tuple(name for name, workload in WORKLOADS.items() if workload.quick)
    return chosen(arguments.only, tuple(WORKLOADS), "workload")


def chosen_scale(arguments: argparse.Namespace) -> Scale:
    scale = GLANCE if arguments.quick else LONG if arguments.full else FIGURE
    if arguments.repeat:
        scale = dataclasses.replace(scale, repeat=arguments.repeat)
    return scale


if __name__ == "__main__":
    main()
