"""Every route of the dashboard, with the role that it needs."""

from __future__ import annotations

from pulsed.web.pages import audit, jobs, live, overview, queues, workers
from pulsed.web.site import Page

PAGES: tuple[Page, ...] = (
    Page("/", overview.show),
    Page("/jobs", jobs.show),
    Page("/queues", queues.show),
    Page("/queues/{name:path}", queues.show_one),
    Page("/workers", workers.show),
    Page("/audit", audit.show),
    Page("/live", live.stream),
)
