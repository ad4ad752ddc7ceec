"""`python3 dev.py soak`: a steady load for a long time; nothing may grow or slow down.

    python3 dev.py soak --minutes 60 --engine postgres --save

Jobs arrive at an even pace whatever becomes of them; ten schedules fire each second, workflows are
in flight, workers come and go, and now and then a session holds an old snapshot. Throughput, start
latency, dead tuples, WAL, table size, memory and descriptors of the last third are compared with
those of the first, after a warm-up. Exit code 1 says that one of them is not flat.
"""

from __future__ import annotations

import argparse
import logging
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.checker import Check
from tests.chaos.report import FOLDER, Progress, Report
from tests.soak import flatness
from tests.soak.run import Plan, Soak, Soaked
from tests.support.scratch_postgres import ScratchPostgres

TITLES = {"postgres": "Soak, PostgreSQL", "sqlite": "Soak, SQLite"}


def parse() -> argparse.Namespace:
    about = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(prog="dev.py soak", description=about[0] + " " + about[2])
    parser.add_argument("--minutes", type=float, default=10, help="how long (10)")
    parser.add_argument("--engine", choices=list(TITLES), default="postgres")
    parser.add_argument("--rate", type=float, default=30, help="jobs a second (30)")
    parser.add_argument("--workers", type=int, default=3, help="how many processes (3)")
    parser.add_argument("--save", action="store_true", help="write docs/reliability, with a plot")
    return parser.parse_args()


@contextmanager
def database(engine: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a database as in production: with fsync, on a disk."""
    if engine == "sqlite":
        yield f"sqlite:///{folder}/jobs.db"
        return
    with ScratchPostgres(fsync=True) as server:
        yield server.url


def checks(soaked: Soaked) -> list[Check]:
    """Return whether all jobs ran, and whether every measure is flat."""
    enqueued, ran = (soaked.counts[f"{what}"] for what in ("jobs enqueued", "jobs that ran"))
    return [
        Check("I1", "enqueued jobs ran", enqueued, max(0, enqueued - ran)),
        Check("I11", "in the end nothing runs, waits or is due", enqueued, soaked.left),
        *flatness.check(soaked.series),
    ]


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and leave nothing behind
    logging.disable()
    began = time.monotonic()
    plan = Plan(60 * options.minutes, options.rate, workers=options.workers)
    with (
        tempfile.TemporaryDirectory(prefix="pulsed-soak-") as folder,
        database(options.engine, Path(folder)) as url,
    ):
        soaked = Soak(url, Path(folder), plan).run(Progress(options.engine))
    report = Report(
        "soak",
        f"soak-{options.engine}",
        TITLES[options.engine],
        f"python3 dev.py soak --engine {options.engine} --minutes {options.minutes:g}",
        options.engine,
        time.monotonic() - began,
        soaked.counts,
        checks(soaked),
        more={"series": soaked.series, "snapshots": plan.snapshots},
    )
    sys.stdout.write(report.text() + "\n")
    if options.save:
        draw(report.save())
    return 0 if report.ok else 1


def draw(results: Path) -> None:
    """Draw in a Python that has matplotlib, made on demand."""
    from benchmarks.homes import python_with  # noqa: PLC0415 - only who saves needs it

    script = Path(__file__).with_name("plot.py")
    python = python_with("plots", ("matplotlib",))
    subprocess.run([str(python), str(script), str(results), str(FOLDER)], check=True)


if __name__ == "__main__":
    sys.exit(main())
