"""Workers: which are alive, what they run, and which fell silent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from starlette.responses import Response

from pulsed.app import Pulse
from pulsed.client.workers import ask, choose
from pulsed.engine.why import SILENT_AFTER, is_live
from pulsed.model.job import JobFilter, JobRow, Status, WorkerInfo, WorkerRequest
from pulsed.web.site import PageCall
from pulsed.wording import counted, format_duration

MOST_JOBS = 200
"""Running jobs that the page reads…"""
MOST_SHOWN = 5
"""…and that it names for each worker."""
MOST_WORKERS = 200

BAR_WIDTH = 90


class WorkerLine(NamedTuple):
    """A worker as the page shows it."""

    info: WorkerInfo
    state: str
    """``live``, ``draining``, ``failing`` or ``silent``."""
    reason: str
    """What is wrong with it, and what happens next; empty if it is well."""
    bar: float
    """The width of the part of the bar that stands for used slots."""
    jobs: Sequence[JobRow]

    @property
    def shape(self) -> str:
        """A shape for its state: colour alone is not enough to tell them apart."""
        return _SHAPES[self.state]


_SHAPES = {"live": "●", "draining": "◐", "failing": "▲", "silent": "✕"}
_STATES = {"running": "live", "failing": "failing"}
_ORDER = ("failing", "silent", "live", "draining")


async def show(call: PageCall) -> Response:
    """Show the workers, those with a problem first."""
    site = call.site
    workers, running, now, _ = await asyncio.gather(
        site.workers(),
        site.shared.get("running jobs", lambda: _running(call.app)),
        site.now(),
        site.summary(),
    )
    found = lines(workers, running, now)
    return await call.page(
        "workers.html",
        workers=found[:MOST_WORKERS],
        left_out=len(found[MOST_WORKERS:]),
        now=now,
        bar_width=BAR_WIDTH,
    )


async def _running(app: Pulse) -> list[JobRow]:
    return await app.store.list_jobs(JobFilter(status=(Status.RUNNING,)), limit=MOST_JOBS)


def lines(
    workers: Sequence[WorkerInfo], running: Sequence[JobRow], now: datetime
) -> list[WorkerLine]:
    """Return what the page shows, those with a problem first."""
    found = [_line(each, running, now) for each in workers]
    found.sort(key=lambda line: (_ORDER.index(line.state), line.info.host, line.info.pid))
    return found


def _line(worker: WorkerInfo, running: Sequence[JobRow], now: datetime) -> WorkerLine:
    alive = is_live(worker, now)
    state = _STATES.get(worker.state, "draining") if alive else "silent"
    own = [job for job in running if job.locked_by == worker.id]
    share = min(1.0, worker.running / max(1, worker.slots))
    return WorkerLine(worker, state, _reason(worker, state), share * BAR_WIDTH, own[:MOST_SHOWN])


def _reason(worker: WorkerInfo, state: str) -> str:
    stuck = f"{counted(worker.stuck, 'slot')} with a handler that does not stop"
    if state == "silent":
        after = format_duration(SILENT_AFTER)
        jobs = (
            "It ran nothing."
            if not worker.running
            else f"It ran {counted(worker.running, 'job')}: each restarts elsewhere when its lease "
            "expires."
        )
        return f"No heartbeat for more than {after}: killed, frozen, or cut off. {jobs}"
    if state == "failing":
        return "It cannot claim jobs: its log says why."
    if worker.stuck:
        return f"{stuck}: restart it."
    if state == "draining":
        return "It finishes what it runs and takes nothing new."
    return f"It was asked to {worker.request}, and has not answered yet." if worker.request else ""


# -- acts -----------------------------------------------------------------------------------------


async def confirm_end(call: PageCall) -> Response:
    """Ask how to end a worker."""
    (worker,) = await choose(call.app.store, [call.path("id")], None, everywhere=False)
    await call.site.summary()
    return await call.page("worker_end.html", worker=worker)


async def drain(call: PageCall) -> Response:
    """Let a worker finish what it runs, and end."""
    return await _ask(call, WorkerRequest.DRAIN, "finishes what it runs, and ends")


async def stop(call: PageCall) -> Response:
    """Let a worker hand back what it runs, and end."""
    return await _ask(call, WorkerRequest.STOP, "hands back what it runs, and ends")


async def _ask(call: PageCall, request: WorkerRequest, then: str) -> Response:
    store = call.app.store
    chosen = await choose(store, [call.path("id")], None, everywhere=False)
    await ask(store, chosen, request)
    (worker,) = chosen
    return call.done(f"Worker {worker.host}:{worker.pid} {then}.", call.back("/workers"))
