"""Outages and the watchdogs that wake after them: no live lease is reaped, no dead one is kept.

First thousands of random lives against the rule alone, then the statements themselves, let go one
at a time in random orders on a real PostgreSQL.
"""

import itertools
import random
import time
from bisect import bisect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import uuid4

import pytest

from pulsed.model.job import Lease
from pulsed.model.timetable import EPOCH
from pulsed.store.blocking import run_blocking
from pulsed.store.verbs.ticks import MOST_GRACES, Tick, Ticks, grace
from tests.support.backends import PostgresBackend, close_blocking, only_postgres
from tests.support.interleaving import Actor
from tests.support.jobs import a_job, a_worker_id, claim, never_away

LEASES = (1.0, 30.0, 300.0)

LIVES = 60
"""Of each kind; thousands were tried once."""

Window = tuple[float, float]
"""A stretch of time in which the database can be reached."""


# -- the rule, in random lives --------------------------------------------------------------------


@dataclass
class Life:
    """A database that comes and goes, and what happens on it, by the second at which it does."""

    dice: random.Random
    calm: float
    """How long it is there in the end."""
    windows: list[Window] = field(init=False)
    ticks: list[Tick] = field(default_factory=list)
    """Those that are committed."""

    def __post_init__(self) -> None:
        self.windows = []
        at = 0.0
        for _ in range(self.dice.randint(0, 6)):
            up = self.dice.choice([1, 5, 20, 60]) * self.dice.uniform(0.5, 1.5)
            self.windows.append((at, at + up))
            at += up + self.dice.choice([0.5, 4, 14, 34, 150, 900]) * self.dice.uniform(0.5, 1.5)
        self.windows.append((at, at + self.calm))

    def beats(self, lease: float) -> Iterator[float]:
        """When a live worker sends heartbeats: in time, or soon after an outage."""
        last = self.dice.uniform(-lease / 3, 0)
        yield last
        for begin, end in self.windows:
            due = last + lease / 3
            if due < begin:
                due = begin + self.dice.uniform(0, min(lease / 3, end - begin))
            while due < end:
                yield due
                last = due
                due += lease / 3

    def looks(self, tick: float) -> Iterator[tuple[float, float]]:
        """When a watchdog scans, and when it commits: later, if it was delayed or frozen."""
        at = self.dice.uniform(0, tick)
        while at < self.windows[-1][1]:
            window = next((w for w in self.windows if w[0] <= at < w[1]), None)
            if window is None:  # it hangs until the database is back, or fails and comes later
                back = next(begin for begin, _ in self.windows if begin > at)
                at = back if self.dice.random() < 0.8 else at + tick
                continue
            commit = at + self.dice.choice([0, 0, 0.01, 1])
            if commit >= window[1]:
                commit = next((begin for begin, _ in self.windows if begin > at), at)
            yield at, commit
            at = commit + tick * self.dice.uniform(0.7, 0.9)

    def reaped(self, lease: float, beats: list[float], watchdogs: list[float]) -> float | None:
        """Return when the job of a worker with these heartbeats is reaped, if it is."""
        looks = list(itertools.chain(*(self.looks(tick) for tick in watchdogs)))
        events = [(at, 0, n) for n, (at, _) in enumerate(looks)]
        events += [(commit, 1, n) for n, (_, commit) in enumerate(looks)]
        judged: dict[int, Ticks] = {}
        for when, commits, n in sorted(events):
            if not commits:
                judged[n] = Ticks.with_new(self.ticks, _instant(when), _instant(when))
                continue
            ticks = judged.pop(n)
            self.ticks = [each for each in self.ticks if each.id not in ticks.stale]
            self.ticks.append(ticks.own)
            expiry = beats[bisect(beats, when) - 1] + lease
            if _instant(expiry) < ticks.reaped_before(timedelta(seconds=lease)):
                return when
        return None


def _instant(seconds: float):
    return EPOCH + timedelta(days=1, seconds=seconds)


