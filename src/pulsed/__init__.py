"""Durable jobs for Python, in the database you already have."""

from pulsed.app import Pulse
from pulsed.backoff import Backoff, RetryPolicy
from pulsed.client import Job, JobType, Router, Schedule
from pulsed.engine.context import Context, JobLogFilter, current_context
from pulsed.engine.fan_out import FanOut
from pulsed.errors import (
    FanOutFailed,
    InvalidJob,
    InvalidTransition,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NoRetry,
    PulsedError,
    ResultTimeout,
    RetryAfter,
    ScheduleChanged,
    ScheduleNotFound,
    SignalTimeout,
    Snooze,
    StepFailed,
    WaitTimeout,
    WorkflowError,
)
from pulsed.handler import Call
from pulsed.job import Status
from pulsed.retention import Retention
from pulsed.schedule import ScheduleState
from pulsed.version import __version__
from pulsed.workflow import collect_all, fail_fast, threshold

__all__ = [
    "Backoff",
    "Call",
    "Context",
    "FanOut",
    "FanOutFailed",
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
    "ScheduleChanged",
    "ScheduleNotFound",
    "ScheduleState",
    "SignalTimeout",
    "Snooze",
    "Status",
    "StepFailed",
    "WaitTimeout",
    "WorkflowError",
    "__version__",
    "collect_all",
    "current_context",
    "fail_fast",
    "threshold",
]
