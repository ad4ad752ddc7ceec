"""Bulk operations that the dashboard's process performs, so that none waits for a worker's poll.

They are stored: if this process ends, workers go on, or the next dashboard that shows them.
"""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from pulsed.engine.upkeep.bulk import perform_to_end
from pulsed.errors import PulsedError
from pulsed.store.base import Store

log = logging.getLogger("pulsed.ui")


class Performing:
    """The operations that one dashboard performs."""

    def __init__(self) -> None:
        self._tasks: dict[UUID, asyncio.Task[None]] = {}

    def start(self, store: Store, bulk_id: UUID) -> None:
        """Let an operation go on in this process, unless it does already."""
        if bulk_id not in self._tasks:
            task = asyncio.create_task(_perform(store, bulk_id))
            self._tasks[bulk_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(bulk_id, None))

    async def close(self) -> None:
        """Leave what is in progress to others: batches that are done stay done."""
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _perform(store: Store, bulk_id: UUID) -> None:
    try:
        await perform_to_end(store, bulk_id)
    except PulsedError as error:
        log.warning("bulk operation %s goes on elsewhere, or later: %s", bulk_id, error)
    except Exception:
        log.exception("bulk operation %s failed here", bulk_id)
