"""Samples the tables while the storm rages: what must hold at every moment, not only in the end.

Each sample is one statement, so it is a consistent snapshot.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.chaos.scans import SCANS, Scans
from tests.chaos.tables import ENDED, Query, as_micros, as_uuid, reading

EVERY = 0.5


@dataclass
class Tally:
    """How often something was checked, and what was wrong."""

    checked: int = 0
    bad: list[str] = field(default_factory=list)

    def note(self, number: int, bad: list[str]) -> None:
        self.checked += number
        self.bad += bad


@dataclass(frozen=True)
class Sampled:
    """One living or recently changed job."""

    id: UUID
    topic: str
    status: str
    token: int
    leased: bool
    key: str | None
    lease: int = 0
    """Its length, and when it ends or ended; in microseconds of the database's clock."""
    until: int = 0


class Observer:
    """Reads the tables every half second until it is stopped."""

    def __init__(self, url: Callable[[], str]) -> None:
        self._url = url
        self._seen: dict[UUID, Sampled] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.samples = 0
        self.leases, self.tokens, self.ends = Tally(), Tally(), Tally()
        self.overdue, self.keys = Tally(), Tally()
        self.scans = Scans()
        self._overlooked: dict[Sampled, int] = {}
        """Expired leases, and how many scans should have recovered each when it was first seen."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with reading(self._url(), patience=5) as query:
                    while not self._over.wait(EVERY):
                        # In this order, so that every scan was committed before the sample.
                        self.scans.read(query, is_file=self._is_file)
                        self.take(self._sample(query), lambda jobs: self._free(query, jobs))
            except Exception:  # noqa: BLE001 - the database is away, which is what a storm is for
                self._over.wait(EVERY)

    def scan_times(self) -> list[float]:
        """Return when there was a scan, by the clock of the ledger."""
        ahead = time.time() - time.monotonic()
        return [scan.at / 1e6 - ahead for scan in self.scans.all]

    @property
    def _is_file(self) -> bool:
        return self._url().startswith("sqlite")

    def _sample(self, query: Query) -> list[Sampled]:
        ago = time.time_ns() // 1000 - 5_000_000
        recently = str(ago) if self._is_file else "now() - interval '5 s'"
        rows = query(
            "SELECT id, topic, status, lease_token, locked_by IS NOT NULL OR lease_until IS NOT "
            "NULL, key, lease_ms, lease_until FROM pulse_jobs "
            f"WHERE status NOT IN {ENDED} OR updated_at >= {recently}"
        )
        return [_sampled(*row) for row in rows]

    def _free(self, query: Query, jobs: list[Sampled]) -> list[Sampled]:
        """Return those whose rows no session has locked: a scan passes over a locked one."""
        if self._is_file or not jobs:
            return jobs
        which = ", ".join(f"'{job.id}'" for job in jobs)
        free = query(f"SELECT id FROM pulse_jobs WHERE id IN ({which}) FOR SHARE SKIP LOCKED")
        return [job for job in jobs if (job.id,) in free]

    def take(
        self,
        jobs: list[Sampled],
        free: Callable[[list[Sampled]], list[Sampled]] = lambda jobs: jobs,
    ) -> None:
        """Check one snapshot, by itself and against the ones before it."""
        self.samples += 1
        before = self._seen
        self.leases.note(
            len(jobs),
            [f"{j.id} is {j.status}" for j in jobs if j.leased != (j.status == "RUNNING")],
        )
        again = [(before[j.id], j) for j in jobs if j.id in before]
        self.tokens.note(
            len(again),
            [f"{new.id} {old.token} → {new.token}" for old, new in again if new.token < old.token],
        )
        ended = [(old, new) for old, new in again if old.status in ENDED]
        self.ends.note(
            len(ended),
            [
                f"{new.id} {old.status} → {new.status}"
                for old, new in ended
                if (old.status, old.token) != (new.status, new.token)
            ],
        )
        self._check_overdue([j for j in jobs if j.status == "RUNNING"], free)
        held = Counter((j.topic, j.key) for j in jobs if j.key and j.status not in ENDED)
        self.keys.note(
            len(held), [f"{number} of {key}" for key, number in held.items() if number > 1]
        )
        before.update((j.id, j) for j in jobs)

    def _check_overdue(
        self, running: list[Sampled], free: Callable[[list[Sampled]], list[Sampled]]
    ) -> None:
        """Count the scans that passed over a lease since it was first seen expired and free."""
        passed = {j: n for j in running if (n := self.scans.unexcused(j.until, j.lease))}
        self._overlooked = {j: self._overlooked.get(j, passed[j]) for j in free([*passed])}
        late = {
            j: scans for j, seen in self._overlooked.items() if (scans := passed[j] - seen) >= SCANS
        }
        self.overdue.note(len(running), [f"{j.id} by {n} scans" for j, n in late.items()])


def _sampled(
    job: Any,
    topic: str,
    status: str,
    token: int,
    leased: Any,
    key: Any,
    lease_ms: int | None,
    until: Any,
) -> Sampled:
    lease = (lease_ms or 0) * 1000
    ends = 0 if until is None else as_micros(until)
    return Sampled(as_uuid(job), topic, status, token, bool(leased), key, lease, ends)
