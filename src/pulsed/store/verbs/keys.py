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


def store(engine: Engine, jobs: Sequence[NewJob], insert: Insert) -> Script[Stored]:
    """Store jobs, in rounds until each is stored, or its conflict is resolved.

    They are inserted in the order of keys, as by every caller: two batches that share keys wait for
    one another and do not deadlock. Of two jobs with the same key the first is kept.
    """
    left = sorted(range(len(jobs)), key=lambda n: (jobs[n].topic, jobs[n].key or ""))
    changing = [(job.topic, job.key) for job in jobs if job.key and _may_change_holder(job)]
    if len(changing) > 1:  # holders are changed after others were inserted: not in that order
        yield from engine.lock_keys(changing)
    found, holders, replaced = set[int](), dict[int, UUID](), set[int]()
    for _ in range(MOST_ROUNDS):
        missing = yield from insert(engine, [jobs[n] for n in left])
        left = [n for place, n in enumerate(left) if place in missing]
        if left:
            stored = set(range(len(jobs))) - {*left} - found - holders.keys()
            done = yield from _resolve(engine, jobs, left, stored)
            found |= done.found
            holders |= done.holders
            replaced |= done.replaced
            left = [n for n in left if n not in found and n not in holders]
        if not left:
            return Stored(frozenset(found), holders, frozenset(replaced))
    job = jobs[left[0]]
    raise StorageBusy(
        f"The key {job.key!r} of {job.topic!r} changed hands {MOST_ROUNDS} times while a job with "
        "it was being stored; nothing was stored. Try again."
    )


def _resolve(
    engine: Engine, jobs: Sequence[NewJob], left: list[int], stored: set[int]
) -> Script[Stored]:
    """Decide about jobs that were not inserted; one that the answer leaves out may be, now.

    ``stored`` are positions that were inserted before. If a job is refused, they are taken back:
    in a caller's own transaction, nothing else would do that.
    """
    conflicts = yield from _conflicts(engine, jobs, left)
    of_keys = [each for each in conflicts if not each.has_its_id and each.holder]
    lapsed = one_column(each.holder for each in of_keys if each.has_lapsed)
    if lapsed:
        yield Statement(engine.keys.release_lapsed, {}, lapsed)
    standing = [each for each in of_keys if not each.has_lapsed]
    for each in standing:
        if _is_refused(jobs[each.position], each):
            if stored:
                new = one_column(jobs[n].id for n in stored)
                yield Statement(engine.keys.withdraw, {}, new)
            raise _duplicate(jobs[each.position], each)
    replaced = yield from _replace(engine, jobs, standing)
    holders = {
        each.position: each.holder
        for each in standing
        if each.holder and (each.position in replaced or not _replaces(jobs[each.position]))
    }
    found = frozenset(each.position for each in conflicts if each.has_its_id)
    return Stored(found, holders, frozenset(replaced))


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
) -> Script[set[int]]:
    """Replace holders that have not started; returns the positions of jobs that did.

    Of several jobs for one holder the last one counts.
    """
    wanted = {each.holder: each for each in conflicts if _replaces(jobs[each.position])}
    if not wanted:
        return set()
    new = [each for each in wanted.values() if each.is_unstarted]
    done = {each.holder for each in wanted.values() if not each.is_unstarted}  # by an earlier try
    if new:
        rows = _replacements([(each.holder, jobs[each.position]) for each in new])
        changed = yield Statement(engine.keys.replace, {}, rows)
        done |= {engine.dialect.uuid(job_id) for (job_id,) in changed}
    return {
        each.position
        for each in conflicts
        if each.holder in done and _replaces(jobs[each.position])
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
