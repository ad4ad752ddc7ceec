"""What operators do to jobs: cancel, retry, delete."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from pulsed.model.job import Status
from pulsed.store.sql.statement import Statement, one_column
from pulsed.store.verbs.effects import Effects, effects, wake_waiters
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.retention import forget
from pulsed.store.verbs.script import Script, Verb, VerbKind, verb

T = TypeVar("T")

Answers: TypeAlias = dict[UUID, tuple[bool, Status]]
"""Whether each job was changed, and its status now."""


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
) -> Verb[tuple[Answers, Collection[str]]]:
    """Send unsuccessful jobs and their failed children back to PENDING, with fresh attempts.

    Failed steps run again; with ``fresh`` all steps do, and stored children are left alone. Returns
    whether this call replayed each job, its status, and the queues with jobs due again. A
    ``payload`` replaces that of the jobs, but not that of their children.
    """
    act = uuid.uuid4()
    params = {"act": act, "fresh": int(fresh)}

    def script() -> Script[tuple[Answers, Collection[str]]]:
        queues: set[str] = set()

        def back_to_pending(some: list[tuple[Any]]) -> Script[list[tuple[Any]]]:
            replayed = yield Statement(engine.operators.replay, params, some)
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
        return answers, queues

    return Verb("replay", VerbKind.TRANSACTION, script, short_lock_wait=True)


@verb(VerbKind.TRANSACTION, short_lock_wait=True)
def expedite(engine: Engine, ids: Sequence[UUID]) -> Script[tuple[Answers, Collection[str]]]:
    """Make jobs due that wait for their time.

    Returns whether each job is due now, its status, and the queues of those that were not before.
    """
    moved = yield Statement(engine.operators.expedite, {}, one_column(ids))
    jobs = one_column(job_id for job_id, _ in moved)
    if jobs:
        yield Statement(engine.checkpoints.end_sleeps, {}, jobs)
    standing = yield Statement(engine.operators.dueness, {}, one_column(ids))
    answers = {
        engine.dialect.uuid(job_id): (bool(is_due), Status(status))
        for job_id, status, is_due in standing
    }
    return answers, {queue for _, queue in moved}


def delete(engine: Engine, ids: Sequence[UUID]) -> Verb[tuple[Answers, Collection[str]]]:
    """Remove jobs that are not running and that no other job needs; wake jobs that wait for them.

    A retry remembers the jobs that an earlier try saw: one that is gone since then was removed by
    that try, which was not acknowledged.
    """
    seen: dict[UUID, Status] = {}
    to_uuid = engine.dialect.uuid

    def script() -> Script[tuple[Answers, Collection[str]]]:
        standing = yield Statement(engine.operators.standing, {}, one_column(ids))
        there = {to_uuid(job_id): Status(status) for job_id, status, *_ in standing}
        seen.update(there)
        gone = yield Statement(engine.operators.delete, {}, one_column(ids))
        yield from forget(engine, [job_id for job_id, _ in gone])
        woken = yield from wake_waiters(engine, [job_id for job_id, watched in gone if watched])
        left = there.keys() - {to_uuid(job_id) for job_id, _ in gone}
        answers = {job_id: (job_id not in left, status) for job_id, status in seen.items()}
        return answers, woken

    return Verb("delete", VerbKind.TRANSACTION, script, short_lock_wait=True)
