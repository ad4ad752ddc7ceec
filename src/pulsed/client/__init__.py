"""Jobs from the outside: look at one, wait for it, change its course.

Every coroutine method has a blocking twin without the ``a``.
"""

from pulsed.client.audit import AuditLog
from pulsed.client.filter import Filter
from pulsed.client.job import Client, Job, JobId, checked_id
from pulsed.client.jobs import Jobs
from pulsed.client.jobtype import AsyncJobType, Declaration, JobType, SyncJobType
from pulsed.client.router import JobDecorator, Router
from pulsed.client.schedule_spec import ScheduleOptions, Target, make_spec
from pulsed.client.schedules import Schedule, ScheduleFire, Schedules, Synced
from pulsed.client.signals import send_signal
from pulsed.client.step_decorator import StepDecorator

__all__ = [
    "AsyncJobType",
    "AuditLog",
    "Client",
    "Declaration",
    "Filter",
    "Job",
    "JobDecorator",
    "JobId",
    "JobType",
    "Jobs",
    "Router",
    "Schedule",
    "ScheduleFire",
    "ScheduleOptions",
    "Schedules",
    "StepDecorator",
    "SyncJobType",
    "Synced",
    "Target",
    "checked_id",
    "make_spec",
    "send_signal",
]
