"""Submitting new jobs."""

from __future__ import annotations

from collections.abc import Container, Sequence

from msgspec.structs import replace

from pulsed.model.job import NewJob
from pulsed.model.job_batch import FreshJob, kinds_of
from pulsed.model.keys import OnDuplicate
from pulsed.store.results import ONE_NEW, Submitted
from pulsed.store.sql.insertion import insertion
from pulsed.store.sql.statement import Statement, one_column
from pulsed.store.verbs import keys
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.keys import Stored
from pulsed.store.verbs.script import Script, Verb, VerbKind


def submit(
    engine: Engine, jobs: Sequence[NewJob], *, lock_wait: float | None = None
) -> Verb[Submitted]:
    """Insert jobs, leaving alone those whose id exists, or whose key another job holds.

    ``lock_wait`` bounds the seconds for which it waits for the transactions of others.

    A retry may find what the attempt before it has stored. So the verb remembers which jobs its
    attempts may have stored: of these it cannot tell whether they existed before.
    """
    has_limit = lock_wait is not None
    if len(jobs) == 1 and jobs[0].key is None and not jobs[0].tags and not has_limit:
        return _submit_one(engine, jobs)
    every = range(len(jobs))
    maybe_stored: Container[int] = ()
    is_plain = _are_plain(jobs)
    is_single = not has_limit and (is_plain or _is_alone(jobs))
    confirms_itself = is_single and not is_plain

    def script() -> Script[Submitted]:
        nonlocal maybe_stored
        earlier, maybe_stored = maybe_stored, every  # stays so if no answer comes
        if is_plain:
            found = yield from insert(engine, jobs)
            if not found:
                return Submitted(len(jobs))
            stored = Stored(found)
        else:
            stored = yield from _store(engine, jobs)
            if confirms_itself and (stored.found or stored.holders):
                yield from engine.confirm()
        unknown = frozenset(position for position in stored.found if position in earlier)
        existing = stored.found - unknown
        if existing:  # seen before this attempt could store them
            maybe_stored = frozenset(every) - existing
        return Submitted(len(jobs), existing, unknown, stored.holders, stored.replaced)

    kind = VerbKind.SINGLE if is_single else VerbKind.TRANSACTION
    return Verb("submit", kind, script, lock_wait=lock_wait, confirms_itself=confirms_itself)


def _submit_one(engine: Engine, jobs: Sequence[NewJob]) -> Verb[Submitted]:
    """Insert a job without a key and without tags, as most submits are, by one statement."""
    maybe_stored = False

    def script() -> Script[Submitted]:
        nonlocal maybe_stored
        earlier, maybe_stored = maybe_stored, True
        form = engine.submission.submit
        if type(jobs) is FreshJob and jobs.is_untried:
            jobs.is_untried = False  # before it is sent: a retry may find what was sent
            form = engine.submission.submit_untried
        [(new,)] = yield insertion(form, jobs)
        if new:
            return ONE_NEW
        if earlier:
            return Submitted(1, unknown=_ALONE)
        maybe_stored = False  # seen before this attempt could store it
        return Submitted(1, existing=_ALONE)

    return Verb("submit", VerbKind.SINGLE, script)


def store_fired(engine: Engine, jobs: Sequence[NewJob]) -> Script[list[NewJob]]:
    """Store the jobs of schedules; returns those whose keys no other job holds."""
    stored = yield from _store(engine, jobs)
    return [job for position, job in enumerate(jobs) if position not in stored.holders]


def store_children(engine: Engine, jobs: Sequence[NewJob]) -> Script[int]:
    """Store the children of a run; returns how many are new.

    Their parent waits for them, and not for another job that holds one of their keys.
    """
    own = [job if job.key is None else replace(job, on_duplicate=OnDuplicate.RAISE) for job in jobs]
    stored = yield from _store(engine, own)
    return len(jobs) - len(stored.found)


def _store(engine: Engine, jobs: Sequence[NewJob]) -> Script[Stored]:
    if has_a_key(jobs):
        stored = yield from keys.store(engine, jobs, insert)
    else:
        stored = Stored((yield from insert(engine, jobs)))
    if stored.replaced or has_a_tag(jobs):
        yield from _write_tags(engine, jobs, stored)
    return stored


def _write_tags(engine: Engine, jobs: Sequence[NewJob], stored: Stored) -> Script[None]:
    """Write the tags of new jobs, and of those whose options were replaced."""
    known = stored.found | stored.holders.keys()
    tags = {job.id: job.tags for place, job in enumerate(jobs) if place not in known}
    replaced = {stored.holders[place]: jobs[place].tags for place in sorted(stored.replaced)}
    if replaced:
        yield Statement(engine.tags.forget_tags, {}, one_column(replaced))
    rows = [(job_id, tag) for job_id, its in (tags | replaced).items() for tag in its]
    if rows:
        yield Statement(engine.tags.insert_tags, {}, rows)


def _are_plain(jobs: Sequence[NewJob]) -> bool:
    """Whether none of the jobs has a key or a tag: a statement stores them."""
    for job in kinds_of(jobs):  # noqa: SIM110 - most jobs are alone, and need no generator
        if job.key is not None or job.tags:
            return False
    return True


def _is_alone(jobs: Sequence[NewJob]) -> bool:
    """Whether it is a job with which nothing else is written, but perhaps its key released.

    It takes its key or it does not, by one statement; what is read or released then is true and
    lapsed without it, too.
    """
    return len(jobs) == 1 and not jobs[0].tags and jobs[0].on_duplicate != OnDuplicate.REPLACE


def has_a_key(jobs: Sequence[NewJob]) -> bool:
    """Whether one of the jobs has a key."""
    return any(job.key is not None for job in kinds_of(jobs))


def has_a_tag(jobs: Sequence[NewJob]) -> bool:
    """Whether one of the jobs has a tag."""
    return any(job.tags for job in kinds_of(jobs))


def insert(engine: Engine, jobs: Sequence[NewJob]) -> Script[frozenset[int]]:
    """Insert jobs; returns the positions of those that were not."""
    if len(jobs) == 1:
        [(count,)] = yield insertion(engine.submission.submit, jobs)
        return _NONE if count else _ALONE
    stored = yield from engine.insert(jobs)
    if stored is None:
        return _NONE
    new = set(stored)
    found = set[int]()
    for position, job in enumerate(jobs):
        if job.id in new:
            new.remove(job.id)  # the same id further on is found, too
        else:
            found.add(position)
    return frozenset(found)


_NONE = frozenset[int]()
_ALONE = frozenset([0])
