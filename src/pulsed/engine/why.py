"""Explains in sentences why a job is not running, from its row and the workers' presence."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime

from pulsed.model.control import Control
from pulsed.model.job import JobRow, Status, WorkerInfo
from pulsed.model.lifecycle import CLAIMABLE, SUSPECT_AFTER
from pulsed.model.step import StepKind
from pulsed.model.workflow import fan_out_of
from pulsed.wording import counted, format_duration

SILENT_AFTER = 35.0
"""Seconds without a beat after which a worker counts as silent: over three default ticks."""


def is_live(worker: WorkerInfo, now: datetime) -> bool:
    """Whether a worker's last beat is recent."""
    return worker.last_beat is not None and _since(worker.last_beat, now) <= SILENT_AFTER


def live(workers: Iterable[WorkerInfo], now: datetime) -> list[WorkerInfo]:
    """Return the live workers that claim jobs."""
    return [worker for worker in workers if is_live(worker, now) and worker.state == "running"]


def explain(
    job: JobRow,
    workers: Sequence[WorkerInfo],
    now: datetime,
    held_back: Sequence[str] = (),
) -> list[str]:
    """Return sentences on where a job stands and what it waits for.

    There are none if it has ended, unless it expired. ``held_back`` has what keeps it from starting
    although it is due; ``held_back.py`` finds that.
    """
    if job.status in CLAIMABLE:
        expiring = _expiring(job, now)
        has_expired = bool(expiring) and job.expires_at is not None and job.expires_at <= now
        waiting = [] if has_expired else _waiting(job, workers, now, held_back)
        return [*waiting, *expiring, *_crashed(job)]
    if job.status is Status.RUNNING:
        return [*_running(job, workers, now), *_crashed(job)]
    if job.has_expired and job.expires_at is not None:
        return [f"expired at {job.expires_at:%Y-%m-%d %H:%M:%S} UTC before any worker started it"]
    return []


def no_worker_for(queue: str, topic: str, workers: Sequence[WorkerInfo]) -> str | None:
    """Return why none of the live ``workers`` would claim such a job; None if one would."""
    if not workers:
        return "no worker is alive: start one with `pulsed worker module:app`"
    there = [worker for worker in workers if queue in worker.queues]
    if not there:
        queues = sorted({name for worker in workers for name in worker.queues})
        return (
            f"no live worker takes from the queue {queue!r}, they take from {_some(queues)}: start "
            f"one with `pulsed worker module:app -q {shlex.quote(queue)}`"
        )
    if not any(topic in worker.topics for worker in there):
        return (
            f"no live worker on the queue {queue!r} has a handler for {topic!r}: is the code that "
            "declares it deployed, and imported by the app?"
        )
    return None


def pause_in_words(control: Control, now: datetime) -> str:
    """Return who paused something, and how long ago: ``was paused by ada 2 h ago``."""
    by = f" by {control.paused_by}" if control.paused_by else ""
    at = control.paused_at
    return f"was paused{by}" + ("" if at is None else f" {format_duration(_since(at, now))} ago")


def resume_command(control: Control) -> str:
    """Return the command that ends a pause."""
    return f"pulsed {control.scope}s resume {shlex.quote(control.name)}"


def paused_reason(control: Control, now: datetime) -> str:
    """Return that a job waits because its queue, topic or limit is paused."""
    what = f"its {control.scope} {control.name!r} {pause_in_words(control, now)}"
    return f"{what}: resume it with `{resume_command(control)}`"


def unserved_queue(
    queue: str, oldest: datetime, workers: Sequence[WorkerInfo], now: datetime
) -> str:
    """Return a warning about a queue with due jobs that none of the live ``workers`` serves."""
    waited = format_duration(_since(oldest, now))
    queues = sorted({name for worker in workers for name in worker.queues})
    return (
        f"queue {queue!r}: jobs are due, the oldest for {waited}, and no live worker takes from it "
        f"(they take from {_some(queues) or 'none'}): start one with `pulsed worker module:app "
        f"-q {shlex.quote(queue)}`"
    )


