"""What a handler can know about its run, and say while it runs."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any
from uuid import UUID

from pulsed.errors import LeaseLost
from pulsed.handler import HandlerContext
from pulsed.handler.payload import encode_payload
from pulsed.job import Assignment
from pulsed.store.base import Store
from pulsed.store.blocking import blocking

log = logging.getLogger("pulsed.job")

_current: ContextVar[Context | None] = ContextVar("pulsed_context", default=None)


class Context(HandlerContext):
    """The run that a handler is in. Ask for it as the first parameter.

    ``job_id`` stays the same over all runs of a job: use it as the idempotency key of effects.
    ``lease_token`` is higher in every later run: a resource that has seen a higher one can refuse
    a writer that was believed dead and is not.
    """

    def __init__(self, assignment: Assignment, store: Store) -> None:
        self._assignment = assignment
        self._store = store
        self._cancelled = False

    @functools.cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that names the job on every line."""
        fields = {"job_id": str(self.job_id), "topic": self.topic, "attempt": self.attempt}
        return _JobLogger(log, fields)

    @property
    def job_id(self) -> UUID:
        """The job's id."""
        return self._assignment.job_id

    @property
    def topic(self) -> str:
        """The name of the handler."""
        return self._assignment.topic

    @property
    def queue(self) -> str:
        """The queue the job was claimed from."""
        return self._assignment.queue

    @property
    def attempt(self) -> int:
        """Which attempt this is: 1, 2, … up to ``max_attempts``."""
        return self._assignment.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts there are before the job is dead-lettered."""
        return self._assignment.max_attempts

    @property
    def lease_token(self) -> int:
        """A fencing token: rises with every run of the job."""
        return self._assignment.lease_token

    @property
    def headers(self) -> Mapping[str, str]:
        """What the producer sent along besides the arguments."""
        return self._assignment.headers

    @property
    def submitted_at(self) -> datetime:
        """When the job was enqueued."""
        return self._assignment.submitted_at

    @property
    def schedule_id(self) -> UUID | None:
        """The schedule that made the job, if one did."""
        return self._assignment.schedule_id

    @property
    def occurrence(self) -> datetime | None:
        """The instant the schedule was due, which may lie before ``submitted_at``."""
        return self._assignment.occurrence

    @property
    def cancelled(self) -> bool:
        """Whether the run should stop: asked to, timed out, or no longer ours.

        Async handlers are cancelled; a plain function runs in a thread, which cannot be stopped
        from outside, so a long one looks here from time to time and returns.
        """
        return self._cancelled

    async def aprogress(self, value: Any) -> None:
        """Store how far the run is (anything JSON); others see it as ``job.progress``."""
        text = encode_payload("The progress", value)
        if not await self._store.set_progress(self._assignment.lease, text):
            raise LeaseLost(
                f"Job {self.job_id} ({self.topic}) lost its lease; another worker may run it.",
                job_id=self.job_id,
            )

    progress = blocking(aprogress)


def current_context() -> Context | None:
    """Return the context of the job that is running here, or None outside of one."""
    return _current.get()


def enter(context: Context) -> None:
    """Make ``context`` the current one for the rest of this task or thread call."""
    _current.set(context)


class JobLogFilter(logging.Filter):
    """Puts ``job_id``, ``topic`` and ``attempt`` on every record; add it to a log handler.

    Records that come from outside of a job get ``-``.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; keep every record."""
        context = _current.get()
        if not hasattr(record, "job_id"):
            record.job_id = "-" if context is None else str(context.job_id)
            record.topic = "-" if context is None else context.topic
            record.attempt = "-" if context is None else context.attempt
        return True


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs
