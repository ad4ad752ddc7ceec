"""Storing jobs that have keys, and replaying them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

from pulsed.errors import DuplicateKey, StorageBusy
from pulsed.model.job import NewJob
from pulsed.model.keys import UNTIL_END, UNTIL_START, OnDuplicate
from pulsed.store.sql.insertion import stored_columns
from pulsed.store.sql.keys import REPLACED
from pulsed.store.sql.statement import Statement, one_column
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script

MOST_ROUNDS = 20
"""Holders that end, or whose period is over, while their keys are wanted: so often in a row."""

Key: TypeAlias = tuple[str, str]
"""A topic and a key."""

Insert: TypeAlias = Callable[[Engine, Sequence[NewJob]], Script[frozenset[int]]]
"""Inserts jobs; returns the positions of those that were not."""


class Stored(NamedTuple):
    """What became of jobs of which some have keys, by their positions; the others are new."""

    found: frozenset[int]
    """Their ids were in use."""
    holders: Mapping[int, UUID] = MappingProxyType({})
    """Other jobs hold their keys."""
    replaced: frozenset[int] = frozenset()


class Conflict(NamedTuple):
    """Why a job was not stored."""

    position: int
    has_its_id: bool
    """Its id is in use."""
    holder: UUID | None
    has_lapsed: bool
    """The holder's period is over."""
    is_unstarted: bool
    replaced_by: UUID | None
    """The job that replaced the holder's arguments last."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended since the insertion: nothing is in the job's way now."""
        return not self.has_its_id and self.holder is None


class _Batch:
    """Jobs that are being stored, and what is known of them, by their positions."""

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.jobs = jobs
        self.has_several_keys = len({(job.topic, job.key) for job in jobs if job.key}) > 1
        self._in_order = sorted(range(len(jobs)), key=lambda n: (jobs[n].topic, jobs[n].key or ""))
        self.stored = set[int]()
        self.found = set[int]()
        self.holders = dict[int, UUID]()
        self.replaced = set[int]()

    @property
    def left(self) -> list[int]:
        """The jobs of which nothing is known, in the order in which every caller inserts."""
        known = self.stored | self.found | self.holders.keys()
        return [n for n in self._in_order if n not in known]

    def begin_again(self) -> None:
        """Forget what was taken back, and what refers to it; the rest stays decided."""
        taken_back = {self.jobs[n].id for n in self.stored}
        self.found = {n for n in self.found if self.jobs[n].id not in taken_back}
        self.holders = {
            n: holder
            for n, holder in self.holders.items()
            if n not in self.replaced and holder not in taken_back
        }
        self.stored.clear()
        self.replaced.clear()

    def result(self) -> Stored:
        return Stored(frozenset(self.found), self.holders, frozenset(self.replaced))


def store(engine: Engine, jobs: Sequence[NewJob], insert: Insert) -> Script[Stored]:
    """Store jobs, in rounds until each is stored, or its conflict is resolved.

    They are inserted in the order of keys, as by every caller: two batches that share keys wait for
    one another and do not deadlock. Of two jobs with the same key the first is kept.
    """
    batch = _Batch(jobs)
    changing = [(job.topic, job.key) for job in jobs if job.key and _may_change_holder(job)]
    if changing and (len(changing) > 1 or batch.has_several_keys):
        # Holders are changed after others were inserted: not in that order.
        yield from engine.lock_keys(changing)
    if not batch.has_several_keys:
        return (yield from _in_rounds(engine, batch, insert))
    yield from engine.set_savepoint()
    stored = yield from _in_rounds(engine, batch, insert)
    yield from engine.release_savepoint()
    return stored


def _in_rounds(engine: Engine, batch: _Batch, insert: Insert) -> Script[Stored]:
    jobs = batch.jobs
    for _ in range(MOST_ROUNDS):
        left = batch.left
        missing = yield from insert(engine, [jobs[n] for n in left])
        batch.stored.update(n for place, n in enumerate(left) if place not in missing)
        if missing:
            yield from _resolve(engine, batch)
        if not batch.left:
            return batch.result()
    job = jobs[batch.left[0]]
    yield from _take_back(engine, batch)
    raise StorageBusy(
        f"The key {job.key!r} of {job.topic!r} changed hands {MOST_ROUNDS} times while a job with "
        "it was being stored; nothing was stored. Try again."
    )


def _resolve(engine: Engine, batch: _Batch) -> Script[None]:
    """Decide about jobs that were not inserted; those that it leaves undecided may be, now."""
    jobs = batch.jobs
    conflicts = yield from _conflicts(engine, jobs, batch.left)
    batch.found.update(each.position for each in conflicts if each.has_its_id)
    of_keys = [each for each in conflicts if not each.has_its_id and each.holder]
    standing = [each for each in of_keys if not each.has_lapsed]
    for each in standing:
        if _is_refused(jobs[each.position], each):
            yield from _take_back(engine, batch)
            raise _duplicate(jobs[each.position], each)
        if each.holder and not _replaces(jobs[each.position]):
            batch.holders[each.position] = each.holder
    # To insert a freed key now would be out of order: who took it may wait for this batch.
    is_late = batch.has_several_keys and any(each.is_over for each in conflicts)
    if is_late and (yield from engine.return_to_savepoint()):
        batch.begin_again()
        return
    lapsed = one_column(each.holder for each in of_keys if each.has_lapsed)
    if lapsed:
        yield Statement(engine.keys.release_lapsed, {}, lapsed)
    if lapsed or any(each.is_over for each in conflicts):
        return  # a job that is inserted next may be refused: holders are replaced last
    replaced = yield from _replace(engine, jobs, standing)
    batch.holders.update(replaced)
    batch.replaced.update(replaced)


