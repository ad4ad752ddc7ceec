"""Log records that name the job they come from."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any, Protocol

from pulsed.handler import HandlerContext
from pulsed.model.job import Assignment


class CurrentRun(Protocol):
    """A run, as the code that runs in it finds it."""

    @property
    def assignment(self) -> Assignment:
        """Its job."""

    @property
    def context(self) -> HandlerContext:
        """Its context, which is made when it is first asked for."""


current: ContextVar[CurrentRun | None] = ContextVar("pulsed_run", default=None)
"""The run that this code is in."""


class JobLogFilter(logging.Filter):
    """Puts ``job_id``, ``topic`` and ``attempt`` on every record; add it to your log handler.

    Records from outside of a job get ``-``.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; keep every record."""
        run = current.get()
        job = None if run is None else run.assignment
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
