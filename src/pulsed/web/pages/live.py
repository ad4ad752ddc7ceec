"""The event stream of live pages."""

from __future__ import annotations

from starlette.responses import Response, StreamingResponse

from pulsed.web.site import PageCall


async def stream(call: PageCall) -> Response:
    """Return the summaries as they change, for as long as the tab is open and visible."""
    hub = call.request.app.state.hub
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(hub.stream(), headers=headers, media_type="text/event-stream")
