"""One soak: start the load, disturb it in an orderly way, and measure at intervals."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from pulsed import Pulse, PulsedError
from tests.chaos.fleet import Fleet, run_module
from tests.chaos.tables import ENDED, Query, reading
from tests.soak import load
from tests.soak.measures import Postgres, Sqlite, descriptors, percentile, resident_mb

SCHEDULES = 10
"""Each fires once a second."""
PATIENCE = 120.0
DRAIN = 300.0
"""Seconds in which the rest must drain. The job of a killed worker waits for its lease, for a tick
of 10 s, and for a grace after each gap between scans."""
LEAST_KEPT = 60.0


@dataclass
class Plan:
    """How long, how much, and how often it is disturbed."""

    seconds: float
    rate: float = 30.0
    """Jobs a second, whatever becomes of those before them."""
    journeys: float = 1.0
    """Workflows a second."""
    workers: int = 3

    @property
    def flight(self) -> float:
        """Seconds for which a workflow sleeps between its two steps."""
        return min(20.0, self.seconds / 4)

    @property
    def interval(self) -> float:
        return max(0.5, self.seconds / 120)

    @property
    def churn_every(self) -> float:
        return min(20.0, self.seconds / 2)

    @property
    def keep(self) -> float:
        return max(LEAST_KEPT, self.seconds / 20)

    @property
    def snapshots(self) -> list[tuple[float, float]]:
        """When an old snapshot is held: six times, for a twentieth of the run each."""
        sixth = self.seconds / 6
        return [(n * sixth, n * sixth + self.seconds / 20) for n in range(6)]


@dataclass
class Soaked:
    """What came out."""

    series: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)
    left: int = 0
    """Jobs that had not ended when the rest should have drained."""
    examples: list[str] = field(default_factory=list)
    """Some of them."""


class Soak:
    """A steady load on one database."""

    def __init__(self, url: str, folder: Path, plan: Plan) -> None:
        self._url = url
        self._plan = plan
        self._record = folder / "record"
        self._record.touch()
        self._read = 0
        self._over = threading.Event()
        self._fleet = Fleet(self._start_worker, plan.workers, random.Random(1))
        self._result = Soaked()

    def run(self, show: Callable[[str], None]) -> Soaked:
        """Run to the end; returns what was measured."""
        with load.make_app(self._url, self._plan.keep) as app, reading(self._url) as query:
            app.jobs.counts()
            for number in range(SCHEDULES):
                app.schedules.put(f"tick {number}", load.tick.bind(), every=1.0)
            self._fleet.launch()
            threads = [
                threading.Thread(target=each, args=(app,), daemon=True)
                for each in (self._enqueue, self._depart)
            ]
            try:
                self._wait_for_workers(query)
                for thread in threads:
                    thread.start()
                self._measure(query, show)
                self._over.set()
                for thread in threads:
                    thread.join()
                self._drain(app, query)
            finally:
                self._over.set()
                self._fleet.end()
        return self._result

    def _start_worker(self, place: int) -> Popen[bytes]:
        arguments = [self._url, str(self._record), str(self._plan.keep)]
        return run_module(["tests.soak.load", *arguments])

    def _wait_for_workers(self, query: Query) -> None:
        give_up_at = time.monotonic() + PATIENCE
        while query("SELECT count(*) FROM pulse_workers")[0][0] < self._plan.workers:
            assert time.monotonic() < give_up_at, "the workers did not start"
            time.sleep(0.05)

    # -- the load -------------------------------------------------------------------------------

    def _enqueue(self, app: Pulse) -> None:
        for _ in self._beats(self._plan.rate):
            self._try(lambda: load.steady.enqueue(time.monotonic()), "jobs enqueued")

    def _depart(self, app: Pulse) -> None:
        for _ in self._beats(self._plan.journeys):
            self._try(lambda: load.journey.enqueue(self._plan.flight), "workflows enqueued")

    def _try(self, enqueue: Callable[[], object], what: str) -> None:
        try:
            enqueue()
            self._result.counts[what] += 1
        except PulsedError:
            self._result.counts["enqueues that failed"] += 1

    def _beats(self, rate: float) -> Iterator[int]:
        """Yield at an even pace until the soak is over; what is late is made up for."""
        began = time.monotonic()
        for number in itertools.count():
            if self._over.wait(max(0.0, began + number / rate - time.monotonic())):
                return
            yield number

    # -- what is measured -----------------------------------------------------------------------

    def _measure(self, query: Query, show: Callable[[str], None]) -> None:
        database = self._database(query)
        began, written = time.monotonic(), database.log_bytes()
        next_churn = began + self._plan.churn_every
        with contextlib.ExitStack() as snapshot:
            for number in itertools.count(1):
                now = self._sleep_until(began + number * self._plan.interval)
                self._keep_snapshot(snapshot, now - began)
                jobs = self._started()
                was, written = written, database.log_bytes()
                self._note(
                    {
                        "minutes": (now - began) / 60,
                        "jobs/s": len(jobs) / self._plan.interval,
                        "p50 start, ms": 1000 * percentile(jobs, 50),
                        "p99 start, ms": 1000 * percentile(jobs, 99),
                        "WAL per job, bytes": (written - was) / max(1, len(jobs)),
                        "worker, MB": resident_mb(self._fleet.processes[0].pid),
                        "worker, descriptors": descriptors(self._fleet.processes[0].pid),
                        "soak's own, MB": resident_mb(os.getpid()),
                    }
                    | database.state()
                )
                if now >= next_churn:
                    self._churn()
                    next_churn += self._plan.churn_every
                show(f"{now - began:6.0f} s  {len(jobs)} jobs in {self._plan.interval:g} s")
                if now - began >= self._plan.seconds:
                    return

    def _database(self, query: Query) -> Postgres | Sqlite:
        if self._url.startswith("sqlite"):
            return Sqlite(query, Path(self._url.removeprefix("sqlite:///")))
        return Postgres(query)

    def _note(self, sample: dict[str, float]) -> None:
        for name, value in sample.items():
            self._result.series[name].append(round(value, 4))

    def _sleep_until(self, then: float) -> float:
        time.sleep(max(0.0, then - time.monotonic()))
        return time.monotonic()

    def _started(self) -> list[float]:
        """Return how late each job was that has started since the last time."""
        with self._record.open("rb") as file:
            file.seek(self._read)
            lines = file.read().splitlines(keepends=True)
        late = []
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._read += len(line)
            kind, _, seconds = line.decode().split()
            self._result.counts["runs"] += 1
            if kind == "job":
                late.append(float(seconds))
        return late

    # -- disturbances ---------------------------------------------------------------------------

    def _churn(self) -> None:
        """Replace a worker, never the first one; every other time by SIGKILL."""
        kills = self._result.counts["workers replaced"] % 2 == 1
        victim = self._fleet.rng.choice(self._fleet.processes[1:])
        victim.kill() if kills else victim.terminate()
        victim.wait(PATIENCE)
        self._fleet.replace_the_dead()
        self._result.counts["workers replaced"] += 1

    def _keep_snapshot(self, held: contextlib.ExitStack, at: float) -> None:
        """Hold an old snapshot at its times, as a report that somebody runs would."""
        wanted = any(begin <= at < end for begin, end in self._plan.snapshots)
        if wanted and not self._holding:
            query = held.enter_context(reading(self._url, patience=self._plan.seconds))
            is_file = self._url.startswith("sqlite")
            query("BEGIN" if is_file else "BEGIN ISOLATION LEVEL REPEATABLE READ")
            query("SELECT count(*) FROM pulse_workers")
            self._result.counts["old snapshots held"] += 1
        elif not wanted:
            held.close()
        self._holding = wanted

    _holding = False

    def _drain(self, app: Pulse, query: Query) -> None:
        for number in range(SCHEDULES):
            app.schedules.pause(f"tick {number}")
        living = f"FROM pulse_jobs WHERE status NOT IN {ENDED}"
        give_up_at = time.monotonic() + self._plan.flight + DRAIN
        while query(f"SELECT count(*) {living}")[0][0] and time.monotonic() < give_up_at:
            self._fleet.replace_the_dead()
            time.sleep(0.1)
        left = query(f"SELECT topic, status, attempts, next_run_at, lease_until {living}")
        self._result.left = len(left)
        self._result.examples = [str(row) for row in left[:5]]
        self._started()
        self._count_those_that_ran()

    def _count_those_that_ran(self) -> None:
        """Count each job once: one whose worker was killed before it reported ran again."""
        with self._record.open() as file:
            ran = {tuple(line.split()[:2]) for line in file}
        self._result.counts.update(f"{kind}s that ran" for kind, _ in ran)
