"""Every route of the dashboard, with the role that it needs."""

from __future__ import annotations

from pulsed.web.access import Role
from pulsed.web.pages import job, jobs, live, overview
from pulsed.web.site import Page

PAGES: tuple[Page, ...] = (
    Page("/", overview.show),
    Page("/jobs", jobs.show),
    Page("/jobs/{id}", job.show),
    Page("/jobs/{id}/payload", job.payload),
    Page("/jobs/{id}/result", job.result),
    Page("/jobs/{id}/runs/{token}", job.traceback),
    Page("/jobs/{id}/retry", job.retry, Role.OPERATOR, "POST"),
    Page("/jobs/{id}/cancel", job.cancel, Role.OPERATOR, "POST"),
    Page("/jobs/{id}/signal", job.signal, Role.OPERATOR, "POST"),
    Page("/jobs/{id}/delete", job.delete, Role.ADMIN, "POST"),
    Page("/live", live.stream),
)
