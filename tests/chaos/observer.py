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

from tests.chaos.load import LEASE, LONG_LEASE, TICK
from tests.chaos.tables import ENDED, Query, as_micros, as_uuid, reading

EVERY = 0.5
OVERDUE = LONG_LEASE + 2 * TICK + (5 + LEASE / 3) + 5
"""Seconds for which a lease may have expired: TTL and two ticks, the grace after an outage, and
some for a machine that is busy."""


UNWATCHED = 3.0
"""Seconds without a scan of any watchdog after which there is none at work: all workers are dead,
frozen or about to start, which takes long on a busy machine. In the end all jobs must be done."""


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
    overdue: float
    """Seconds since its lease expired; negative while it is valid."""
    key: str | None


class Observer:
    """Reads the tables every half second until it is stopped."""

    def __init__(self, url: Callable[[], str], disturbed_at: Callable[[], float]) -> None:
        self._url = url
        self._disturbed_at = disturbed_at
        self._unwatched_at = 0.0
        self._seen: dict[UUID, Sampled] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.samples = 0
        self.leases, self.tokens, self.ends = Tally(), Tally(), Tally()
        self.overdue, self.keys = Tally(), Tally()

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
                        if self._last_scan(query) > UNWATCHED:
                            self._unwatched_at = time.monotonic()
                        self.take(self._sample(query))
            except Exception:  # noqa: BLE001 - the database is away, which is what a storm is for
                self._over.wait(EVERY)

    def _last_scan(self, query: Query) -> float:
        """Return the seconds since a watchdog has scanned."""
        clock = str(time.time_ns() // 1000) if self._is_file else "clock_timestamp()"
        last, now = query(f"SELECT max(at), {clock} FROM pulse_ticks")[0]
        return float("inf") if last is None else (as_micros(now) - as_micros(last)) / 1e6

    @property
    def _is_file(self) -> bool:
        return self._url().startswith("sqlite")

    def _sample(self, query: Query) -> list[Sampled]:
        now = time.time_ns() // 1000
        clock = str(now) if self._is_file else "clock_timestamp()"
        recently = str(now - 5_000_000) if self._is_file else "now() - interval '5 s'"
        rows = query(
            "SELECT id, topic, status, lease_token, locked_by IS NOT NULL OR lease_until IS NOT "
            f"NULL, lease_until, key, {clock} FROM pulse_jobs "
            f"WHERE status NOT IN {ENDED} OR updated_at >= {recently}"
        )
        return [_sampled(*row) for row in rows]

    def take(self, jobs: list[Sampled]) -> None:
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
        self._check_overdue([j for j in jobs if j.status == "RUNNING"])
        held = Counter((j.topic, j.key) for j in jobs if j.key and j.status not in ENDED)
        self.keys.note(
            len(held), [f"{number} of {key}" for key, number in held.items() if number > 1]
        )
        before.update((j.id, j) for j in jobs)

    def _check_overdue(self, running: list[Sampled]) -> None:
        calm = time.monotonic() - max(self._disturbed_at(), self._unwatched_at)
        late = [j for j in running if min(j.overdue, calm) > OVERDUE]
        self.overdue.note(len(running), [f"{j.id} for {j.overdue:.1f} s" for j in late])


def _sampled(
    job: Any, topic: str, status: str, token: int, leased: Any, until: Any, key: Any, now: Any
) -> Sampled:
    overdue = (as_micros(now) - as_micros(until)) / 1e6 if until is not None else 0.0
    return Sampled(as_uuid(job), topic, status, token, bool(leased), overdue, key)
