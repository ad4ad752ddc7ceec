"""What statistics and metrics cost a worker.

One worker drains without either, with statistics, and with statistics and metrics, in turns within
one drain. The figure is the processor time of its process for each job: the rate of a drain depends
on the disk and on what else the machine does, and differs by more than what is measured here. What
a flush costs, every five seconds, is measured separately.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from itertools import cycle
from uuid import uuid4

from benchmarks.databases import Server, enqueue
from benchmarks.processes import in_processes
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale
from pulsed import Pulse
from pulsed.engine.stats import StatsRecorder
from pulsed.engine.worker.worker import Worker
from pulsed.metrics.counts import COUNTED, ProcessCounts
from pulsed.model.events import RunSucceeded

OFF = f"{PULSED}, without statistics"
STATISTICS = f"{PULSED}, with statistics"
METRICS = f"{PULSED}, with statistics and metrics"
MODES = (OFF, STATISTICS, METRICS)
FLUSH = f"{PULSED}, a flush of statistics"
FLUSHES = 20
COST = "µs of processor time/job"
TURN = 2_500
"""Jobs until the next one of the modes."""
SLOTS = 100


def measure_observed(server: Server, results: Results, scale: Scale) -> None:
    """Drain, and take the modes in turns."""
    database = server.database()
    database.empty()
    rounds = max(1, scale.observed // (TURN * len(MODES)))
    enqueue(database, (rounds + 1) * TURN * len(MODES))  # one more round, in which caches fill
    (samples,) = in_processes(drain_in_turns, (database.url, rounds))
    for mode, costs in samples.items():
        results.add("observed", server.engine, mode, COST, *costs)
    (flushes,) = in_processes(flush, (database.url,))
    results.add("observed", server.engine, FLUSH, "ms of processor time", *flushes)


def drain_in_turns(url: str, rounds: int) -> dict[str, list[float]]:
    """Return the processor time of each turn, in microseconds for each job, by mode."""
    turns = Turns(rounds)
    app = Pulse(url, stats=False)

    @app.job
    async def noop(number: int) -> int:
        turns.count()
        return number

    asyncio.run(_drain(app, turns))
    return turns.samples


def flush(url: str) -> list[float]:
    """Return the milliseconds of processor time that flushes take a process."""
    return asyncio.run(_flush(url))


async def _drain(app: Pulse, turns: Turns) -> None:
    async with app:
        turns.worker = app.worker(concurrency=SLOTS)
        await turns.worker.run()


class Turns:
    """Changes what observes a worker after every so many jobs, and takes its processor time."""

    def __init__(self, rounds: int) -> None:
        self.worker: Worker
        self.samples: dict[str, list[float]] = {mode: [] for mode in MODES}
        self._left = (rounds + 1) * len(MODES)
        self._modes = cycle(MODES)
        self._mode = next(self._modes)
        self._ends = contextlib.ExitStack()
        self._jobs = 0
        self._began = time.process_time()

    def count(self) -> None:
        """Count a job."""
        self._jobs += 1
        if self._jobs == TURN:
            self._next()

    def _next(self) -> None:
        now = time.process_time()
        self.samples[self._mode].append((now - self._began) / TURN * 1e6)
        self._left -= 1
        self._jobs = 0
        self._mode = next(self._modes)
        self._ends.close()
        self._ends.enter_context(self._observing(self._mode))
        if self._left == 0:
            self.samples = {mode: costs[1:] for mode, costs in self.samples.items()}
            self.worker.stop()
        self._began = time.process_time()

    @contextlib.contextmanager
    def _observing(self, mode: str) -> Iterator[None]:
        """Observe the worker while the block runs."""
        events = self.worker.store.events
        with contextlib.ExitStack() as stack:
            if mode != OFF:
                recorder = StatsRecorder(self.worker.store, self.worker.id)
                recorder.start()
                stack.callback(recorder.stop)
            if mode == METRICS:
                stack.callback(events.subscribe(ProcessCounts().add, COUNTED))
            yield


async def _flush(url: str) -> list[float]:
    """Return the milliseconds of processor time of flushes, each of one topic's minute."""
    took = []
    async with Pulse(url) as app:
        recorder = StatsRecorder(app.store)
        for _ in range(FLUSHES + 1):
            now = await app.store.now()
            recorder.count([RunSucceeded(uuid4(), "noop", "default", now, uuid4(), 1, 0.0, 0.0)])
            began = time.process_time()
            await recorder.flush()
            took.append((time.process_time() - began) * 1e3)
    return took[1:]  # the first connects
