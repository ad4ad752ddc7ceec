"""`python3 dev.py chaos`: break everything under a mixed load, then check every invariant.

    python3 dev.py chaos --engine postgres --seconds 60

Plain jobs, failing and long ones, schedules, workflows with transactional steps, fan-outs, signals,
keys and limits run while workers, servers, the database, the network and the disk fail. A checker
that knows nothing of pulsed then reads the tables and the ledger that the handlers wrote. Exit code
1 says that an invariant of docs/faults.md did not hold.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.chaos.checker import check
from tests.chaos.hosts import HostsSite
from tests.chaos.patroni import PatroniSite
from tests.chaos.report import Progress, Report
from tests.chaos.sites import PostgresSite, ServerSite, Site, SqliteSite, make_tables
from tests.chaos.storm import Plan, Storm

ENGINES: dict[str, type[Site]] = {
    each.engine: each for each in (SqliteSite, PostgresSite, ServerSite)
}
SITES = ENGINES | {each.engine: each for each in (PatroniSite, HostsSite)}
PER_SECOND = 60


def parse() -> argparse.Namespace:
    about = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(prog="dev.py chaos", description=about[0] + " " + about[2])
    parser.add_argument(
        "--engine", choices=[*ENGINES, "all"], default="all", help="where (one after the other)"
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long to break things (60)")
    parser.add_argument("--jobs", type=int, help=f"how many to enqueue ({PER_SECOND} a second)")
    parser.add_argument("--workers", type=int, default=4, help="how many processes (4)")
    parser.add_argument("--every", type=float, default=0.5, help="seconds of each schedule (0.5)")
    parser.add_argument("--seed", type=int, help="for the same choices again")
    parser.add_argument("--save", action="store_true", help="write docs/reliability/*.json")
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--crashes", action="store_true", help="only jobs that kill their worker, and neighbours"
    )
    other.add_argument(
        "--patroni",
        action="store_const",
        const="patroni",
        dest="engine",
        help="on three nodes under Patroni, with HAProxy, PgBouncer and servers",
    )
    other.add_argument(
        "--hosts",
        action="store_const",
        const="hosts",
        dest="engine",
        help="on hosts apart (network namespaces), between which the network is cut",
    )
    other.add_argument(
        "--workflows", action="store_true", help="only a workflow that dies at each storage call"
    )
    options = parser.parse_args()
    options.seed = random.randrange(1_000_000) if options.seed is None else options.seed
    return options


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and leave nothing behind
    if options.workflows:
        return die_everywhere()
    if options.engine == "all":
        engines = [name for name in ENGINES if name != "server" or not options.crashes]
        again = [sys.executable, "-m", "tests.chaos", *sys.argv[1:], "--seed", str(options.seed)]
        return max(subprocess.call([*again, "--engine", engine]) for engine in engines)
    if options.crashes:
        from tests.chaos import crashes  # noqa: PLC0415 - its handlers are for its own workers

        report = crashes.run(options.engine, options.jobs or 1_000, options.workers)
    elif lacking := SITES[options.engine].lacking():
        sys.stdout.write(f"left out: {lacking}\n")
        return 0
    else:
        report = run(options)
    sys.stdout.write(f"{report.text()}; seed {options.seed}\n")
    sys.stdout.flush()
    if options.save:
        report.save()
    return 0 if report.ok else 1


def die_everywhere() -> int:
    """Kill a workflow at each of its storage calls in turn."""
    tests = Path(__file__).parents[1] / "test_workflow_crashes.py"
    every_crash = os.environ | {"PULSED_EVERY_CRASH": "1"}
    return subprocess.call([sys.executable, "-m", "pytest", "-q", tests], env=every_crash)


def run(options: argparse.Namespace) -> Report:
    """Run a storm at one site; returns what was found."""
    logging.disable()  # of the producer's troubles the checker hears
    rng = random.Random(options.seed)
    jobs = options.jobs or round(PER_SECOND * options.seconds)
    began = time.monotonic()
    with SITES[options.engine](options.workers, rng) as site:
        make_tables(site)
        storm = Storm(site, Plan(options.seconds, jobs, options.every), rng)
        progress = Progress(options.engine)
        facts = storm.rage(progress)
        progress.end()
        return Report(
            "chaos",
            f"chaos-{options.engine}",
            f"Chaos, {site.title}",
            f"python3 dev.py chaos {site.option} --seconds {options.seconds:g}",
            options.engine,
            time.monotonic() - began,
            {"jobs": len(facts.rows), "runs": sum(1 for _ in facts.of("begin"))}
            | dict(storm.struck.most_common()),
            check(facts),
            site.left_out,
            {"seed": options.seed},
        )


if __name__ == "__main__":
    sys.exit(main())
