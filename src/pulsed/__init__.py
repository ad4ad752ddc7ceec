"""Durable jobs for Python, in the database you already have."""

from pulsed.app import Pulse
from pulsed.backoff import Backoff, RetryPolicy
from pulsed.client import Job, JobType, Router, Schedule
from pulsed.engine.context import Context, JobLogFilter, current_context
from pulsed.errors import (
    InvalidJob,
    InvalidTransition,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NoRetry,
    PulsedError,
    ResultTimeout,
    RetryAfter,
    ScheduleNotFound,
    Snooze,
)
from pulsed.handler import Call
from pulsed.job import Status
from pulsed.retention import Retention
from pulsed.schedule import ScheduleState
from pulsed.version import __version__

__all__ = [
    "Backoff",
    "Call",
    "Context",
    "InvalidJob",
    "InvalidTransition",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobLogFilter",
    "JobNotFound",
    "JobType",
    "NoRetry",
    "Pulse",
    "PulsedError",
    "ResultTimeout",
    "Retention",
    "RetryAfter",
    "RetryPolicy",
    "Router",
    "Schedule",
    "ScheduleNotFound",
    "ScheduleState",
    "Snooze",
    "Status",
    "__version__",
    "current_context",
]
