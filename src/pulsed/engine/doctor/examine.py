"""The doctor: checks a live database and reports, point by point, what is well and what is not.

Every check queries the database by itself, so a check that cannot be made counts as failed and does
not hide the others.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TypeAlias

from pulsed.engine.doctor.database import judged
from pulsed.engine.doctor.finding import CLOCK_TOLERANCE, WAITED_TOO_LONG, Finding, Severity
from pulsed.engine.doctor.schedules import check_schedules
from pulsed.engine.state_reads import StateReads
from pulsed.engine.why import SILENT_AFTER, is_live, live, no_worker_for
from pulsed.errors import PulsedError
from pulsed.model.job import JobFilter, Status
from pulsed.model.page import AUDITED
from pulsed.model.retention import Retention, described
from pulsed.store.base import Store
from pulsed.store.blocking import is_blocking
from pulsed.store.results import Audit, Backlog
from pulsed.wording import counted, format_duration

A_DAY = 86_400.0
LATE = A_DAY
"""Seconds that a finished job may outlast its retention, while workers catch up."""


async def examine(
    store: Store,
    retention: Retention | None = None,
    *,
    checks: Collection[str] | None = None,
    facts: Mapping[str, str] | None = None,
    reads: StateReads | None = None,
) -> list[Finding]:
    """Return the findings of all checks; without a usable database and schema they end there.

    With ``retention``, also check for finished jobs that it should have removed. With ``checks``,
    make only these of ``CHECKS``, and what the database says about itself. ``facts`` are that, if
    they were just read; ``reads`` has what the caller reads, too.
    """
    try:
        facts = facts or await store.check()
    except PulsedError as error:
        return [Finding("database", Severity.FAIL, str(error), "nothing else could be checked")]
    found = [Finding("database", Severity.OK, f"{facts['engine']}, {facts['database']}")]
    found += judged(facts)
    try:
        await store.now()  # raises if the schema is not the expected one
    except PulsedError as error:
        return [
            *found,
            Finding("schema", Severity.FAIL, str(error), "nothing else could be checked"),
        ]
    found.append(Finding("schema", Severity.OK, f"version {facts['schema']}"))
    chosen = {name: CHECKS[name] for name in (CHECKS if checks is None else checks)}
    if retention is not None:
        chosen["history"] = partial(_history, retention)
    shared = reads or StateReads(store)
    checking = [_checked(name, check(store, shared)) for name, check in chosen.items()]
    if is_blocking():  # without an event loop, one after the other
        return found + [each for check in checking for each in await check]
    return found + [each for some in await asyncio.gather(*checking) for each in some]


Check: TypeAlias = Callable[[Store, StateReads], Awaitable[list[Finding]]]


async def _checked(name: str, check: Awaitable[list[Finding]]) -> list[Finding]:
    try:
        return await check
    except PulsedError as error:
        return [Finding(name, Severity.FAIL, f"could not be checked: {error}")]


async def _clock(store: Store, _: StateReads) -> list[Finding]:
    before = time.time()
    database_time = await store.now()
    local_time = datetime.fromtimestamp((before + time.time()) / 2, UTC)
    difference = (local_time - database_time).total_seconds()
    if abs(difference) <= CLOCK_TOLERANCE:
        return [Finding("clock", Severity.OK, f"{format_duration(abs(difference))} apart")]
    ahead = "ahead of" if difference > 0 else "behind"
    apart = format_duration(abs(difference))
    detail = f"this host is {apart} {ahead} the database, whose clock decides"
    return [
        Finding("clock", Severity.WARN, detail, "let both follow NTP; times shown here are off")
    ]


async def _workers(_: Store, reads: StateReads) -> list[Finding]:
    now = await reads.now()
    workers = await reads.workers()
    living = live(workers, now)
    silent = [worker for worker in workers if not is_live(worker, now)]
    slots = sum(worker.slots for worker in living)
    found = [Finding("workers", Severity.OK, f"{len(living)} alive with {slots} slots")]
    if not living:
        advice = "start one with `pulsed worker module:app`"
        if (await reads.audit()).last_tick is None:
            advice += "; none ever ran here: is this the database that your workers use?"
        found = [Finding("workers", Severity.WARN, "none is alive; jobs wait", advice)]
    if silent:
        where = ", ".join(f"{worker.host}:{worker.pid}" for worker in silent[:5])
        detail = f"{len(silent)} silent for more than {SILENT_AFTER:.0f} s: {where}"
        found.append(Finding("silent workers", Severity.WARN, detail, "killed? see their logs"))
    failing = [worker for worker in workers if is_live(worker, now) and worker.state == "failing"]
    if failing:
        where = ", ".join(f"{worker.host}:{worker.pid}" for worker in failing[:5])
        detail = f"{len(failing)} cannot claim jobs: {where}"
        found.append(Finding("failing workers", Severity.FAIL, detail, "their logs say why"))
    if stuck := sum(worker.stuck for worker in living):
        detail = f"{stuck} slots hold handlers that do not stop"
        found.append(Finding("stuck slots", Severity.WARN, detail, "restart those workers"))
    return found


async def _jobs(_: Store, reads: StateReads) -> list[Finding]:
    audit = await reads.audit()
    return [
        _count("leases", audit.leaseless, "RUNNING jobs and leases do not match", audit),
        _count("attempts", audit.overspent, "jobs have more attempts than they may", audit),
        _overdue(audit),
        _waits(audit),
        _cascades(audit),
        await _watchdog(reads, audit),
    ]


def _count(check: str, number: int, problem: str, audit: Audit) -> Finding:
    if not number:
        detail = f"consistent: {audit.running:,} running, and the newest {AUDITED:,} jobs"
        return Finding(check, Severity.OK, detail)
    advice = "pulsed cannot do this: was the table changed by hand? Please report it"
    return Finding(check, Severity.FAIL, f"{number:,} {problem}", advice)


def _overdue(audit: Audit) -> Finding:
    if not audit.overdue:
        return Finding("recovery", Severity.OK, "no lease is overdue")
    if audit.in_grace:
        detail = (
            f"{counted(audit.overdue, 'job')} of silent workers; workers get a moment to beat first"
        )
        return Finding("recovery", Severity.WARN, detail, "check again in half a minute")
    detail = f"{audit.overdue:,} {_plural(audit.overdue)} still RUNNING long after the lease ended"
    advice = "any live worker recovers them within a tick: start one, or see its log"
    return Finding("recovery", Severity.FAIL, detail, advice)


def _waits(audit: Audit) -> Finding:
    if not audit.reasonless and not audit.overslept:
        return Finding("waits", Severity.OK, "every wait is valid and still pending")
    wrong = {
        "WAITING without a reason": audit.reasonless,
        "WAITING for something that has already come": audit.overslept,
    }
    detail = ", ".join(
        f"{number:,} {_plural(number)} {problem}" for problem, number in wrong.items() if number
    )
    advice = (
        "pulsed cannot do this: was a table changed by hand? Please report it. `pulsed jobs list "
        "--status waiting` finds them; cancelled and retried, they continue from their stored steps"
    )
    return Finding("waits", Severity.FAIL, detail, advice)


def _cascades(audit: Audit) -> Finding:
    if not audit.untold:
        return Finding(
            "children", Severity.OK, "none is left of a parent that ended without success"
        )
    parents = "job" if audit.untold == 1 else "jobs"
    detail = f"the children of {audit.untold:,} failed or cancelled {parents} are not cancelled"
    advice = "any live worker or server cancels them within a tick: start one, or see its log"
    return Finding("children", Severity.FAIL, detail, advice)


def _plural(number: int) -> str:
    return "job is" if number == 1 else "jobs are"


async def _watchdog(reads: StateReads, audit: Audit) -> Finding:
    now = await reads.now()
    living = live(await reads.workers(), now)
    if audit.last_tick is None:
        return Finding("watchdog", Severity.OK, "no scan yet: no worker has run here")
    age = (now - audit.last_tick).total_seconds()
    if living and age > SILENT_AFTER:
        advice = "see the workers' logs: their upkeep fails, or --tick is long"
        return Finding("watchdog", Severity.FAIL, f"last scan {format_duration(age)} ago", advice)
    return Finding("watchdog", Severity.OK, f"last scan {format_duration(age)} ago")


async def _dead_letters(store: Store, _: StateReads) -> list[Finding]:
    dead = Status.DEAD_LETTERED
    total = (await store.counts(JobFilter(status=(dead,))))[dead]
    older = (await store.prunable({dead: A_DAY}))[dead]
    if not (new := max(0, total - older)):
        return [Finding("dead letters", Severity.OK, f"none within a day, {total:,} in all")]
    jobs = "job was" if new == 1 else "jobs were"
    detail = f"{new:,} {jobs} dead-lettered within a day, {total:,} in all"
    advice = "`pulsed jobs list --status dead` shows them, `pulsed jobs show ID` says why"
    return [Finding("dead letters", Severity.WARN, detail, advice)]


async def _paused(store: Store, reads: StateReads) -> list[Finding]:
    """Find queues and topics that were paused long ago, and perhaps forgotten."""
    now, waiting = await reads.now(), await reads.backlog()
    found = []
    for control in await store.controls.list_page():
        due = sum(each.due for each in waiting if getattr(each, control.scope, "") == control.name)
        age = 0.0
        if control.paused_at is not None:
            age = (now - control.paused_at).total_seconds()
        if due and age > A_DAY:
            what = f"{control.scope} {control.name!r} was paused {format_duration(age)} ago"
            by = f" by {control.paused_by}" if control.paused_by else ""
            advice = f"resume it with `pulsed {control.scope}s resume {shlex.quote(control.name)}`"
            detail = f"{what}{by}, and {counted(due, 'due job')} of it {_verb(due)}"
            found.append(Finding("pauses", Severity.WARN, detail, advice))
    return found or [
        Finding("pauses", Severity.OK, "no job has waited for a day in a paused queue")
    ]


def _verb(number: int) -> str:
    return "waits" if number == 1 else "wait"


async def _backlog(_: Store, reads: StateReads) -> list[Finding]:
    now = await reads.now()
    living = live(await reads.workers(), now)
    waiting = await reads.backlog()
    orphans = [(each, no_worker_for(each.queue, each.topic, living)) for each in waiting]
    found = [_orphaned(each, why, now) for each, why in orphans if why]
    due = sum(each.due for each in waiting)
    more = "at least " if any(each.at_least for each in waiting) else ""
    served = f"{more}{due:,} {_plural(due)} due, each has its worker"
    return found or [Finding("backlog", Severity.OK, served)]


def _orphaned(backlog: Backlog, why: str, now: datetime) -> Finding:
    age = (now - backlog.oldest).total_seconds()
    more = "at least " if backlog.at_least else ""
    jobs = f"{more}{counted(backlog.due, 'due job')} of {backlog.topic!r}"
    level = Severity.FAIL if age > WAITED_TOO_LONG else Severity.WARN
    return Finding("backlog", level, f"{jobs}, the oldest for {format_duration(age)}", why)


async def _history(retention: Retention, store: Store, _: StateReads) -> list[Finding]:
    ages = retention.ages
    if not ages:
        detail = "retention is off: finished jobs stay until you delete them"
        return [Finding("history", Severity.OK, detail)]
    late = await store.prunable({status: age + LATE for status, age in ages.items()})
    kept = described(ages)
    if not (total := sum(late.values())):
        return [
            Finding("history", Severity.OK, f"nothing is kept longer than it should be: {kept}")
        ]
    more = "at least " if late.at_least else ""
    detail = f"{more}{total:,} finished jobs should have been removed long ago: {kept}"
    advice = "live workers remove them, bit by bit; `pulsed jobs prune` does it now"
    return [Finding("history", Severity.WARN, detail, advice)]


CHECKS: Mapping[str, Check] = {
    "clock": _clock,
    "workers": _workers,
    "jobs": _jobs,
    "dead letters": _dead_letters,
    "backlog": _backlog,
    "pauses": _paused,
    "schedules": check_schedules,
}
