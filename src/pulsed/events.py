"""The events that ``@app.on`` and ``app.events()`` give you; ``docs/hooks.md`` explains them."""

from __future__ import annotations

from pulsed.model.events import (
    EngineEvent,
    Event,
    JobDeadLettered,
    JobEnqueued,
    JobEvent,
    JobRetryScheduled,
    JobsClaimed,
    LeasesExpired,
    ListenerChanged,
    RunCancelled,
    RunEvent,
    RunFailed,
    RunFinished,
    RunHandedBack,
    RunLeaseLost,
    RunSnoozed,
    RunStarted,
    RunSucceeded,
    RunSuspended,
    StorageRetried,
)

__all__ = [
    "EngineEvent",
    "Event",
    "JobDeadLettered",
    "JobEnqueued",
    "JobEvent",
    "JobRetryScheduled",
    "JobsClaimed",
    "LeasesExpired",
    "ListenerChanged",
    "RunCancelled",
    "RunEvent",
    "RunFailed",
    "RunFinished",
    "RunHandedBack",
    "RunLeaseLost",
    "RunSnoozed",
    "RunStarted",
    "RunSucceeded",
    "RunSuspended",
    "StorageRetried",
]
