"""The retry policies of a store, of which its other options are a part."""

from __future__ import annotations

from dataclasses import dataclass, field

from pulsed.model.backoff import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions:
    """The retry policies of a store."""

    retry: RetryPolicy = field(default_factory=RetryPolicy)
    dequeue_retry: RetryPolicy = field(default_factory=RetryPolicy.dequeue)
