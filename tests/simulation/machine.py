"""What a run takes from the machine, replaced by what comes from its seed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from grpc import aio

from pulsed.engine.load import LoadReader
from pulsed.engine.shared_reads import SharedReads
from pulsed.engine.upkeep.bulk import BulkPerformer
from pulsed.engine.upkeep.pruner import Pruner
from pulsed.engine.upkeep.unserved import UnservedQueues
from pulsed.engine.worker import worker as worker_module
from pulsed.engine.worker.leases import Leases
from pulsed.engine.workflow import calling, recorder, run_stream
from pulsed.model import ids
from pulsed.model.job import Assignment, Lease
from pulsed.model.outcome import Beat
from pulsed.rpc.client import channels
from pulsed.rpc.server import dispatcher
from pulsed.rpc.server.refusal_log import RefusalLog
from tests.simulation.event_loop import Contextvars, SimulatedLoop
from tests.simulation.network import simulated_channel, simulated_server
from tests.simulation.threads import Threading

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)
EPOCH_MICROS = int(EPOCH.timestamp()) * 1_000_000
MACHINES_CLOCK = time.monotonic
HAVE_CLOCKS = (
    BulkPerformer.__init__,
    Pruner.__init__,
    UnservedQueues.__init__,
    RefusalLog.__init__,
    SharedReads.__init__,
    LoadReader.__init__,
)
"""Their default is the machine's clock, which was bound when they were imported."""


class BeatsOnLoop(Leases):
    """Leases that a task renews, and not a thread: the only part that a simulation replaces."""

    def start(self) -> None:
        self._rung = asyncio.Event()
        self._beating = asyncio.get_running_loop().create_task(self._beat_on_loop())

    def stop(self) -> None:
        self._beating.cancel()

    def add(self, assignments: Any, since: float) -> list[Lease]:
        superseded = super().add(list[Assignment](assignments), since)
        self._rung.set()
        return superseded

    async def _beat_on_loop(self) -> None:
        while True:
            self._rung.clear()
            pause = self._next_beat - time.monotonic()
            if pause > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._rung.wait(), min(pause, 3600.0))
            else:
                await self._beat()

    async def _beat(self) -> None:
        """Ask without blocking the loop, then have the heartbeat act on that very answer."""
        real, leases = self._store, self._leases()
        answer: Any = None
        if leases:
            try:
                answer = await real.beat(leases, within=self._beat_timeout())
            except Exception as error:  # noqa: BLE001 - raised again, where a heartbeat catches it
                answer = error
        self._store = _Answered(answer)  # type: ignore[assignment]
        try:
            self.attempt()
        finally:
            self._store = real


class _Answered:
    """A store that has answered already."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def beat(self, leases: list[Lease], *, within: float | None) -> dict[Lease, Beat]:
        del within
        if isinstance(self._answer, Exception):
            raise self._answer
        asked = set(leases)
        return {lease: beat for lease, beat in (self._answer or {}).items() if lease in asked}


class _NoWatch:
    """Nothing blocks a simulated loop."""

    def __init__(self, *_: Any) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Clock:
    """The database's clock: the loop's time, and whatever it was set forward or back by."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.offset = 0.0

    def __call__(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.time() + self.offset)

    def micros(self) -> int:
        """Return the time as the tables have it."""
        return EPOCH_MICROS + round((self._loop.time() + self.offset) * 1_000_000)


@contextlib.contextmanager
def simulated_machine(loop: SimulatedLoop, seed: int) -> Iterator[None]:
    """Take time and randomness from the loop and the seed, inside of the block."""
    kept, entropy = random.getstate(), random.Random(f"{seed} entropy")
    with contextlib.ExitStack() as stack:
        for target, name, instead in (
            (time, "monotonic", loop.time),
            (time, "time", lambda: EPOCH.timestamp() + loop.time()),
            (time, "time_ns", lambda: EPOCH_MICROS * 1000 + int(loop.time() * 1e9)),
            (time, "perf_counter", loop.time),
            (os, "urandom", entropy.randbytes),
            (ids, "_last_instant", 0),
            (ids, "_random", iter(())),
            (worker_module, "Leases", BeatsOnLoop),
            (worker_module, "LoopWatch", _NoWatch),
            (calling, "threading", Threading),
            (recorder, "contextvars", Contextvars),
            (run_stream, "contextvars", Contextvars),
            (channels, "Random", lambda: random.Random(f"{entropy.random()} hosts")),
            (dispatcher, "_random", random.Random(f"{seed} dispatcher")),
            (aio, "insecure_channel", simulated_channel),
            (aio, "server", simulated_server),
        ):
            stack.enter_context(patch.object(target, name, instead))
        for function in HAVE_CLOCKS:
            for kind in ("__defaults__", "__kwdefaults__"):
                instead = _with_clock(getattr(function, kind), loop.time)
                stack.enter_context(patch.object(function, kind, instead))
        stack.callback(random.setstate, kept)
        stack.callback(logging.disable, logging.root.manager.disable)
        random.seed(seed)
        logging.disable(logging.CRITICAL)
        yield


def _with_clock(defaults: Any, clock: Callable[[], float]) -> Any:
    """Return the defaults of a function with another clock."""
    if isinstance(defaults, dict):
        return {name: clock if d is MACHINES_CLOCK else d for name, d in defaults.items()}
    return defaults and tuple(clock if each is MACHINES_CLOCK else each for each in defaults)
