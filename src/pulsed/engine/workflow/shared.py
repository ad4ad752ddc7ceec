"""What the workflows of one worker share."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

from pulsed.batches import text_size
from pulsed.engine.around import Arounds
from pulsed.engine.workflow.recorder import Recorder
from pulsed.handler import Registry
from pulsed.model.stream import Emission
from pulsed.model.workflow import Record
from pulsed.store.base import Store


class Workflows:
    """Their event loop, store and registry, what surrounds them, and what writes for them."""

    pause: Callable[[float], Awaitable[None]] = staticmethod(asyncio.sleep)
    """The sleep between two tries of a step."""

    def __init__(
        self, store: Store, registry: Registry | None = None, arounds: Arounds | None = None
    ) -> None:
        self.store = store
        self.arounds = arounds or Arounds()
        self.loop = asyncio.get_running_loop()
        self._registry = registry

    @functools.cached_property
    def recorder(self) -> Recorder[Record]:
        """The writer of their checkpoints."""
        return Recorder(
            self.store.workflows.record,
            "a checkpoint",
            size=lambda record: text_size(record.checkpoint.value),
        )

    @functools.cached_property
    def emitter(self) -> Recorder[Emission]:
        """The writer of what runs emit."""
        return Recorder(
            self.store.streams.emit,
            "a stream",
            size=lambda emission: sum(map(text_size, emission.values)),
            count=lambda emission: len(emission.values),
        )

    def is_strict(self, topic: str) -> bool:
        """Whether a workflow is dead-lettered if its calls differ from the stored ones."""
        handler = self._registry.find(topic) if self._registry is not None else None
        return handler is None or handler.determinism == "strict"
