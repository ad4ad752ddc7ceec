"""Every route of the dashboard, with the role that it needs."""

from __future__ import annotations

from pulsed.web.pages import jobs, live, overview
from pulsed.web.site import Page

PAGES: tuple[Page, ...] = (
    Page("/", overview.show),
    Page("/jobs", jobs.show),
    Page("/live", live.stream),
)
