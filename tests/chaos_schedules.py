"""Kill the processes that fire a schedule, then count: every occurrence once, none missed.

    python -m tests.chaos --schedules --seconds 30 --workers 5 --engine both

Exactly once is easy to see in the tables, because the occurrences of an interval are known
beforehand: its anchor and so many intervals after it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

from pulsed import Pulse
from tests.chaos import Progress, Query, Storm, quick, reading, router, scratch_database

SCHEDULES = 3
CATCH_UP_SECONDS = 60.0


class ScheduleStorm(Storm):
    """Processes that fire and die one after the other; nothing else enqueues jobs."""

    every: float = 1.0

    def rage(self, show: Callable[[str], None]) -> None:
        """Kill until the time is over, then let the survivors catch up."""
        with Pulse(self.url) as app:
            app.include(router)
            for n in range(SCHEDULES):
                app.schedules.put(f"s{n}", quick.bind(n), every=self.every, catch_up="all")
            self.processes = [self._start_worker() for _ in range(self.workers)]
            began = time.monotonic()
            next_kill = began + 1
            try:
                while (now := time.monotonic()) < began + self.seconds or not self.has_killed:
                    self._replace_the_dead()
                    if now >= next_kill:
                        self._kill_one()
                        next_kill = now + self.rng.uniform(0.05, 0.8)
                    show(f"{now - began:5.1f} s  {self.killed} processes killed")
                    time.sleep(0.02)
                self._catch_up(show)
                for n in range(SCHEDULES):
                    app.schedules.pause(f"s{n}")
            finally:
                self._end()

    def _catch_up(self, show: Callable[[str], None]) -> None:
        """Wait until no cursor is behind the clock any more."""
        deadline = time.monotonic() + CATCH_UP_SECONDS
        now = "now()" if self.url.startswith("postgres") else str(time.time_ns() // 1000)
        behind = f"SELECT count(*) FROM pulse_schedules WHERE next_run_at <= {now}"
        with reading(self.url) as query:
            while query(behind)[0][0] and time.monotonic() < deadline:
                self._replace_the_dead()
                show("catching up")
                time.sleep(0.05)


# -- the truth ------------------------------------------------------------------------------------


def violations(query: Query, *, every: float, seconds: float, killed: int) -> list[str]:
    """Return a line for each thing that is not as it must be."""
    found = [] if killed else ["nobody was killed: nothing was put to the test"]
    schedules = query("SELECT id, name, anchor, next_run_at, missed, error FROM pulse_schedules")
    if len(schedules) != SCHEDULES:
        found.append(f"{len(schedules)} schedules are there, not {SCHEDULES}")
    jobs = query("SELECT schedule_id, occurrence FROM pulse_jobs")
    for schedule_id, name, anchor, cursor, missed, error in schedules:
        fired = [_micros(occurrence) for schedule, occurrence in jobs if schedule == schedule_id]
        lines = unlike(_micros(anchor), _micros(cursor), round(every * 1e6), fired)
        if missed or error:
            lines.append(f"{missed} passed over, error {error!r}")
        if len(fired) < seconds / every - 1:
            lines.append(f"only {len(fired)} occurrences in {seconds:g} s")
        found += [f"{name}: {line}" for line in lines]
    return found


def unlike(anchor: int, cursor: int, interval: int, fired: list[int]) -> list[str]:
    """Compare what was fired with what should have been, before the cursor."""
    expected = set(range(anchor + interval, cursor, interval))
    twice = [occurrence for occurrence, count in Counter(fired).items() if count > 1]
    found = {
        "missing": expected - set(fired),
        "fired twice": twice,
        "fired and not due": set(fired) - expected,
    }
    return [f"{len(which)} occurrences {what}" for what, which in found.items() if which]


def _micros(value: Any) -> int:
    if isinstance(value, datetime):
        return round(value.timestamp() * 1_000_000)
    return int(value)


# -- the command ----------------------------------------------------------------------------------


def run(engine: str, options: argparse.Namespace) -> bool:
    """Run the storm on one engine and print what is left of it; True if all is well."""
    with scratch_database(engine) as url:
        rng = random.Random(options.seed)
        storm = ScheduleStorm(url, options.seconds, 0, options.workers, rng)
        storm.every = options.every
        progress = Progress(engine)
        storm.rage(progress)
        progress.end()
        with reading(url) as query:
            found = violations(
                query, every=options.every, seconds=options.seconds, killed=storm.killed
            )
            jobs = query("SELECT count(*) FROM pulse_jobs WHERE schedule_id IS NOT NULL")[0][0]
    verdict = [f"VIOLATED: {line}" for line in found] or ["every occurrence exactly once"]
    lines = [
        f"{engine}: {jobs:,} occurrences, {storm.killed} processes killed; seed {options.seed}",
        *(f"  {line}" for line in verdict),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    return not found
