"""Produces and consumes jobs, and prints what it sees, until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.long_horizon.latencies import RecentLatencies
from benchmarks.long_horizon.settings import Settings
from pulsed import JobType, Pulse
from pulsed.version import __version__

MANIFEST = json.loads(Path(__file__).with_name("adapter.json").read_text())
WINDOW = 30
"""Seconds over which percentiles are taken."""


class Adapter:
    """One process: a producer, a worker, and the sampler that prints."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._app = Pulse(settings.url)
        self._job = self._declare()
        self._latencies = RecentLatencies(WINDOW)
        self._enqueued = self._completed = 0
        self._padding = "x" * settings.payload_bytes

    async def run(self) -> None:
        """Work until SIGTERM or SIGINT."""
        async with self._app as app:
            await app.store.now()  # makes the tables
            _print(self._descriptor(await app.store.check()))
            worker = app.worker(concurrency=self._settings.workers)
            for each in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(each, worker.stop)
            beside = [asyncio.create_task(each) for each in (self._produce(), self._sample())]
            await worker.run()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    def _declare(self) -> JobType[[float, str], None]:
        @self._app.job
        async def work(sent: float, padding: str) -> None:  # noqa: ARG001 - only its size counts
            now = time.time()
            self._latencies.add((now - sent) * 1000, now)
            await asyncio.sleep(self._settings.work)
            self._completed += 1

        return work

    async def _produce(self) -> None:
        """Enqueue what is owed by the time that has really passed, and by no count of turns."""
        settings = self._settings
        owed, last = 0.0, time.monotonic()
        while True:
            now = time.monotonic()
            owed, last = owed + settings.rate * (now - last), now
            if settings.mode == "depth-target":
                owed = settings.depth - await self._depth()
            number = min(int(owed), settings.batch)
            if number > 0:
                sent = time.time()
                await self._job.aenqueue_many([(sent, self._padding)] * number)
                self._enqueued += number
                owed -= number
            if owed < settings.batch:  # otherwise it is late
                await asyncio.sleep(settings.pause)

    async def _sample(self) -> None:
        """Print samples at multiples of the interval, as all systems do."""
        every = self._settings.sample_every
        last = self._enqueued, self._completed
        while True:
            await asyncio.sleep(every - time.time() % every)
            now = time.time()
            p50, p95, p99 = self._latencies.percentiles(50, 95, 99, now=now)
            samples = {
                "claim_p50_ms": (p50, WINDOW),
                "claim_p95_ms": (p95, WINDOW),
                "claim_p99_ms": (p99, WINDOW),
                "enqueue_rate": ((self._enqueued - last[0]) / every, every),
                "completion_rate": ((self._completed - last[1]) / every, every),
                "queue_depth": (await self._depth(), 0),
            }
            last = self._enqueued, self._completed
            for metric, (value, window) in samples.items():
                _print(_sample(metric, value, window, now))

    async def _depth(self) -> int:
        return sum(each.due for each in await self._app.store.backlog())

    def _descriptor(self, facts: Any) -> dict[str, Any]:
        keys = ("system", "db_name", "event_tables", "extensions")
        return {
            "kind": "descriptor",
            **{key: MANIFEST[key] for key in keys},
            "version": __version__,
            "schema_version": facts["schema"],
            "started_at": _time(time.time()),
        }


def _sample(metric: str, value: float, window: float, now: float) -> dict[str, Any]:
    return {
        "t": _time(now),
        "system": MANIFEST["system"],
        "kind": "adapter",
        "subject_kind": "adapter",
        "subject": "",
        "metric": metric,
        "value": round(value, 3),
        "window_s": window,
    }


def _time(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _print(record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)