def waits_for(job: JobRow) -> str:
    """Return what a WAITING job waits for."""
    key = job.wait_key or "?"
    match job.wait_kind:
        case StepKind.SIGNAL:
            return f"the signal {key!r}"
        case StepKind.JOB:
            return f"the end of job {key}"
        case StepKind.FAN_OUT:
            return f"its children of {fan_out_of(key)}"
        case StepKind.SLEEP:
            return "the end of its sleep"
        case _:
            return "nothing that it names: `pulsed doctor` says more"


def _waiting(
    job: JobRow, workers: Sequence[WorkerInfo], now: datetime, held_back: Sequence[str]
) -> list[str]:
    due_in = -_since(job.next_run_at, now)
    reasons = []
    if due_in > 0:
        reasons.append(_not_yet(job, due_in))
    living = live(workers, now)
    if missing := no_worker_for(job.queue, job.topic, living):
        return [*reasons, *held_back, missing]
    if due_in > 0:
        return reasons
    if held_back:
        return list(held_back)
    able = [w for w in living if job.queue in w.queues and job.topic in w.topics]
    if all(worker.running >= worker.slots for worker in able):
        slots = sum(worker.slots for worker in able)
        return [f"all {slots} slots of the workers for it are taken"]
    if job.crashes >= SUSPECT_AFTER:
        return ["it is due, and starts when a worker with a free slot runs no other suspect"]
    return ["it is due, and a live worker has a handler and free slots: it should start any moment"]


def _expiring(job: JobRow, now: datetime) -> list[str]:
    """Return when the job expires, if it has not started."""
    if job.expires_at is None or job.started_at is not None:
        return []
    left = -_since(job.expires_at, now)
    if left <= 0:
        return ["it has expired, so no worker starts it any more: the next watchdog scan ends it"]
    return [f"it expires in {format_duration(left)} unless it starts"]


def _crashed(job: JobRow) -> list[str]:
    """Return how often the job's worker crashed, and what follows from that."""
    if not job.crashes:
        return []
    times = counted(job.crashes, "time")
    died = f"its worker died {times} in a row while it ran this job and others"
    if job.crashes < SUSPECT_AFTER:
        return [f"{died}, which did not count as an attempt"]
    apart = "a worker runs one suspect at a time, beside its other jobs"
    return [f"{died}, so it is a suspect: {apart}, and the next crash counts as an attempt"]


def _not_yet(job: JobRow, due_in: float) -> str:
    if job.status is Status.RETRYING:
        return f"its next attempt is due in {format_duration(due_in)}"
    if job.status is not Status.WAITING:
        return f"it is due in {format_duration(due_in)}"
    if job.wait_kind == StepKind.SLEEP:
        return f"it sleeps for another {format_duration(due_in)}"
    limit = (
        "however long that takes"
        if job.due_at is None
        else f"{format_duration(due_in)} at the most"
    )
    return f"it waits for {waits_for(job)}, {limit}"


def _running(job: JobRow, workers: Sequence[WorkerInfo], now: datetime) -> list[str]:
    assert job.lease_until is not None
    left = -_since(job.lease_until, now)
    owner = next((worker for worker in workers if worker.id == job.locked_by), None)
    who = f"worker {job.locked_by}" if owner is None else f"{owner.host}, process {owner.pid},"
    reasons = [f"{who} runs it; its lease ends in {format_duration(left)} unless it beats"]
    if left <= 0:
        watched = (
            "the next watchdog scan recovers it"
            if live(workers, now)
            else ("no worker is alive to recover it: start one with `pulsed worker module:app`")
        )
        reasons = [f"{who} is silent: its lease ended {format_duration(-left)} ago; {watched}"]
    if job.cancel_requested:
        reasons.append("it was asked to stop, and does so when its handler obeys")
    return reasons


def _since(instant: datetime, now: datetime) -> float:
    return (now - instant).total_seconds()


def _some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
