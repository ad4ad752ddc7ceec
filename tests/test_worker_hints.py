"""What a hint wakes in a worker: only the parts that it names, or all if it names nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from pulsed.engine.worker.worker import Worker
from pulsed.model.job import WorkerRequest
from pulsed.store.base import Store
from pulsed.store.listener import CANCELS, SCHEDULES, concerns, concerns_jobs
from tests.support.schedules import put
from tests.support.workers import NEVER, PATIENCE, submit, until, working

PARTS = ("claimer", "scheduler", "cancel_watch", "request_watch")
WATCHES = {"cancel_watch", "request_watch"}


@pytest.mark.parametrize(
    "names, jobs, schedules, cancels",
    [
        (None, True, True, True),
        ((), False, False, False),
        (("mail",), True, False, False),
        ((SCHEDULES,), False, True, False),
        ((CANCELS,), False, False, True),
        ({"mail", CANCELS}, True, False, True),
    ],
)
def test_what_a_notification_may_be_about(names: Any, jobs: bool, schedules: bool, cancels: bool):
    assert concerns_jobs(names) is jobs
    assert concerns(names, SCHEDULES) is schedules
    assert concerns(names, CANCELS) is cancels


class Wakes:
    """Counts how often hints wake each part of a worker; they are woken all the same."""

    def __init__(self, worker: Worker) -> None:
        self._count = Counter[str]()
        for part in PARTS:
            self._watch(part, getattr(worker, f"_{part}"))

    def _watch(self, name: str, part: Any) -> None:
        wake = part.wake

        def counted() -> None:
            self._count[name] += 1
            wake()

        part.wake = counted

    def take(self) -> set[str]:
        """Return the parts that were woken since the last call."""
        woken = {part for part in PARTS if self._count[part]}
        self._count.clear()
        return woken

    async def reach(self, *parts: str) -> set[str]:
        """Wait until these parts are woken; returns all that were."""
        await until(lambda: all(self._count[part] for part in parts))
        return self.take()


async def listening(worker: Worker) -> Wakes:
    """Return the wakes of a worker after the one that every new connection begins with."""
    await until(lambda: worker._listener is not None and worker._listener.healthy)
    return Wakes(worker)


@pytest.mark.embedded("a server names nothing to its workers")
@pytest.mark.parametrize("producer", ["elsewhere", "here"])
async def test_a_hint_wakes_only_what_it_names(backend, producer):
    """No poll, so that each part hears by a hint, and a job's own claim is all that it sends."""
    if backend.engine == "sqlite":
        pytest.skip("a watched file does not tell what was written, nor at first by whom")
    here: Store = backend.open(own_clock=False)
    there: Store = backend.open(own_clock=False) if producer == "elsewhere" else here
    ran = asyncio.Event()

    async def quick() -> None:
        ran.set()

    async with working(here, quick, poll=NEVER) as it, asyncio.timeout(PATIENCE):
        wakes = await listening(it.worker)
        await until(here.workers)
        await put(there)
        assert await wakes.reach("scheduler") == {"scheduler"}
        for _ in range(3):
            ran.clear()
            await submit(there, "quick")
            await ran.wait()
            assert await wakes.reach("claimer") == {"claimer"}
        await there.ask_workers([it.worker.id], WorkerRequest.DRAIN)
        late = {"claimer"}  # the last job may be announced a second time: it was in a burst
        assert await wakes.reach(*WATCHES) - late == WATCHES
        await it.ended()
    for store in (here, there):
        await store.aclose()
