"""Wake-up subscriptions: what a listener tells, and the names besides those of queues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable

SCHEDULES = ",schedules"
"""A notification besides those of queues: a schedule was added or changed. No queue has a comma."""

CANCELS = ",cancels"
"""Likewise: running jobs are to be cancelled, or workers to end."""

_NO_QUEUES = frozenset((SCHEDULES, CANCELS))

Wake = Callable[[Collection[str] | None], bool | None]
"""Called with the names that a notification is about; None if they are not known. Returns whether a
claim follows at once, for all that is known now."""


def concerns(names: Collection[str] | None, name: str) -> bool:
    """Whether a notification may be about a name."""
    return names is None or name in names


def concerns_jobs(names: Collection[str] | None) -> bool:
    """Whether a notification may be about a queue."""
    return names is None or not _NO_QUEUES.issuperset(names)


class Listener(ABC):
    """The state of a wake-up subscription."""

    @property
    @abstractmethod
    def healthy(self) -> bool:
        """Whether notifications arrive now; without them, jobs start at the next poll."""

    def hear(self, queues: Iterable[str]) -> None:  # noqa: B027 - most wake for all queues
        """Subscribe to more queues, without a gap in the notifications of the others."""

    def forget(self, queues: Iterable[str]) -> None:  # noqa: B027 - as above
        """Unsubscribe from queues whose jobs no worker here waits for any more."""
