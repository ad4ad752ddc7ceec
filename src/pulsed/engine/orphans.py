"""The children of workflows that failed or were cancelled: cancelled as well, level by level.

A worker does so as soon as it has reported such an end. Where nobody lived to report one, and for
what is left, some worker's upkeep does it at its next tick.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from pulsed.engine.run import Run, Stop
from pulsed.errors import StorageError
from pulsed.job import Lease, Outcome, Report, Succeeded, Waiting
from pulsed.store.base import Store

log = logging.getLogger("pulsed.worker")

BATCH = 500
MOST_BATCHES = 20
"""A bound on one go."""


async def cancel_orphans(store: Store) -> int:
    """Cancel what nobody waits for any more; returns how many parents were looked after."""
    total = 0
    for _ in range(MOST_BATCHES):
        parents = await store.cascade(limit=BATCH)
        total += parents
        if not parents:
            break
    return total


class Orphans:
    """Sees to the children of the runs of one worker."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._parents: set[Lease] = set()
        self._cancelling: asyncio.Task[None] | None = None

    def expect(self, run: Run, outcome: Outcome) -> None:
        """Remember a run that may leave children behind, until its end is stored."""
        flow = run.context._flow  # noqa: SLF001 - the context is the run's own
        if flow is None or not flow.has_children or isinstance(outcome, Succeeded):
            return
        if not isinstance(outcome, Waiting) or run.stop is Stop.CANCELLED:
            self._parents.add(run.lease)

    def settled(self, reports: Sequence[Report]) -> None:
        """Cancel the children of those whose end is stored now."""
        if not self._parents:
            return
        before = len(self._parents)
        self._parents.difference_update(report.lease for report in reports)
        if len(self._parents) < before and self._cancelling is None:
            self._cancelling = asyncio.create_task(self._cancel(), name="pulsed-orphans")

    async def _cancel(self) -> None:
        try:
            await cancel_orphans(self._store)
        except StorageError as error:
            log.warning("children of ended workflows are left for the next tick (%s)", error)
        finally:
            self._cancelling = None
