"""Which expired leases a watchdog had to recover: I6, by the scans that were committed.

A busy machine makes everything late, and then a number of seconds says nothing about pulsed. So
time is counted in scans. A trigger keeps every scan, with the one before it, as the watchdogs saw
them. A lease that has expired must be gone after two scans that nothing excuses. An excuse is the
grace after a gap between two scans, in which the lease's worker may have been unable to send a
heartbeat, at most three times for a lease (docs/adr/0011). The rule is here a second time, on
purpose.

That leaves scans that do not happen. While a process starts jobs, it reaches the database, so then
it must scan as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.ledger import Entry
from tests.chaos.load import TICK
from tests.chaos.tables import Query, as_micros

BEATS = 3
"""Heartbeats in a lease."""
SLACK = 5_000_000
"""Microseconds by which a grace is longer than the time between two heartbeats, at most."""
GRACES = 3
"""Gaps for which one lease is spared."""
SCANS = 2
"""Scans after which a lease that has expired must be gone."""
UNSCANNED = 30 * TICK
"""Seconds for which a process may start jobs while nothing is scanned. On a machine with all
processors taken, the worst that was seen is two."""
OVERLAP = 60_000_000
"""Microseconds: scans that began so long ago have been committed, or never will be."""

TABLE = "CREATE TABLE chaos_scans (previous {instant}, at {instant} NOT NULL)"
KEEP = "INSERT INTO chaos_scans VALUES (NEW.previous, NEW.at);"
ON_SCAN = "CREATE TRIGGER chaos_scans AFTER INSERT ON pulse_ticks FOR EACH ROW"


class Scan(NamedTuple):
    """One scan of a watchdog; instants are microseconds of the database's clock."""

    previous: int | None
    """The scan before it, by any watchdog, as this one saw it."""
    at: int


def keep_scans(query: Query, *, is_file: bool) -> None:
    """Let the database keep every scan."""
    query(TABLE.format(instant="INTEGER" if is_file else "timestamptz"))
    if is_file:
        query(f"{ON_SCAN} BEGIN {KEEP} END")
        return
    query(
        "CREATE FUNCTION chaos_keep_scan() RETURNS trigger LANGUAGE plpgsql "
        f"AS $$ BEGIN {KEEP} RETURN NULL; END $$"
    )
    query(f"{ON_SCAN} EXECUTE FUNCTION chaos_keep_scan()")


class Scans:
    """The scans that were read so far."""

    def __init__(self) -> None:
        self.all: list[Scan] = []

    def read(self, query: Query, *, is_file: bool) -> None:
        """Read those that were committed since the last time."""
        since = max(self.all[-1].at - OVERLAP, 0) if self.all else 0
        instant = str(since) if is_file else f"to_timestamp({since / 1e6})"
        rows = query(f"SELECT previous, at FROM chaos_scans WHERE at > {instant}")
        self.add(
            Scan(None if previous is None else as_micros(previous), as_micros(at))
            for previous, at in rows
        )

    def add(self, scans: Iterable[Scan]) -> None:
        self.all = sorted({*self.all, *scans}, key=lambda scan: scan.at)

    def unexcused(self, expired: int, lease: int) -> int:
        """Return how many scans should have recovered a lease of this length."""
        beat = lease // BEATS
        grace = beat + min(beat, SLACK)
        recent = self.all[bisect_right(self.all, expired - grace, key=lambda scan: scan.at) :]
        gaps = dict[int | None, int]()
        """The end of each gap: scans that saw the same one before them ended the same gap."""
        unexcused = 0
        for scan in recent:
            if scan.previous is None or scan.at - scan.previous > beat:
                gaps[scan.previous] = scan.at
            in_grace = any(end + grace > scan.at for end in gaps.values())
            spared = in_grace and sum(end > expired for end in gaps.values()) <= GRACES
            unexcused += scan.at > expired and not spared
        return unexcused


class Unscanned(NamedTuple):
    """A time in which a process started jobs and nothing was scanned."""

    pid: int
    begins: int
    seconds: float

    def __str__(self) -> str:
        return f"process {self.pid} started {self.begins} jobs in {self.seconds:.1f} s"


def unscanned(
    scans: Iterable[float], entries: Iterable[Entry], frozen: Iterable[tuple[int, float, float]]
) -> Iterator[Unscanned]:
    """Yield what each process started between two scans; instants are those of the ledger."""
    begun = sorted((each.at, each.pid) for each in entries if each.event == "begin")
    stopped = list(frozen)
    position = 0
    for since, until in pairwise(sorted(scans)):
        by_pid = defaultdict[int, list[float]](list)
        while position < len(begun) and begun[position][0] < until:
            at, pid = begun[position]
            position += 1
            if at > since:
                by_pid[pid].append(at)
        for pid, times in by_pid.items():
            if not any(p == pid and a < until and b > since for p, a, b in stopped):
                yield Unscanned(pid, len(times), times[-1] - times[0])
