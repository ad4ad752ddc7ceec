"""What the end of a job does to others: parents and waiters wake, children are cancelled.

It is part of every transaction that ends jobs; ``sql/waiting.py`` explains the order of its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pulsed.model.job import Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.store.results import Accepted
from pulsed.store.sql.statement import Row, Statement, one_column
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script


class Effects(NamedTuple):
    """What has to happen after the transaction has committed: notifications and a cascade."""

    queues: frozenset[str] = frozenset()
    """Queues with jobs that were woken, or are due again: their workers are notified."""
    cascades: bool = False
    """There are children that are still to be cancelled."""


class Settled(NamedTuple):
    """The leases whose reports were accepted, and the effects on other jobs."""

    accepted: Accepted
    effects: Effects
    are_all: bool = False
    """All reports were accepted, and ``accepted`` is left empty: who made the reports has the
    leases, and needs no transaction to make a set of them."""


def effects(engine: Engine, ended: Iterable[Row], *, locked: bool = False) -> Script[Effects]:
    """Wake the parents and waiters of ended jobs, and mark those with children to cancel.

    Each row begins with ENDED_COLUMNS. ``locked`` says that the parents are locked already.
    """
    over = [
        (job_id, status, parent_id, watched)
        for job_id, status, parent_id, watched, *_ in ended
        if status in TERMINAL
    ]
    marked: Any = ()
    if unsuccessful := one_column(
        job_id for job_id, status, *_ in over if status != Status.SUCCEEDED
    ):
        marked = yield Statement(engine.families.mark_cascades, {}, unsuccessful)
    parents = {parent_id for _, _, parent_id, _ in over if parent_id is not None}
    waiters = yield from _waiters(engine, [job_id for job_id, _, _, watched in over if watched])
    woken = yield from wake(engine, parents | waiters, locked=locked and not waiters)
    return Effects(woken, bool(marked))


def run_effects(engine: Engine, ended: Sequence[Row], *, locked: bool = False) -> Script[Effects]:
    """Do what ``effects`` does, for ended runs: the last column of each is a queue or None.

    That is the queue of a job that is due again at once: it must not wait for a poll.
    """
    told = yield from effects(engine, ended, locked=locked)
    again = frozenset(queue for *_, queue in ended if queue is not None)
    return told._replace(queues=told.queues | again)


def wake_waiters(engine: Engine, watched: Sequence[Any]) -> Script[frozenset[str]]:
    """Wake the jobs that wait for deleted jobs; returns their queues."""
    return (yield from wake(engine, (yield from _waiters(engine, watched))))


def _waiters(engine: Engine, watched: Sequence[Any]) -> Script[set[Any]]:
    if not watched:
        return set()
    found = yield Statement(engine.waiting.waiters, {}, one_column(watched))
    return {waiter for waiter, _ in found}


def wake(engine: Engine, ids: Iterable[Any], *, locked: bool = False) -> Script[frozenset[str]]:
    """Wake those of these jobs whose wait is satisfied; returns their queues."""
    jobs = one_column(ids)
    if not jobs:
        return frozenset()
    if not locked:
        yield from engine.lock(job_id for (job_id,) in jobs)
    woken = yield Statement(engine.waiting.wake, {}, jobs)
    return frozenset(queue for (queue,) in woken)
