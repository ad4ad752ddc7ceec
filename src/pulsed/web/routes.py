"""Every route of the dashboard, with the role that it needs."""

from __future__ import annotations

from pulsed.web.access import Role
from pulsed.web.pages import (
    audit,
    bulk,
    job,
    jobs,
    live,
    new_job,
    overview,
    queues,
    schedules,
    workers,
)
from pulsed.web.site import Page

PAGES: tuple[Page, ...] = (
    Page("/", overview.show),
    Page("/jobs", jobs.show),
    Page("/jobs/complete", jobs.complete),
    Page("/jobs/retry", jobs.retry, Role.OPERATOR, "POST"),
    Page("/jobs/cancel", jobs.cancel, Role.OPERATOR, "POST"),
    Page("/jobs/run-now", jobs.run_now, Role.OPERATOR, "POST"),
    Page("/jobs/delete", jobs.delete, Role.ADMIN, "POST"),
    Page("/bulk", bulk.preview, Role.OPERATOR),
    Page("/bulk/retry", bulk.retry, Role.OPERATOR, "POST"),
    Page("/bulk/cancel", bulk.cancel, Role.OPERATOR, "POST"),
    Page("/bulk/run-now", bulk.run_now, Role.OPERATOR, "POST"),
    Page("/bulk/delete", bulk.delete, Role.ADMIN, "POST"),
    Page("/bulk/{name}", bulk.show, Role.OPERATOR),
    Page("/jobs/new", new_job.show, Role.ADMIN),
    Page("/jobs/new", new_job.enqueue, Role.ADMIN, "POST"),
    Page("/jobs/{id}", job.show),
    Page("/jobs/{id}/payload", job.payload),
    Page("/jobs/{id}/result", job.result),
    Page("/jobs/{id}/runs/{token}", job.traceback),
    Page("/jobs/{id}/retry", job.retry, Role.OPERATOR, "POST"),
    Page("/jobs/{id}/edit", job.edit, Role.ADMIN),
    Page("/jobs/{id}/edit", job.edit_and_retry, Role.ADMIN, "POST"),
    Page("/jobs/{id}/run-now", job.run_now, Role.OPERATOR, "POST"),
    Page("/jobs/{id}/cancel", job.cancel, Role.OPERATOR, "POST"),
    Page("/jobs/{id}/signal", job.signal, Role.OPERATOR, "POST"),
    Page("/jobs/{id}/delete", job.delete, Role.ADMIN, "POST"),
    Page("/queues", queues.show),
    Page("/queues/{name:path}", queues.show_one),
    Page("/schedules", schedules.show),
    Page("/schedules/{name:path}", schedules.show_one),
    Page("/schedules/{name:path}/run-now", schedules.run_now, Role.OPERATOR, "POST"),
    Page("/schedules/{name:path}/pause", schedules.pause, Role.OPERATOR, "POST"),
    Page("/schedules/{name:path}/resume", schedules.resume, Role.OPERATOR, "POST"),
    Page("/schedules/{name:path}/edit", schedules.edit, Role.ADMIN, "POST"),
    Page("/schedules/{name:path}/delete", schedules.delete, Role.ADMIN, "POST"),
    Page("/workers", workers.show),
    Page("/audit", audit.show),
    Page("/live", live.stream),
)
