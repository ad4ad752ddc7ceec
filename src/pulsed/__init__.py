"""Durable jobs for Python, in the database you already have.

Exported names are imported lazily, on first access. So ``pulsed --help`` loads little, and you can
interrupt the command while it is still importing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsed.app import Pulse
    from pulsed.client.job import Job
    from pulsed.client.jobtype import JobType
    from pulsed.client.router import Router
    from pulsed.client.schedules import Schedule
    from pulsed.engine.context import Context, current_context
    from pulsed.engine.enqueuing import OutgoingJob
    from pulsed.engine.job_logging import JobLogFilter
    from pulsed.engine.workflow.fan_out import FanOut
    from pulsed.engine.workflow.steps import StepCall
    from pulsed.errors import (
        CodecError,
        DuplicateKey,
        FanOutFailed,
        InvalidJob,
        InvalidTransition,
        JobCancelled,
        JobFailed,
        JobNotFound,
        KeyNotFound,
        NeverStarted,
        NoRetry,
        PulsedError,
        ResultTimeout,
        RetryAfter,
        RunStopped,
        ScheduleChanged,
        ScheduleNotFound,
        SignalTimeout,
        Snooze,
        StepFailed,
        WaitTimeout,
        WorkflowError,
    )
    from pulsed.handler import Call
    from pulsed.handler.envelope import CodecContext, TextCodec
    from pulsed.model.backoff import Backoff, RetryPolicy
    from pulsed.model.job import Status
    from pulsed.model.limit import Limit
    from pulsed.model.rate import Rate
    from pulsed.model.retention import Retention
    from pulsed.model.schedule import ScheduleState
    from pulsed.model.workflow import collect_all, fail_fast, threshold
    from pulsed.version import __version__

_HOMES = {
    "pulsed.app": ("Pulse",),
    "pulsed.model.backoff": ("Backoff", "RetryPolicy"),
    "pulsed.client.job": ("Job",),
    "pulsed.client.jobtype": ("JobType",),
    "pulsed.client.router": ("Router",),
    "pulsed.client.schedules": ("Schedule",),
    "pulsed.engine.context": ("Context", "current_context"),
    "pulsed.engine.enqueuing": ("OutgoingJob",),
    "pulsed.engine.job_logging": ("JobLogFilter",),
    "pulsed.engine.workflow.fan_out": ("FanOut",),
    "pulsed.engine.workflow.steps": ("StepCall",),
    "pulsed.errors": (
        "CodecError",
        "DuplicateKey",
        "FanOutFailed",
        "InvalidJob",
        "InvalidTransition",
        "JobCancelled",
        "JobFailed",
        "JobNotFound",
        "KeyNotFound",
        "NeverStarted",
        "NoRetry",
        "PulsedError",
        "ResultTimeout",
        "RetryAfter",
        "RunStopped",
        "ScheduleChanged",
        "ScheduleNotFound",
        "SignalTimeout",
        "Snooze",
        "StepFailed",
        "WaitTimeout",
        "WorkflowError",
    ),
    "pulsed.handler": ("Call",),
    "pulsed.handler.envelope": ("CodecContext", "TextCodec"),
    "pulsed.model.job": ("Status",),
    "pulsed.model.limit": ("Limit",),
    "pulsed.model.rate": ("Rate",),
    "pulsed.model.retention": ("Retention",),
    "pulsed.model.schedule": ("ScheduleState",),
    "pulsed.version": ("__version__",),
    "pulsed.model.workflow": ("collect_all", "fail_fast", "threshold"),
}
"""The module that defines each exported name."""

_MODULES = ("errors", "testing")

__all__ = [
    "Backoff",
    "Call",
    "CodecContext",
    "CodecError",
    "Context",
    "DuplicateKey",
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
    "KeyNotFound",
    "Limit",
    "NeverStarted",
    "NoRetry",
    "OutgoingJob",
    "Pulse",
    "PulsedError",
    "Rate",
    "ResultTimeout",
    "Retention",
    "RetryAfter",
    "RetryPolicy",
    "Router",
    "RunStopped",
    "Schedule",
    "ScheduleChanged",
    "ScheduleNotFound",
    "ScheduleState",
    "SignalTimeout",
    "Snooze",
    "Status",
    "StepCall",
    "StepFailed",
    "TextCodec",
    "WaitTimeout",
    "WorkflowError",
    "__version__",
    "collect_all",
    "current_context",
    "fail_fast",
    "threshold",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
