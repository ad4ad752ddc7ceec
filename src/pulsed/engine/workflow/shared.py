"""What the workflows of one worker share."""

from __future__ import annotations

import asyncio
import functools

from pulsed.engine.workflow.recorder import Recorder
from pulsed.handler import Registry
from pulsed.store.base import Store


class Workflows:
    """The loop they run in, their database and its writer, and what their handlers say."""

    def __init__(self, store: Store, registry: Registry | None = None) -> None:
        self.store = store
        self.loop = asyncio.get_running_loop()
        self._registry = registry

    @functools.cached_property
    def recorder(self) -> Recorder:
        """Writes their checkpoints."""
        return Recorder(self.store)

    def is_strict(self, topic: str) -> bool:
        """Whether a workflow is parked whose code asks for another step than the stored one."""
        handler = self._registry.find(topic) if self._registry is not None else None
        return handler is None or handler.determinism == "strict"
