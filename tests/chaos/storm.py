"""One storm: enqueue, break things for a while, heal, drain, and gather the facts."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pulsed import Pulse
from tests.chaos import faults, ledger, load
from tests.chaos.facts import Facts, read_tables
from tests.chaos.faults import Fault
from tests.chaos.observer import Observer
from tests.chaos.producer import Asked, Producer
from tests.chaos.sites import Site
from tests.chaos.tables import ENDED, reading

SCHEDULES = 3
PROBES = 3
PAUSE = 0.02
LIVING = f"status NOT IN {ENDED}"


@dataclass
class Plan:
    """How long a storm is and what it does."""

    seconds: float
    jobs: int
    every: float
    """Seconds between two occurrences of each schedule."""
    pace: tuple[float, float] = (0.3, 1.2)
    """Seconds between two faults."""


class Active:
    """A fault that has struck and is not yet healed."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._course = fault.strike()
        self._until = 0.0

    def go_on(self, now: float) -> bool:
        """Do what is due; true while the fault lasts."""
        if now < self._until:
            return True
        pause = next(self._course, None)
        if pause is None:
            return False
        self._until = now + pause
        return True

    def heal(self) -> None:
        self._course.close()


class Storm:
    """Breaks what a site has to break."""

    def __init__(self, site: Site, plan: Plan, rng: random.Random) -> None:
        self._site = site
        self._plan = plan
        self._rng = rng
        self._faults = site.faults()
        self._active: list[Active] = []
        self._next = 0.0
        self._calm_after = 0.0
        self.struck: Counter[str] = Counter()
        self.observer = Observer(lambda: site.url)

    def rage(self, show: Callable[[str], None]) -> Facts:
        """Run all of it; returns what is known in the end."""
        with load.make_app(self._site.app_url) as app:
            producer = Producer(
                app, self._plan.jobs, self._plan.seconds, random.Random(self._rng.random())
            )
            try:
                self._site.launch()
                self._put_schedules(app)
                self.observer.start()
                producer.start()
                self._break_things(producer, show)
                self._finish(producer, show)
                self._drain(show)
                self._site.lose_notifications()
                probes = self._probe(producer)
            finally:
                self._heal()
                self.observer.stop()
                self._site.end()
        return self._facts(producer, probes)

    def _put_schedules(self, app: Pulse) -> None:
        for number in range(SCHEDULES):
            call = load.quick.bind(-1 - number)
            app.schedules.put(f"s{number}", call, every=self._plan.every, catch_up="all")

    # -- faults ---------------------------------------------------------------------------------

    def _break_things(self, producer: Producer, show: Callable[[str], None]) -> None:
        self._kill_a_busy_worker()
        began = time.monotonic()
        while (now := time.monotonic()) < began + self._plan.seconds:
            self._site.replace_the_dead()
            self._go_on(now)
            if now >= self._next:
                self._strike(now)
            enqueued = f"{producer.acknowledged:,} of {producer.planned:,} enqueued"
            show(f"{now - began:6.1f} s  {enqueued}, {self.struck.total()} faults")
            time.sleep(PAUSE)
        self._heal()
        self._site.recover()

    def _kill_a_busy_worker(self) -> None:
        """Begin with the one fault that surely interrupts a run, however busy the machine is."""
        began = time.monotonic()
        while time.monotonic() < began + self._site.patience:
            running = dict[object, int]()
            for entry in ledger.read(self._site.ledger):
                if entry.topic == load.long.topic:
                    running[entry.job] = entry.pid if entry.event == "begin" else 0
            if pid := next(filter(None, running.values()), 0):
                self._site.workers.start_takes = time.monotonic() - began
                self._site.workers.kill(pid)
                self.struck[faults.KILLED] += 1
                return
            time.sleep(0.05)

    def _strike(self, now: float) -> None:
        is_calm = now >= self._calm_after and not any(a.fault.is_outage for a in self._active)
        possible = [each for each in self._faults if (is_calm or not each.is_outage) and each.may()]
        self._next = now + self._rng.uniform(*self._plan.pace)
        if not possible:
            return
        # What has not happened yet comes first, so that a short storm has some of everything.
        fresh = [each for each in possible if not self.struck[each.name]] or possible
        fault = self._rng.choices(fresh, [each.weight for each in fresh])[0]
        self.struck[fault.name] += 1
        self._active.append(Active(fault))

    def _go_on(self, now: float) -> None:
        for active in list(self._active):
            lasts = active.go_on(now)
            if not lasts:
                self._active.remove(active)
                if active.fault.is_outage:
                    self._calm_after = time.monotonic() + self._rng.uniform(*self._site.calm)

    def _heal(self) -> None:
        while self._active:
            self._active.pop().heal()

    # -- afterwards -----------------------------------------------------------------------------

    def _finish(self, producer: Producer, show: Callable[[str], None]) -> None:
        """Wait until everything is enqueued."""
        producer.give_up_in(self._site.patience)
        while producer.is_busy:
            self._site.replace_the_dead()
            show(f"enqueueing the rest, {producer.acknowledged:,} of {producer.planned:,}")
            time.sleep(PAUSE)

    def _drain(self, show: Callable[[str], None]) -> None:
        """Wait until everything has ended and no schedule is behind; then stop the schedules."""
        unscheduled = f"SELECT count(*) FROM pulse_jobs WHERE {LIVING} AND schedule_id IS NULL"
        self._wait_for_none(f"{unscheduled} UNION ALL {self._behind()}", show)
        with Pulse(self._site.url) as app:
            for number in range(SCHEDULES):
                app.schedules.pause(f"s{number}")
        self._wait_for_none(f"SELECT count(*) FROM pulse_jobs WHERE {LIVING}", show)

    def _behind(self) -> str:
        """Return how many schedules have an occurrence that should have become a job by now."""
        is_file = self._site.url.startswith("sqlite")
        now = str(time.time_ns() // 1000) if is_file else "now()"
        return f"SELECT count(*) FROM pulse_schedules WHERE next_run_at <= {now}"

    def _wait_for_none(self, counts: str, show: Callable[[str], None] = lambda _: None) -> None:
        """Wait until nothing is left, or nothing has become less for too long."""
        least, deadline = None, time.monotonic() + self._site.patience
        while time.monotonic() < deadline and (left := self._left(counts)):
            if least is None or left < least:
                least, deadline = left, time.monotonic() + self._site.patience
            self._site.replace_the_dead()
            show(f"draining, {left:,} to go")
            time.sleep(0.05)

    def _left(self, counts: str) -> int:
        with contextlib.suppress(Exception), reading(self._site.url) as query:
            return sum(row[0] for row in query(counts))
        return 1

    def _probe(self, producer: Producer) -> list[Asked]:
        """Enqueue jobs that nobody hears of, once the processes that only poll are at work."""
        for number in (1, PROBES):
            probes = producer.probe(number)
            self._wait_for_none(f"SELECT count(*) FROM pulse_jobs WHERE {LIVING}")
        return probes

    def _facts(self, producer: Producer, probes: list[Asked]) -> Facts:
        with reading(self._site.url) as query:
            tables = read_tables(query)
        site = self._site
        return Facts(
            tables,
            ledger.read(site.ledger),
            producer.asked,
            self.observer,
            probes=probes,
            poll=site.poll,
            every=self._plan.every,
            tx=site.tx,
            frozen=site.workers.frozen,
            died=site.workers.died,
            struck=self.struck.total(),
        )
