"""Kill workers again and again under load, then look whether anything was lost.

    python -m tests.chaos --seconds 60 --jobs 20000 --workers 4 --engine both

Jobs of every temper are enqueued while each second one random worker dies by SIGKILL and another
one takes its place. When the noise is over the rest must drain, and plain SQL, past all of
pulsed's own code, must find every invariant kept. Exit code 1 says that one was not.

    python -m tests.chaos --schedules --seconds 30

With ``--schedules`` the processes fire a schedule while they are killed: each occurrence must have
become one job. With ``--workflows`` a workflow's worker dies at each of its storage calls in turn.
With ``--crashes`` nine jobs in a thousand kill their worker, and the others must not pay for it.
With ``--server`` workers and producers reach the database through two servers
only, which die as well.
"""

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from pulsed import Backoff, Context, Pulse, PulsedError, Router, Snooze
from tests.support.scratch_postgres import ScratchPostgres

LEASE = 0.9
TICK = 0.3
BATCH = 50
DRAIN_SECONDS = 90.0
ENDED = ("SUCCEEDED", "DEAD_LETTERED", "CANCELLED")
GIVEN_BACK = "this attempt does not count"
"""How the error of a run ends that its process took along."""

router = Router()
sturdy: Any = {"lease": LEASE, "max_attempts": 50, "backoff": Backoff.fixed(0.05)}
fragile: Any = {**sturdy, "max_attempts": 3}

# -- jobs of every temper -----------------------------------------------------------------------


@router.job(**sturdy)
async def quick(n: int) -> int:
    return n


@router.job(**sturdy)
def plain(n: int) -> int:
    return n


@router.job(**sturdy)
async def sleeping(n: int) -> int:
    await asyncio.sleep(random.uniform(0.01, 0.2))
    return n


@router.job(**sturdy)
def flaky(ctx: Context, n: int) -> int:
    if ctx.attempt == 1:
        raise ConnectionError("not at the first try")
    return n


@router.job(**sturdy)
async def snoozing(n: int) -> int:
    if random.random() < 0.5:
        raise Snooze(0.1)
    return n


@router.job(**fragile)
async def hopeless(n: int) -> int:
    raise ValueError(f"{n} never works")


@router.job(**fragile)
def poison(n: int) -> int:
    os._exit(9)


KINDS = {quick: 40, plain: 20, sleeping: 15, flaky: 10, snoozing: 10, hopeless: 5}
PARKED = (hopeless.topic, poison.topic)


def work(url: str) -> int:
    """Be a worker."""
    logging.basicConfig(level=logging.ERROR)
    app = Pulse(url)
    app.include(router)
    return app.run(concurrency=20, poll=0.2, tick=TICK).value


# -- the storm ------------------------------------------------------------------------------------


@dataclass
class Storm:
    """One run: what is to be done, and what has happened so far."""

    url: str
    seconds: float
    jobs: int
    workers: int
    rng: random.Random
    acknowledged: list[UUID] = field(default_factory=list)
    refused: int = 0
    killed: int = 0
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    patience: float = DRAIN_SECONDS
    """Seconds in which the rest must drain."""

    def rage(self, show: Callable[[str], None]) -> None:
        """Enqueue and kill until the time is over, then wait until nothing is left to do."""
        self.processes = [self._start_worker() for _ in range(self.workers)]
        began = time.monotonic()
        producer = threading.Thread(target=self._enqueue_all, args=(began,))
        producer.start()
        try:
            next_kill = began + 1
            while (now := time.monotonic()) < began + self.seconds or not self.has_killed:
                self._replace_the_dead()
                if now >= next_kill:
                    self._kill_one()
                    next_kill += 1
                show(f"{now - began:5.1f} s  {self._so_far()}")
                time.sleep(0.05)
            producer.join()
            self._drain(show)
        finally:
            self._end()

    @property
    def app_url(self) -> str:
        """What workers and producers are given."""
        return self.url

    def _enqueue_all(self, began: float) -> None:
        app, plan = self._producer(), self._plan()
        spread = 0.8 * self.seconds
        for start in range(0, self.jobs, BATCH):
            due = began + spread * start / self.jobs
            time.sleep(max(0.0, due - time.monotonic()))
            calls = [kind.bind(n) for n, kind in enumerate(plan[start : start + BATCH], start)]
            for kind in dict.fromkeys(plan[start : start + BATCH]):
                mine = [call for call in calls if call.topic == kind.topic]
                try:
                    self.acknowledged += [job.id for job in kind.enqueue_many(mine)]
                except PulsedError:  # refused or unknown: no promise was made
                    self.refused += len(mine)
        app.close()

    def _producer(self) -> Pulse:
        app = Pulse(self.app_url)
        app.include(router)
        return app

    def _plan(self) -> list[Any]:
        plan = self.rng.choices(list(KINDS), weights=list(KINDS.values()), k=self.jobs)
        plan[len(plan) // 10] = poison
        return plan

    def _start_worker(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "tests.chaos", "--be-worker", self.app_url])

    def _kill_one(self) -> None:
        victim = self.rng.choice(self.processes)
        if victim.poll() is None:
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            self.killed += 1

    def _replace_the_dead(self) -> None:
        self.processes = [
            process if process.poll() is None else self._start_worker()
            for process in self.processes
        ]

    def _drain(self, show: Callable[[str], None]) -> None:
        deadline = time.monotonic() + self.patience
        with reading(self.url) as query:
            living = f"SELECT count(*) FROM pulse_jobs WHERE status NOT IN {ENDED}"
            while (left := query(living)[0][0]) and time.monotonic() < deadline:
                self._replace_the_dead()
                show(f"draining, {left:,} to go  {self._so_far()}")
                time.sleep(0.05)

    def _end(self) -> None:
        end(self.processes)

    @property
    def has_killed(self) -> bool:
        """Whether it has put anything to the test; a busy machine may leave it no time to."""
        return self.killed > 0

    @property
    def casualties(self) -> str:
        return f"{self.killed} workers"

    def _so_far(self) -> str:
        return f"{len(self.acknowledged):,} of {self.jobs:,} enqueued, {self.casualties} killed"


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Let processes end, one way or another."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# -- the truth ------------------------------------------------------------------------------------

