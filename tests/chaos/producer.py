"""Enqueues the load, and remembers what it was promised."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from pulsed import Pulse, PulsedError
from pulsed.errors import InvalidTransition
from tests.chaos import load

BATCH = 20
BATCHED = (load.quick, load.plain)
"""Kinds that are enqueued together, under ids that the producer does not know beforehand."""
AT_LEAST = 2
"""Jobs of each kind in every run, however short."""


@dataclass
class Asked:
    """One job that a producer asked for."""

    n: int
    topic: str
    at: float
    """When it asked first, by the monotonic clock."""
    delay: float = 0.0
    job: UUID | None = None
    """What the database has acknowledged; None if it never did, which promises nothing."""


ENOUGH_FOR_POISON = 500
"""Jobs from which on one of them kills its worker, again and again: that takes many seconds."""


class Producer:
    """Enqueues so many jobs evenly, whatever the database does meanwhile."""

    def __init__(self, app: Pulse, jobs: int, seconds: float, rng: random.Random) -> None:
        self.asked: list[Asked] = []
        self._app = app
        self._seconds = seconds
        self._rng = rng
        self._plan = self._planned(jobs)
        self._orders: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._give_up_at = float("inf")
        self._threads = [
            threading.Thread(target=each, daemon=True)
            for each in (self._enqueue_all, self._approve_all)
        ]

    @property
    def acknowledged(self) -> int:
        return sum(each.job is not None for each in self.asked)

    @property
    def planned(self) -> int:
        return len(self._plan)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def give_up_in(self, seconds: float) -> None:
        """Insist no longer from then on; what is not acknowledged by then was never promised."""
        self._give_up_at = time.monotonic() + seconds

    @property
    def is_busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def probe(self, number: int) -> list[Asked]:
        """Enqueue some jobs one by one, now; returns them."""
        probes = []
        for _ in range(number):
            probes.append(Asked(len(self.asked), load.quick.topic, time.monotonic()))
            self.asked.append(probes[-1])
            self._enqueue(load.quick, probes[-1])
        return probes

    def _planned(self, jobs: int) -> list[Any]:
        kinds = list(load.WEIGHTS)
        plan = self._rng.choices(kinds, weights=list(load.WEIGHTS.values()), k=jobs)
        plan[: AT_LEAST * len(kinds)] = kinds * AT_LEAST
        self._rng.shuffle(plan)
        plan[:1] = [load.long]  # it runs when the first worker is killed
        if jobs >= ENOUGH_FOR_POISON:
            plan[jobs // 10] = load.poison
        return plan

    def _enqueue_all(self) -> None:
        began = time.monotonic()
        for start in range(0, len(self._plan), BATCH):
            due = began + 0.8 * self._seconds * start / len(self._plan)
            time.sleep(max(0.0, due - time.monotonic()))
            batch = list(enumerate(self._plan[start : start + BATCH], start))
            for kind in BATCHED:
                self._enqueue_many(kind, [n for n, each in batch if each is kind])
            for n, kind in batch:
                if kind not in BATCHED:
                    self._enqueue_one(kind, n)
        self._orders.put(None)

    def _enqueue_many(self, kind: Any, numbers: list[int]) -> None:
        """Enqueue together; nobody asks again if the answer is lost, so these may be unknown."""
        asked = [Asked(n, kind.topic, time.monotonic()) for n in numbers]
        self.asked += asked
        try:
            jobs = kind.enqueue_many([kind.bind(n) for n in numbers])
            for each, job in zip(asked, jobs, strict=True):
                each.job = job.id
        except PulsedError:
            time.sleep(0.1)

    def _enqueue_one(self, kind: Any, n: int) -> None:
        asked = Asked(n, kind.topic, time.monotonic())
        if kind is load.delayed:
            asked.delay = self._rng.uniform(0.1, 2.0)
        self.asked.append(asked)
        self._enqueue(kind, asked)
        if kind is load.order and asked.job is not None:
            self._orders.put(asked)

    def _enqueue(self, kind: Any, asked: Asked) -> None:
        """Enqueue under an id of our own, again until it is acknowledged."""
        options: dict[str, Any] = {"id": uuid4()} | ({"delay": asked.delay} if asked.delay else {})
        more = (asked.n % load.KEYS,) if kind in (load.keyed, load.ordered) else ()
        job = self._insist(lambda: kind.using(**options).enqueue(asked.n, *more))
        asked.job = job and job.id

    def _approve_all(self) -> None:
        """Send each order its signal, a little later."""
        while (asked := self._orders.get()) is not None:
            time.sleep(self._rng.uniform(0, 0.02))
            self._approve(asked)

    def _approve(self, asked: Asked) -> None:
        job = asked.job
        assert job is not None

        def send() -> None:
            try:
                self._app.signal(job, "approved", asked.n)
            except InvalidTransition:
                return  # the answer was lost, and the order is through

        self._insist(send)

    def _insist(self, call: Callable[[], Any]) -> Any:
        """Call again until it does not raise; None when the time is over."""
        while True:
            try:
                return call()
            except PulsedError:
                if time.monotonic() > self._give_up_at:
                    return None
                time.sleep(0.1)