def a_life(seed: int) -> tuple[Life, float, list[float]]:
    dice = random.Random(seed)
    lease = dice.choice(LEASES)
    watchdogs = [dice.choice([lease / 3, 10.0, 45.0]) for _ in range(dice.randint(1, 5))]
    return Life(dice, 5 * max(watchdogs) + 4 * lease), lease, watchdogs


def test_whoever_beats_soon_after_every_outage_is_never_reaped():
    for seed in range(LIVES):
        life, lease, watchdogs = a_life(seed)
        beats = list(life.beats(lease))
        assert life.reaped(lease, beats, watchdogs) is None, f"seed {seed}"


def test_the_job_of_a_dead_worker_comes_back_in_a_bounded_time():
    for seed in range(LIVES):
        life, lease, watchdogs = a_life(seed)
        died = life.dice.uniform(0, life.windows[-1][0] + lease)
        beats = [beat for beat in life.beats(lease) if beat <= died]
        recovered = life.reaped(lease, beats, watchdogs)
        expiry = beats[-1] + lease
        looked_at = min(watchdogs) + 1
        within = looked_at * (MOST_GRACES + 1) + grace(timedelta(seconds=lease)).total_seconds()
        assert recovered is not None, f"seed {seed}"
        assert recovered <= max(expiry, life.windows[-1][0]) + within, f"seed {seed}"
        if len(life.windows) == 1 and looked_at <= lease / 3:
            assert recovered <= max(expiry, lease) + looked_at, f"seed {seed}"


def test_a_history_that_was_tidied_says_the_same():
    dice = random.Random(7)
    for _ in range(300):
        everything: list[Tick] = []
        kept: list[Tick] = []
        at = EPOCH
        for _ in range(dice.randint(1, 40)):
            at += timedelta(seconds=dice.choice([0.1, 1, 8, 20, 60, 300]) * dice.uniform(0.5, 1.5))
            ticks = Ticks.with_new(kept, at, at)
            everything.append(Tick(uuid4(), everything[-1].at if everything else None, at))
            kept = list(ticks.ticks)
            whole = Ticks(tuple(everything), at)
            for seconds in LEASES:
                lease = timedelta(seconds=seconds)
                assert ticks.reaped_before(lease) == whole.reaped_before(lease)


# -- the statements, in random orders -------------------------------------------------------------

backend = only_postgres


@contextmanager
def watchdogs(backend: PostgresBackend, count: int) -> Iterator[list[Actor]]:
    actors = [Actor(backend.open()) for _ in range(count)]
    try:
        yield actors
    finally:
        for actor in actors:
            close_blocking(actor.store)


def in_any_order(
    actors: list[Actor], threads: ThreadPoolExecutor, dice: random.Random
) -> list[Lease]:
    """Let each of them scan, statement by statement; returns what they reaped."""
    for actor in actors:
        actor.begin(threads, lambda store: store.watchdog())
    while running := [actor for actor in actors if not actor.done]:
        if waiting := [actor for actor in running if actor.at_gate]:
            dice.choice(waiting).go()
        time.sleep(0.0002)  # a loop that never rests takes the processor from those it waits for
    return [job for actor in actors for job in actor.result().reaped]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_watchdogs_that_wake_together_reap_nobody_in_whatever_order(backend, clock, count):
    calm = backend.open()
    run_blocking(calm.submit([a_job(lease=lease) for lease in LEASES for _ in range(5)]))
    runs = run_blocking(claim(calm, a_worker_id(), limit=15))
    with ThreadPoolExecutor(count) as threads, watchdogs(backend, count) as actors:
        for seed in range(12):
            run_blocking(calm.beat([run.lease for run in runs]))
            run_blocking(never_away(calm))
            clock.advance(400)
            dice = random.Random(seed)
            assert in_any_order(actors, threads, dice) == []
            clock.advance(0.2)
            assert in_any_order(actors, threads, dice) == []
    close_blocking(calm)
