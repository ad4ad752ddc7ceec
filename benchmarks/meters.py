"""What a drain costs: processor time of worker and server, idle cores, write-ahead log.

A thread reads the system's counters ten times a second while a drain goes on. Afterwards it is
known from when until when the drain went, and the counters are taken at these two moments. So the
start of a process and the filling of a queue do not count, for pulsed and for every peer alike.
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import time
from types import TracebackType
from typing import Self

import psycopg

from benchmarks.databases import Drained, Server

EVERY = 0.1
SHORTEST = 0.5
"""Seconds below which the counters, which advance by hundredths of a second, say nothing."""
TICK = 1 / os.sysconf("SC_CLK_TCK")

WORKER, SERVER = "worker µs/job", "server µs/job"
IDLE = "% of the cores idle"
LOG = "bytes of WAL/job"


@dataclass(frozen=True)
class Reading:
    """The counters at a moment."""

    at: float
    worker: float
    """Seconds of processor time of all processes that were started here, without the server's."""
    server: float
    idle: float
    """Seconds for which a core had nothing to do, of all cores together."""
    log: float
    """Bytes of write-ahead log so far."""

    def towards(self, other: Reading, at: float) -> Reading:
        """Return what the counters were at a moment between this reading and another."""
        share = (at - self.at) / (other.at - self.at)
        pairs = zip(self._counters, other._counters, strict=True)
        return Reading(at, *(mine + share * (its - mine) for mine, its in pairs))

    @property
    def _counters(self) -> tuple[float, float, float, float]:
        return self.worker, self.server, self.idle, self.log


class Meter:
    """Reads the counters while it is entered."""

    def __init__(self, server: int | None = None, log: Callable[[], float] | None = None) -> None:
        """``server`` is the process whose descendants are the database's; ``log`` reads its log."""
        self._server = server
        self._log = log
        self._used: dict[str, dict[int, float]] = {"worker": {}, "server": {}}
        self._readings: list[Reading] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def cost(self, drained: Drained) -> dict[str, float]:
        """Return the cost of each job by metric; nothing of a drain too short to tell."""
        first, last = self._at(drained.began), self._at(drained.ended)
        if first is None or last is None or last.at - first.at < SHORTEST or not drained.jobs:
            return {}
        cores = (os.cpu_count() or 1) * (last.at - first.at)
        found = {WORKER: 1e6 * (last.worker - first.worker) / drained.jobs}
        if self._server is not None:
            found[SERVER] = 1e6 * (last.server - first.server) / drained.jobs
        found[IDLE] = 100 * max(0.0, last.idle - first.idle) / cores
        if self._log is not None:
            found[LOG] = (last.log - first.log) / drained.jobs
        return found

    def _at(self, moment: float) -> Reading | None:
        """Return the counters at a moment, as between the readings around it."""
        after = bisect_left(self._readings, moment, key=lambda reading: reading.at)
        if not 0 < after < len(self._readings):
            return None
        return self._readings[after - 1].towards(self._readings[after], moment)

    def _watch(self) -> None:
        while not self._stopped.wait(EVERY):
            self._readings.append(self._read())
        self._readings.append(self._read())

    def _read(self) -> Reading:
        now = time()
        servers = set(_descendants(self._server)) if self._server is not None else set()
        for pid in {*_descendants(os.getpid()), *servers}:
            # Processes that have ended keep what they had used by then.
            if (seconds := _processor_seconds(pid)) is not None:
                self._used["server" if pid in servers else "worker"][pid] = seconds
        worker, server = (sum(used.values()) for used in self._used.values())
        return Reading(now, worker, server, _idle_seconds(), self._log() if self._log else 0.0)


@contextlib.contextmanager
def metering(server: Server) -> Iterator[Meter]:
    """Read the counters of a database's server too, if it has one."""
    if server.pid is None:
        with Meter() as meter:
            yield meter
        return
    with psycopg.connect(server.url, autocommit=True) as session:

        def written() -> float:
            query = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
            return float(session.execute(query).fetchall()[0][0])

        with Meter(server.pid, written) as meter:
            yield meter


def _descendants(pid: int) -> Iterator[int]:
    """Yield the processes below one, and itself unless it is this one."""
    if pid != os.getpid():
        yield pid
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = thread.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _descendants(int(child))


def _processor_seconds(pid: int) -> float | None:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(after_name[11]) + int(after_name[12])) * TICK


def _idle_seconds() -> float:
    """Return for how long cores had nothing to do, or waited for the disk."""
    _, *numbers = Path("/proc/stat").read_text().splitlines()[0].split()
    return (int(numbers[3]) + int(numbers[4])) * TICK
