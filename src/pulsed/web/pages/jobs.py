"""The list of jobs: searched by qualifiers, paged by key."""

from __future__ import annotations

from starlette.responses import Response

from pulsed.web.search import parse
from pulsed.web.site import Call

PAGE_SIZE = 50


async def show(call: Call) -> Response:
    """Show the newest jobs that match the search."""
    text = call.query.get("q", "")
    summary = await call.site.summary()
    search = parse(text, summary.now)
    before = call.query.get("before") or None
    page = await call.app.jobs.alist(limit=PAGE_SIZE, before=before, **search.where)
    template = "jobs_rows.html" if call.is_fragment else "jobs.html"
    return await call.page(template, q=text, problems=search.problems, jobs=page, page=page)
