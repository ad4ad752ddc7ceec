"""Log records that name the job they come from."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any, Protocol
from uuid import UUID


class LoggedJob(Protocol):
    """What a record tells of its job."""

    @property
    def job_id(self) -> UUID:
        """The job's id."""

    @property
    def topic(self) -> str:
        """The name of its handler."""

    @property
    def attempt(self) -> int:
        """The number of the attempt."""


current: ContextVar[LoggedJob | None] = ContextVar("pulsed_context", default=None)
"""The context of the job that this code runs in."""


class JobLogFilter(logging.Filter):
    """Puts ``job_id``, ``topic`` and ``attempt`` on every record; add it to your log handler.

    Records from outside of a job get ``-``.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; keep every record."""
        job = current.get()
        if not hasattr(record, "job_id"):
            record.job_id = "-" if job is None else str(job.job_id)
            record.topic = "-" if job is None else job.topic
            record.attempt = "-" if job is None else job.attempt
        return True


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds its fields to every record, beside those of the call."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the message as it is, with the fields."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs
