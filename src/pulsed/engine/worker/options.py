"""The options of a worker, checked before it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict, get_args

from pulsed.errors import InvalidOption
from pulsed.handler import Registry
from pulsed.handler.options import checked_count
from pulsed.model.backoff import RetryPolicy, retry_policies
from pulsed.model.job import DEFAULT_QUEUE
from pulsed.model.retention import Retention
from pulsed.store.retrying import OwnRetry
from pulsed.wording import counted

JobLogging = Literal["all", "limited", "failures"]
"""Which ends of jobs are logged: all, only some successes a second, or failures only."""


MOST_NAMES = 20
"""Names in each list of the start-up line."""


class WorkerSettings(TypedDict, total=False):
    """The worker settings of ``app.run(...)`` and the command line; see ``WorkerOptions``."""

    queues: str | Sequence[str] | Mapping[str, float] | None
    concurrency: int
    poll: float
    tick: float
    drain_timeout: float | None
    fence: bool | None
    schedules: bool
    stats: bool
    retention: Retention
    retry: RetryPolicy
    retry_attempts: int
    dequeue_retry: RetryPolicy
    job_log: JobLogging
    job_processes: int | None
    jobs_per_process: int
    kill_after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The settings of a worker: the meaning, default and limits of each."""

    queues: Sequence[str] | Mapping[str, float] | None = None
    """In the order to claim from, or with weights. None: every queue that a handler declares, and
    ``default``, with equal weights."""
    concurrency: int = 100
    """How many jobs run at a time."""
    poll: float = 1.0
    """Polling interval in seconds when no notification arrives."""
    tick: float = 10.0
    """Seconds between two scans for jobs of silent workers."""
    drain_timeout: float | None = None
    """Seconds a drain may take before what still runs is handed back; None waits for ever."""
    fence: bool | None = None
    """Whether a run is stopped when its lease could not be confirmed in time: another worker
    may have the job by now. None: when no server answers; with a database, never."""
    schedules: bool = True
    """Whether it writes the declared schedules and fires what is due."""
    stats: bool = True
    """Whether it records statistics of its runs, which ``app.stats`` reads."""
    retention: Retention = field(default_factory=Retention)
    """When finished jobs are removed."""
    retry: RetryPolicy | None = None
    """How database operations are retried; None: as the store does it."""
    retry_attempts: int | None = None
    """A shorthand for a default ``retry`` with another number of attempts."""
    dequeue_retry: RetryPolicy | None = None
    """How claims are retried; None: as the store does it."""

    @property
    def own_retry(self) -> OwnRetry:
        """The retry policies that this worker uses instead of the store's."""
        return OwnRetry(*retry_policies(self.retry, self.retry_attempts, self.dequeue_retry))

    job_log: JobLogging = "limited"
    """Which ends of jobs are logged."""
    job_processes: int | None = None
    """How many jobs of handlers with ``executor="process"`` run at a time, each in a process of its
    own, beside the others. None: one for each processor."""
    jobs_per_process: int = 100
    """Jobs after which such a process is replaced."""
    kill_after: float = 5.0
    """Seconds that a job in such a process has to stop before the process is killed."""

    @property
    def most_processes(self) -> int:
        """How many job processes there may be."""
        return self.job_processes or os.cpu_count() or 1

    def slots(self, registry: Registry) -> int:
        """Return how many jobs of these handlers may run at a time."""
        apart = {handler.in_process for handler in registry}
        return self.concurrency * (False in apart) + self.most_processes * (True in apart)

    def __post_init__(self) -> None:
        _ = self.own_retry  # raises here if a policy is invalid
        if not isinstance(self.concurrency, int) or not 1 <= self.concurrency <= 10_000:
            raise InvalidOption(f"concurrency must be 1..10000, not {self.concurrency!r}.")
        for name, most in (("job_processes", 1_000), ("jobs_per_process", 1_000_000)):
            if (value := getattr(self, name)) is not None:
                checked_count(name, value, 1, most)
        if not 0 <= self.kill_after <= 3600:
            raise InvalidOption("kill_after must be 0..3600 seconds.")
        for name in ("poll", "tick"):
            if not 0.001 <= getattr(self, name) <= 3600:
                raise InvalidOption(f"{name} must be 0.001..3600 seconds.")
        if self.job_log not in get_args(JobLogging):
            raise InvalidOption(f"job_log must be one of {', '.join(get_args(JobLogging))}.")
        if isinstance(self.queues, str) or (self.queues is not None and not self.queues):
            raise InvalidOption("queues must be a list of names, at least one.")
        if isinstance(self.queues, Mapping) and min(self.queues.values()) <= 0:
            raise InvalidOption("the weights of queues must be positive.")

    def served_queues(self, registry: Registry) -> Sequence[str] | Mapping[str, float]:
        """Return the queues to claim from: those given, or all that the handlers declare.

        If none are given, all have equal weights, so that a full queue does not starve the others.
        """
        if self.queues is not None:
            return self.queues
        declared = {handler.queue for handler in registry}
        return dict.fromkeys(sorted(declared | {DEFAULT_QUEUE}), 1.0)

    def uses_threads(self, registry: Registry) -> bool:
        """Whether the worker serves plain functions, which run in threads."""
        queues = self.served_queues(registry)
        return any(
            handler.queue in queues and not handler.is_async and not handler.in_process
            for handler in registry
        )

    def summary(self, registry: Registry) -> str:
        """Return what a worker with these handlers does, for its start-up line."""
        served = self.served_queues(registry)
        topics = _some([h.topic for h in registry if h.queue in served])
        others = _some([f"{h.topic} (queue {h.queue})" for h in registry if h.queue not in served])
        elsewhere = f"; left to workers of other queues: {others}" if others else ""
        slots, threads = self.slots(registry), ""
        if self.uses_threads(registry):
            threads = f"; up to {self.concurrency} threads for plain def handlers"
        if any(handler.in_process for handler in registry):
            threads += f"; up to {counted(self.most_processes, 'job process', 'job processes')}"
        return f"queues {_some(list(served))}; {slots} slots; topics {topics}{elsewhere}{threads}"


def _some(names: list[str]) -> str:
    """Return names for a line of text, only the first ``MOST_NAMES`` of them."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