Query = Callable[[str], list[tuple[Any, ...]]]


@contextmanager
def reading(url: str) -> Iterator[Query]:
    """Read the tables, past all of pulsed's own code."""
    connection: Any
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)
    else:
        import psycopg  # noqa: PLC0415 - the many workers of a storm do not need it

        connection = psycopg.connect(url, autocommit=True)
    with closing(connection):
        yield lambda sql: connection.execute(sql).fetchall()


def violations(query: Query, acknowledged: list[UUID], *, refused: int, killed: int) -> list[str]:
    """Return a line for each invariant that does not hold; what was never put to the test fails."""
    rows = query(
        "SELECT id, topic, status, attempts, max_attempts, lease_token, payload, result, "
        "locked_by IS NOT NULL OR lease_until IS NOT NULL, last_error FROM pulse_jobs"
    )
    stored = {_uuid(row[0]): row for row in rows}
    failures = query("SELECT job_id, error FROM pulse_failures")
    failed = Counter(_uuid(job) for job, error in failures if not error.endswith(GIVEN_BACK))
    expired = query("SELECT count(*) FROM pulse_failures WHERE error = 'worker lease expired'")
    promised = set(acknowledged)
    topics = Counter(row[1] for row in rows)

    found = [
        _none("acknowledged jobs that are not there", promised - stored.keys(), of=len(promised)),
        _none("jobs that have not ended", _where(stored, _is_alive), of=len(stored)),
        _none("leases on jobs that do not run", _where(stored, _has_stray_lease), of=len(stored)),
        _none("jobs with too many attempts or none", _where(stored, _is_off), of=len(stored)),
        _none(
            "jobs that ended otherwise than they must", _where(stored, _is_wrong), of=len(stored)
        ),
        _none(
            "attempts that are neither a failure nor the success",
            {job for job, row in stored.items() if row[3] != failed[job] + _succeeded(row)},
            of=sum(failed.values()),
        ),
        _none("kinds of jobs that never came", _all_topics() - topics.keys(), of=len(topics)),
    ]
    if not refused and len(stored) != len(promised):
        found.append(f"{len(stored):,} jobs are stored, but {len(promised):,} were enqueued")
    if killed and not expired[0][0]:
        found.append(f"{killed} workers were killed, and yet no lease ever expired")
    due = "SELECT count(*) FROM pulse_jobs WHERE status IN ('PENDING', 'RETRYING', 'WAITING')"
    if left := query(due)[0][0]:
        found.append(f"{left:,} jobs wait for a worker")
    return [line for line in found if line]


def _none(what: str, found: set[UUID] | set[str], *, of: int) -> str:
    if not of:
        return f"nothing was found in which to look for {what}"
    return f"{len(found):,} {what}, such as {next(iter(found))}" if found else ""


def _where(stored: dict[UUID, Any], is_bad: Callable[[Any], bool]) -> set[UUID]:
    return {job_id for job_id, row in stored.items() if is_bad(row)}


def _is_alive(row: Any) -> bool:
    return bool(row[2] not in ENDED)


def _has_stray_lease(row: Any) -> bool:
    running: bool = row[2] == "RUNNING"
    return running != bool(row[8])


def _is_off(row: Any) -> bool:
    return row[4] is None or not 1 <= row[3] <= row[4]


def _is_wrong(row: Any) -> bool:
    """Whether a job has another end, or another result, than its kind must have."""
    _, topic, status, attempts, most, _, payload, result, _, error = row
    if topic in PARKED:
        used_up = status == "DEAD_LETTERED" and attempts == most
        return not used_up or (topic == poison.topic and error != "worker lease expired")
    return bool(status != "SUCCEEDED" or _json(result) != _json(payload)["n"])


