"""The events that ``@app.on`` and ``app.events()`` give you; ``docs/hooks.md`` explains them."""

from __future__ import annotations

from pulsed.model.events import (
    Cancelled,
    Claimed,
    DeadLettered,
    EngineEvent,
    Enqueued,
    Event,
    Failed,
    HandedBack,
    JobEvent,
    LeaseLost,
    LeasesExpired,
    ListenerChanged,
    RunEnded,
    RunEvent,
    RunFailed,
    Snoozed,
    Started,
    StorageRetried,
    Succeeded,
    Suspended,
)

__all__ = [
    "Cancelled",
    "Claimed",
    "DeadLettered",
    "EngineEvent",
    "Enqueued",
    "Event",
    "Failed",
    "HandedBack",
    "JobEvent",
    "LeaseLost",
    "LeasesExpired",
    "ListenerChanged",
    "RunEnded",
    "RunEvent",
    "RunFailed",
    "Snoozed",
    "Started",
    "StorageRetried",
    "Succeeded",
    "Suspended",
]
