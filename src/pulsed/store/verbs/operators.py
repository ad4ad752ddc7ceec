"""What operators do to jobs: cancel, retry, delete, change when and where they run."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from pulsed.model.bulk import BulkAct
from pulsed.model.job import Status
from pulsed.store.sql.statement import Statement, one_column
from pulsed.store.verbs.effects import Effects, effects, wake_waiters
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.keys import without_taken_keys
from pulsed.store.verbs.reads import clock
from pulsed.store.verbs.retention import forget
from pulsed.store.verbs.script import Script, Verb, VerbKind, verb

Answers: TypeAlias = dict[UUID, tuple[bool, Status]]
"""Whether each job was changed, and its status now."""


class Acted(NamedTuple):
    """What an act did."""

    answers: Answers
    queues: Collection[str]
    """With jobs that may be due now."""
    holders: Mapping[UUID, UUID] = MappingProxyType({})
    """Of jobs that were left alone because of their keys: the jobs that hold these."""


@verb(VerbKind.TRANSACTION, short_lock_wait=True)
def cancel(engine: Engine, ids: Sequence[UUID]) -> Script[tuple[dict[UUID, Status], Effects]]:
    """Cancel jobs that are not running, ask running ones to stop; returns the status of each."""
    yield from engine.lock_families(ids)
    ended = yield Statement(engine.operators.cancel, {}, one_column(ids))
    told = yield from effects(engine, ended, locked=True)
    standing = yield Statement(engine.operators.standing, {}, one_column(ids))
    uuid = engine.dialect.uuid
    return {uuid(job_id): Status(status) for job_id, status, *_ in standing}, told


def replay(
    engine: Engine, ids: Sequence[UUID], *, fresh: bool, payload: str | None = None
) -> Verb[Acted]:
    """Send unsuccessful jobs and their failed children back to PENDING, with fresh attempts.

    Failed steps run again; with ``fresh`` all steps do, and stored children are left alone. A job
    whose key another one holds stays as it is. A ``payload`` replaces that of the jobs, but not
    that of their children.
    """
    act = uuid.uuid4()
    params = {"act": act, "fresh": int(fresh)}

    def script() -> Script[Acted]:
        queues: set[str] = set()
        holders: dict[UUID, UUID] = {}

        def back_to_pending(some: list[tuple[Any]]) -> Script[list[tuple[Any]]]:
            free = yield from without_taken_keys(engine, some, holders)
            replayed = yield Statement(engine.operators.replay, params, free)
            queues.update(queue for _, queue in replayed)
            return one_column(job_id for job_id, _ in replayed)

        if payload is not None:
            yield Statement(engine.operators.edit_payload, {"payload": payload}, one_column(ids))
        jobs = yield from back_to_pending(one_column(ids))
        if jobs and fresh:
            yield Statement(engine.checkpoints.forget_steps, {}, jobs)
        while jobs and not fresh:
            yield Statement(engine.checkpoints.forget_failed_steps, {}, jobs)
            yield Statement(engine.checkpoints.reopen_fan_outs, {}, jobs)
            children = yield Statement(engine.families.unsuccessful_children, {}, jobs)
            jobs = yield from back_to_pending(one_column(job_id for (job_id,) in children))
        answers = {}
        standing = yield Statement(engine.operators.standing, {}, one_column(ids))
        for job_id, status, outcome, actor in standing:
            mine = outcome == "REPLAYED" and engine.dialect.uuid(actor) == act
            answers[engine.dialect.uuid(job_id)] = (mine, Status(status))
        return Acted(answers, queues, holders)

    return Verb("replay", VerbKind.TRANSACTION, script, short_lock_wait=True)


@verb(VerbKind.TRANSACTION, short_lock_wait=True)
def expedite(engine: Engine, ids: Sequence[UUID]) -> Script[Acted]:
    """Make jobs due that wait for their time; the answer is whether each is due now."""
    moved = yield Statement(engine.operators.expedite, {}, one_column(ids))
    jobs = one_column(job_id for job_id, _ in moved)
    if jobs:
        yield Statement(engine.checkpoints.end_sleeps, {}, jobs)
    standing = yield Statement(engine.operators.dueness, {}, one_column(ids))
    answers = {
        engine.dialect.uuid(job_id): (bool(is_due), Status(status))
        for job_id, status, is_due in standing
    }
    return Acted(answers, {queue for _, queue in moved})


@verb(VerbKind.TRANSACTION, short_lock_wait=True, name="change_jobs")
def change(engine: Engine, ids: Sequence[UUID], act: BulkAct) -> Script[Acted]:
    """Reschedule, reprioritise or move jobs that have not started.

    The same change again is the same, so a retry answers as the try that it repeats.
    """
    at = act.at
    if act.delay is not None:
        at = (yield from clock(engine)) + timedelta(seconds=act.delay)
    changed = {"at": at, "priority": act.priority, "queue": act.queue}
    moved = yield Statement(engine.operators.change_jobs, changed, one_column(ids))
    standing = yield Statement(engine.operators.standing, {}, one_column(ids))
    to_uuid = engine.dialect.uuid
    done = {to_uuid(job_id) for job_id, _ in moved}
    answers = {
        key: (key in done, Status(status))
        for key, status in ((to_uuid(job_id), status) for job_id, status, *_ in standing)
    }
    return Acted(answers, {queue for _, queue in moved})


def delete(engine: Engine, ids: Sequence[UUID]) -> Verb[Acted]:
    """Remove jobs that are not running and that no other job needs; wake jobs that wait for them.

    A retry remembers the jobs that an earlier try saw: one that is gone since then was removed by
    that try, which was not acknowledged.
    """
    seen: dict[UUID, Status] = {}
    to_uuid = engine.dialect.uuid

    def script() -> Script[Acted]:
        standing = yield Statement(engine.operators.standing, {}, one_column(ids))
        there = {to_uuid(job_id): Status(status) for job_id, status, *_ in standing}
        seen.update(there)
        gone = yield Statement(engine.operators.delete, {}, one_column(ids))
        yield from forget(engine, [job_id for job_id, _ in gone])
        woken = yield from wake_waiters(engine, [job_id for job_id, watched in gone if watched])
        left = there.keys() - {to_uuid(job_id) for job_id, _ in gone}
        answers = {job_id: (job_id not in left, status) for job_id, status in seen.items()}
        return Acted(answers, woken)

    return Verb("delete", VerbKind.TRANSACTION, script, short_lock_wait=True)
