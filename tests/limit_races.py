"""Worker processes that race for limits, and are killed: what did an independent recorder see?

    python -m tests.limit_races --jobs 2000 --workers 8 --kills 12 --url postgresql://...

Handlers write when they begin and end to a file of their own (``support/limited_app.py``). Whoever
reads that file afterwards knows nothing of leases, keys or locks, only of how many ran at once.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pulsed import Pulse, Status
from tests.support.limited_app import KEYS, KINDS, LEASE, PER_KEY, RATE, SHARED, make_app

PATIENCE = 180.0


@dataclass
class Run:
    """One run, as its handler wrote it down."""

    kind: str
    key: str
    number: int
    pid: int
    begin: float
    end: float


@dataclass
class Seen:
    """What the recorder saw."""

    runs: int = 0
    most: dict[str, int] = field(default_factory=dict)
    """The most runs at once of any key, by kind."""
    out_of_order: int = 0
    too_fast: int = 0
    """Windows in which more runs began than the rate and its burst allow."""
    left: int = 0
    """Jobs that did not succeed."""
    slots: int = 0
    """Jobs that still have a slot, when nothing runs any more."""


def race(url: str, *, jobs: int, workers: int, kills: int, seed: int = 1) -> Seen:
    """Run jobs of every kind of limit on processes that are killed; returns what was seen."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        record = str(Path(folder) / "record")
        app = make_app(url, record)
        with app:
            _enqueue(app, jobs)
            ended = _work(app, url, record, workers, kills, chance)
            counts = app.jobs.counts()
            seen = _judge(_read(record, ended))
            seen.left = sum(counts.values()) - counts[Status.SUCCEEDED]
            seen.slots = sum(limit.running for limit in app.limits.list())
            return seen


def _enqueue(app: Pulse, jobs: int) -> None:
    each = jobs // len(KINDS)
    for kind in KINDS:
        for number in range(each):
            app.enqueue(kind, {"key": f"k{number % KEYS}", "number": number})


def _work(
    app: Pulse, url: str, record: str, workers: int, kills: int, chance: random.Random
) -> dict[int, float]:
    """Run workers until all jobs are done, killing and replacing some; returns when each died."""
    command = [sys.executable, "-m", "tests.support.limited_app", url, record]
    processes = [subprocess.Popen(command) for _ in range(workers)]
    ended: dict[int, float] = {}
    give_up_at = time.monotonic() + PATIENCE
    try:
        while _living(app) and time.monotonic() < give_up_at:
            time.sleep(chance.uniform(0.2, 0.6))
            if kills > 0:
                kills -= 1
                victim = processes.pop(chance.randrange(len(processes)))
                victim.kill()
                victim.wait()
                ended[victim.pid] = time.monotonic()
                processes.append(subprocess.Popen(command))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)
            ended[process.pid] = time.monotonic()
    return ended


def _living(app: Pulse) -> bool:
    counts = app.jobs.counts()
    return counts[Status.SUCCEEDED] + counts[Status.DEAD_LETTERED] < sum(counts.values())


def _read(record: str, ended: dict[int, float]) -> list[Run]:
    runs: dict[str, Run] = {}
    for line in Path(record).read_text().splitlines():
        what, kind, key, number, run, pid, at = line.split()
        if what == "begin":
            died = ended.get(int(pid), float("inf"))
            runs[run] = Run(kind, key, int(number), int(pid), float(at), died)
        else:
            runs[run].end = float(at)
    return list(runs.values())


def _judge(runs: list[Run]) -> Seen:
    seen = Seen(runs=len(runs))
    by_key = defaultdict[tuple[str, str], list[Run]](list)
    for run in runs:
        # After that its process may have been so slow that another one has got its lease and slot.
        run.end = min(run.end, run.begin + LEASE / 2)
        by_key[run.kind, run.key].append(run)
    for (kind, _), some in by_key.items():
        if kind == "rated":
            seen.too_fast += _too_fast(some)
            continue
        seen.most[kind] = max(seen.most.get(kind, 0), _most_at_once(some))
        if kind == "ordered":
            seen.out_of_order += _out_of_order(some)
    return seen


def _most_at_once(runs: list[Run]) -> int:
    changes = sorted([(run.begin, 1) for run in runs] + [(run.end, -1) for run in runs])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def _too_fast(runs: list[Run]) -> int:
    """Count windows of a second with too many starts; a claim comes a little before its start."""
    begins = sorted(run.begin for run in runs)
    allowed = RATE.count + RATE.at_once
    slack = 0.3
    return sum(
        later - begin < 1.0 - slack for begin, later in zip(begins, begins[allowed:], strict=False)
    )


def _out_of_order(runs: list[Run]) -> int:
    """Count jobs that began although an earlier one of the key had not had its last run."""
    last = dict[int, float]()
    first = dict[int, float]()
    for run in runs:
        last[run.number] = max(last.get(run.number, 0.0), run.begin)
        first[run.number] = min(first.get(run.number, run.begin), run.begin)
    numbers = sorted(first)
    return sum(first[after] < last[before] for before, after in pairwise(numbers))


def problems(seen: Seen) -> list[str]:
    """Return what must not be."""
    wrong = [
        f"{kind}: {most} at once, not {allowed}"
        for kind, allowed in (("shared", SHARED), ("keyed", PER_KEY), ("ordered", 1))
        if (most := seen.most.get(kind, 0)) > allowed
    ]
    if seen.out_of_order:
        wrong.append(f"{seen.out_of_order} jobs out of order")
    if seen.too_fast:
        wrong.append(f"{seen.too_fast} windows above the rate")
    if seen.left:
        wrong.append(f"{seen.left} jobs did not succeed")
    if seen.slots:
        wrong.append(f"{seen.slots} slots were not given back")
    return wrong


def main() -> int:
    """Race, and say what was seen."""
    parser = argparse.ArgumentParser(prog="dev.py limits", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url", help="a database; without it, SQLite and a scratch PostgreSQL")
    options = parser.parse_args()
    wrong = []
    for url in [options.url] if options.url else _scratch():
        given = {name: getattr(options, name) for name in ("jobs", "workers", "kills", "seed")}
        seen = race(url, **given)
        sys.stdout.write(f"{url.partition(':')[0]}: {seen}\n")
        wrong += problems(seen)
    sys.stdout.write("\n".join(wrong or ["no limit was exceeded"]) + "\n")
    return 1 if wrong else 0


def _scratch() -> Iterator[str]:
    """Yield the URLs of databases that last until the next one."""
    from tests.support.scratch_postgres import ScratchPostgres  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/race.db"
    with ScratchPostgres() as server:
        yield server.url


if __name__ == "__main__":
    sys.exit(main())