def _take_back(engine: Engine, batch: _Batch) -> Script[None]:
    """Undo what was done for a batch of which a job is refused.

    In a caller's own transaction, nothing else would do that.
    """
    if batch.has_several_keys and (yield from engine.return_to_savepoint()):
        yield from engine.release_savepoint()
    elif batch.stored:
        new = one_column(batch.jobs[n].id for n in batch.stored)
        yield Statement(engine.keys.withdraw, {}, new)


def _conflicts(engine: Engine, jobs: Sequence[NewJob], left: list[int]) -> Script[list[Conflict]]:
    wanted = [(n, jobs[n].id, jobs[n].topic, jobs[n].key) for n in left]
    uuid = engine.dialect.uuid
    return [
        Conflict(
            position,
            bool(has_its_id),
            None if holder is None else uuid(holder),
            bool(has_lapsed),
            bool(is_unstarted),
            None if replaced_by is None else uuid(replaced_by),
        )
        for position, has_its_id, holder, has_lapsed, is_unstarted, replaced_by in (
            yield Statement(engine.keys.conflicts, {}, wanted)
        )
    ]


def _replaces(job: NewJob) -> bool:
    return job.on_duplicate == OnDuplicate.REPLACE


def _may_change_holder(job: NewJob) -> bool:
    return _replaces(job) or job.key_for not in (None, UNTIL_START, UNTIL_END)


def _is_refused(job: NewJob, conflict: Conflict) -> bool:
    if job.on_duplicate == OnDuplicate.RAISE:
        return True
    return _replaces(job) and not conflict.is_unstarted and conflict.replaced_by != job.id


def _replace(
    engine: Engine, jobs: Sequence[NewJob], conflicts: Iterable[Conflict]
) -> Script[dict[int, UUID]]:
    """Replace holders that have not started; returns those that were, by the jobs' positions.

    Of several jobs for one holder the last one counts.
    """
    wanted = {each.holder: each for each in conflicts if _replaces(jobs[each.position])}
    if not wanted:
        return {}
    new = [each for each in wanted.values() if each.is_unstarted]
    done = {each.holder for each in wanted.values() if not each.is_unstarted}  # by an earlier try
    if new:
        rows = _replacements([(each.holder, jobs[each.position]) for each in new])
        changed = yield Statement(engine.keys.replace, {}, rows)
        done |= {engine.dialect.uuid(job_id) for (job_id,) in changed}
    return {
        each.position: each.holder
        for each in conflicts
        if each.holder in done and each.holder and _replaces(jobs[each.position])
    }


def _replacements(pairs: Sequence[tuple[UUID | None, NewJob]]) -> list[tuple[Any, ...]]:
    columns = stored_columns([job for _, job in pairs])
    values = zip(*(columns[name] for name in REPLACED), strict=True)
    return [(holder, job.id, *row) for (holder, job), row in zip(pairs, values, strict=True)]


def _duplicate(job: NewJob, conflict: Conflict) -> DuplicateKey:
    assert conflict.holder is not None
    held = f"Job {conflict.holder} of {job.topic!r} holds the key {job.key!r}"
    if _replaces(job):
        told = f"{held} and has started, so its arguments can no longer be replaced."
        hint = "With key_for='start', which is the default there, it would be a job of its own."
    else:
        told = f"{held}, so no other job with it was stored."
        hint = "Wait for that job or cancel it; with on_duplicate='return' you get it as your own."
    return DuplicateKey(f"{told} {hint}", job_id=conflict.holder)


# -- replaying ------------------------------------------------------------------------------------


def without_taken_keys(
    engine: Engine, jobs: list[tuple[Any]], holders: dict[UUID, UUID]
) -> Script[list[tuple[Any]]]:
    """Return the jobs that can be replayed: those without a key, or whose key is free.

    Of several that need the same key, the first one gets it. ``holders`` gets the jobs that cannot,
    each with the one that holds its key.
    """
    to_uuid = engine.dialect.uuid
    taken = dict[Key, UUID]()
    refused = set[UUID]()
    for job_id, topic, key, holder in (yield Statement(engine.keys.replayed_keys, {}, jobs)):
        its_holder = taken.get((topic, key)) if holder is None else to_uuid(holder)
        if its_holder is None:
            taken[topic, key] = to_uuid(job_id)
        else:
            refused.add(to_uuid(job_id))
            holders[to_uuid(job_id)] = its_holder
    if not refused:
        return jobs
    ids = [job_id if isinstance(job_id, UUID) else to_uuid(job_id) for (job_id,) in jobs]
    return one_column(job_id for job_id in ids if job_id not in refused)
