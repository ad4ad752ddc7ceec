"""Why a due job does not start although workers could take it: what governs its queue or topic."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pulsed.engine.limits import limit_reasons
from pulsed.engine.queues import next_start
from pulsed.engine.why import explain, paused_reason
from pulsed.errors import AccessDenied, InvalidOption, ServerTooOld
from pulsed.model.control import Control, ControlScope, Numbers, described
from pulsed.model.job import JobFilter, JobRow, Status, WorkerInfo
from pulsed.model.lifecycle import CLAIMABLE, REPLAYABLE
from pulsed.store.base import Store
from pulsed.wording import counted, format_duration

SHOWN = 5
"""Jobs that hold a limit, of which a sentence names so many."""


async def why(store: Store, job: JobRow, workers: Sequence[WorkerInfo] | None = None) -> list[str]:
    """Return sentences on where a job stands and what it waits for.

    There are none if it has ended, unless it expired, or another job has taken its key since.
    """
    now = await store.now()
    present = await store.workers() if workers is None else workers
    try:
        reasons = await held_back(store, job, now)
    except (AccessDenied, ServerTooOld):  # a caller that is limited may not see controls
        reasons = []
    except InvalidOption as error:
        reasons = [str(error)]
    return [*explain(job, present, now, reasons), *await _key_taken(store, job)]


async def held_back(store: Store, job: JobRow, now: datetime) -> list[str]:
    """Return what keeps a due job from starting: a pause, or a limit of its queue or its own."""
    if job.status not in CLAIMABLE or job.next_run_at > now:
        return []
    queue = await store.controls.get(ControlScope.QUEUE, job.queue)
    topic = await store.controls.get(ControlScope.TOPIC, job.topic)
    reasons = [paused_reason(control, now) for control in (queue, topic) if control.paused]
    reasons += await _at_its_limit(store, queue)
    reasons += await _throttled(store, queue, now)
    return reasons + await limit_reasons(store, job, now)


async def _key_taken(store: Store, job: JobRow) -> list[str]:
    """Return which job has taken the key of one that could be retried otherwise."""
    if job.key is None or job.key_held or job.status not in REPLAYABLE:
        return []
    where = JobFilter(topic=job.topic, key=job.key, holds_key=True)
    return [
        f"it cannot be retried now: job {holder.id}, which is {holder.status}, has taken its key "
        f"{job.key!r}"
        for holder in await store.list_jobs(where, limit=1)
    ]


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