def _succeeded(row: Any) -> int:
    return int(row[2] == "SUCCEEDED")


def _all_topics() -> set[str]:
    return {kind.topic for kind in (*KINDS, poison)}


def _uuid(value: Any) -> UUID:
    return value if isinstance(value, UUID) else UUID(bytes=value)


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value  # psycopg has parsed it already


# -- the command ----------------------------------------------------------------------------------


class Progress:
    """One line that changes on a terminal, and now and then a line elsewhere."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._live = sys.stderr.isatty()
        self._next = 0.0

    def __call__(self, text: str) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (0.2 if self._live else 5)
        line = f"{self._engine:8}  {text}"
        sys.stderr.write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")


def _kind_of_storm(options: argparse.Namespace) -> type[Storm]:
    if not options.server:
        return Storm
    from tests.chaos_servers import ServerStorm  # noqa: PLC0415 - it builds on this module

    return ServerStorm


@contextmanager
def scratch_database(engine: str) -> Iterator[str]:
    """The URL of a database for one storm."""
    if engine == "postgres":
        with ScratchPostgres() as server:
            yield server.url
    else:
        with tempfile.TemporaryDirectory(prefix="pulsed-chaos-") as folder:
            yield f"sqlite:///{folder}/jobs.db"


def run(engine: str, options: argparse.Namespace) -> bool:
    """Run the storm on one engine and print what is left of it; True if all is well."""
    with scratch_database(engine) as url:
        with Pulse(url) as app:
            app.jobs.counts()  # create the tables before any process needs them
        storm = _kind_of_storm(options)(
            url, options.seconds, options.jobs, options.workers, random.Random(options.seed)
        )
        progress = Progress(engine)
        began = time.monotonic()
        storm.rage(progress)
        progress.end()
        took = time.monotonic() - began
        with reading(url) as query:
            found = violations(
                query, storm.acknowledged, refused=storm.refused, killed=storm.killed
            )
            counts = query("SELECT status, count(*) FROM pulse_jobs GROUP BY status ORDER BY 1")
            lost = query("SELECT count(*) FROM pulse_failures WHERE error LIKE 'worker lease%'")
    states = ", ".join(f"{count:,} {status}" for status, count in counts)
    verdict = [f"VIOLATED: {line}" for line in found] or ["every invariant held"]
    lines = [
        f"{engine}: {len(storm.acknowledged):,} jobs, {storm.casualties} killed, {took:.0f} s",
        f"  {states}; {lost[0][0]:,} runs were interrupted; seed {options.seed}",
        *(f"  {line}" for line in verdict),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(prog="dev.py chaos", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long to kill (60)")
    parser.add_argument("--jobs", type=int, default=20_000, help="how many to enqueue (20000)")
    parser.add_argument("--workers", type=int, default=4, help="how many processes (4)")
    parser.add_argument("--engine", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument(
        "--schedules", action="store_true", help="kill processes that fire a schedule instead"
    )
    parser.add_argument(
        "--server", action="store_true", help="two servers in between, which are killed as well"
    )
    parser.add_argument(
        "--crashes", action="store_true", help="jobs that kill their worker, under a supervisor"
    )
    parser.add_argument(
        "--workflows", action="store_true", help="die at every storage call of a workflow instead"
    )
    parser.add_argument("--every", type=float, default=1.0, help="seconds of the schedule (1)")
    parser.add_argument("--seed", type=int, default=None, help="for the same choices again")
    parser.add_argument("--be-worker", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.workflows:
        every_crash = os.environ | {"PULSED_EVERY_CRASH": "1"}
        crashes = str(Path(__file__).with_name("test_workflow_crashes.py"))
        return subprocess.call([sys.executable, "-m", "pytest", "-q", crashes], env=every_crash)
    if options.be_worker:
        from tests import chaos  # noqa: PLC0415, PLW0406 - handlers belong to the module, not to __main__

        return chaos.work(options.be_worker)
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    if options.engine != "both":
        if options.schedules:
            from tests import chaos_schedules  # noqa: PLC0415 - it builds on this module

            return 0 if chaos_schedules.run(options.engine, options) else 1
        if options.crashes:
            from tests import chaos_crashes  # noqa: PLC0415 - it builds on this module

            return 0 if chaos_crashes.run(options.engine, options) else 1
        return 0 if run(options.engine, options) else 1
    again = [sys.executable, "-m", "tests.chaos", *sys.argv[1:], "--seed", str(options.seed)]
    codes = [subprocess.call([*again, "--engine", engine]) for engine in ("sqlite", "postgres")]
    return max(codes)


if __name__ == "__main__":
    # Always as the module that workers import, so that there is one router.
    from tests import chaos  # noqa: PLW0406

    sys.exit(chaos.main())
