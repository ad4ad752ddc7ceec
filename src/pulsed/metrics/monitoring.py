"""Serves metrics and probes beside a worker or a server."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pulsed.engine.load import LaneKey, LoadReader
from pulsed.errors import MissingDriver
from pulsed.extras import install_command
from pulsed.listen_address import ListenAddress
from pulsed.metrics.counts import COUNTED, ProcessCounts
from pulsed.metrics.endpoint import Answer, Path, serving
from pulsed.metrics.load import LoadMetrics, Loads
from pulsed.metrics.probes import Readiness, alive
from pulsed.metrics.process import ProcessState
from pulsed.store.base import Store

if TYPE_CHECKING:
    from pulsed.engine.worker.worker import Worker

log = logging.getLogger("pulsed.metrics")


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Where metrics and probes are served."""

    metrics: ListenAddress | None = None
    """``/metrics``, ``/healthz`` and ``/readyz``."""
    health: ListenAddress | None = None
    """``/healthz`` and ``/readyz`` only."""

    def check(self) -> None:
        """Raise if something that is asked for is not installed."""
        if self.metrics is not None and importlib.util.find_spec("prometheus_client") is None:
            raise MissingDriver(
                "--metrics needs prometheus_client, which is not installed: "
                f"{install_command('metrics')}. --health needs nothing."
            )

    def of_process(self, number: int) -> Monitoring:
        """Return where the n-th of several processes serves: each a port further."""
        return Monitoring(*(each and each.next(number) for each in (self.metrics, self.health)))

    def of_worker(
        self, worker: Worker
    ) -> contextlib.AbstractAsyncContextManager[Mapping[str, ListenAddress]]:
        """Serve what there is to know about a worker while the block runs."""
        lanes = [(handler.queue, handler.topic) for handler in worker.registry]
        return self.serving(
            worker.store, lambda: ProcessState(worker.state, worker.describe()), lanes
        )

    @contextlib.asynccontextmanager
    async def serving(
        self, store: Store, state: Callable[[], ProcessState], lanes: Iterable[LaneKey] = ()
    ) -> AsyncIterator[Mapping[str, ListenAddress]]:
        """Serve while the block runs; yields where, by option. ``lanes`` are known from the start.

        Enter it before work begins: a process that starts, and waits for its database, is alive.
        """
        readiness = Readiness(store, lambda: state().state)
        probes: dict[str, Path] = {"/healthz": alive, "/readyz": readiness.answer}
        served: dict[str, ListenAddress] = {}
        async with contextlib.AsyncExitStack() as stack:
            if self.health is not None and (self.health != self.metrics or not self.health.port):
                served["health"] = await stack.enter_async_context(serving(self.health, probes))
            if self.metrics is not None:
                scraping = Scraping(store, state, list(lanes))
                stack.callback(store.events.subscribe(scraping.counts.add, COUNTED))
                paths = {**probes, "/metrics": scraping.answer}
                served["metrics"] = await stack.enter_async_context(serving(self.metrics, paths))
            for what, where in served.items():
                log.info("%s on http://%s", what, where)
            yield served


class Scraping:
    """Answers scrapes, one at a time."""

    def __init__(
        self, store: Store, state: Callable[[], ProcessState], lanes: Iterable[LaneKey]
    ) -> None:
        from pulsed.metrics import exposition  # noqa: PLC0415 - needs the extra

        self._exposition = exposition
        self._state = state
        self.counts = ProcessCounts(lanes)
        self._load = LoadMetrics(LoadReader(store, with_controls=True), lanes)
        self._turn = asyncio.Lock()

    async def answer(self, headers: Mapping[str, str]) -> Answer:
        """Return all metrics, in the format that a scraper accepts."""
        async with self._turn:
            state, loads = self._state(), await self._load.read()
            # Thousands of lines take a while to write: not on the loop, which jobs wait for.
            return await asyncio.to_thread(self._write, headers, state, loads)

    def _write(self, headers: Mapping[str, str], state: ProcessState, loads: Loads) -> Answer:
        made = self._exposition.metrics_of(self.counts, state, loads)
        return self._exposition.encoded(made, headers)
