"""Why a due job does not start although workers could take it: what governs its queue or topic."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime

from pulsed.engine.limits import limit_reasons
from pulsed.engine.queues import next_start
from pulsed.engine.why import explain
from pulsed.errors import AccessDenied, InvalidOption, ServerTooOld
from pulsed.model.control import Control, ControlScope, Numbers, described
from pulsed.model.job import JobFilter, JobRow, Status, WorkerInfo
from pulsed.model.lifecycle import CLAIMABLE
from pulsed.store.base import Store
from pulsed.wording import counted, format_duration

SHOWN = 5
"""Jobs that hold a limit, of which a sentence names so many."""


async def why(store: Store, job: JobRow, workers: Sequence[WorkerInfo] | None = None) -> list[str]:
    """Return sentences on where a job stands and what it waits for; none if it has ended."""
    now = await store.now()
    present = await store.workers() if workers is None else workers
    try:
        reasons = await held_back(store, job, now)
    except (AccessDenied, ServerTooOld):  # a caller that is limited may not see controls
        reasons = []
    except InvalidOption as error:
        reasons = [str(error)]
    return explain(job, present, now, reasons)


async def held_back(store: Store, job: JobRow, now: datetime) -> list[str]:
    """Return what keeps a due job from starting: a pause, or a limit of its queue or its own."""
    if job.status not in CLAIMABLE or job.next_run_at > now:
        return []
    queue = await store.controls.get(ControlScope.QUEUE, job.queue)
    topic = await store.controls.get(ControlScope.TOPIC, job.topic)
    reasons = [_paused(control, now) for control in (queue, topic) if control.paused]
    reasons += await _at_its_limit(store, queue)
    reasons += await _throttled(store, queue, now)
    return reasons + await limit_reasons(store, job, now)


def _paused(control: Control, now: datetime) -> str:
    by = f" by {control.paused_by}" if control.paused_by else ""
    since = ""
    if control.paused_at is not None:
        since = f" {format_duration((now - control.paused_at).total_seconds())} ago"
    command = f"pulsed {control.scope}s resume {shlex.quote(control.name)}"
    return f"its {control.scope} {control.name!r} was paused{by}{since}: resume it with `{command}`"


async def _at_its_limit(store: Store, queue: Control) -> list[str]:
    most = queue.numbers.running
    if most is None:
        return []
    where = JobFilter(status=(Status.RUNNING,), queue=queue.name)
    holders = await store.list_jobs(where, limit=SHOWN)
    running = (await store.counts(where))[Status.RUNNING]
    if running < most:
        return []
    named = ", ".join(str(each.id) for each in holders)
    more = f" and {running - len(holders):,} more" if running > len(holders) else ""
    runs = f"its queue {queue.name!r} runs {counted(running, 'job')}, and its limit is {most:,}"
    return [f"{runs}: {named}{more}"]


async def _throttled(store: Store, queue: Control, now: datetime) -> list[str]:
    if queue.numbers.rate is None:
        return []
    tats = await store.controls.rates(ControlScope.QUEUE, [queue.name])
    permitted = next_start(queue, tats.get(queue.name), now)
    if permitted is None:
        return []
    wait = format_duration((permitted - now).total_seconds())
    rate = described(Numbers(rate=queue.numbers.rate))
    return [f"its queue {queue.name!r} has a {rate}: the next may start in {wait}"]
