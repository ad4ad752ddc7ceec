"""The first page: what is wrong, how much there is to do, how fast it goes."""

from __future__ import annotations

from starlette.responses import Response

from pulsed.engine.why import live, unserved_queue
from pulsed.web.site import Call


async def show(call: Call) -> Response:
    """Show the state of the whole database."""
    summary = await call.site.summary()
    store = call.app.store
    workers = live(await store.workers(), summary.now)
    taken = sorted({queue for worker in workers for queue in worker.queues})
    unserved = await store.due_queues(besides=taken)
    warnings = [
        unserved_queue(queue, oldest, workers, summary.now) for queue, oldest in unserved.items()
    ]
    return await call.page("overview.html", warnings=warnings)
