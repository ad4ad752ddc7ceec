"""Submitting new jobs."""

from __future__ import annotations

from collections.abc import Container, Sequence

from pulsed.model.job import NewJob
from pulsed.store.results import Submitted
from pulsed.store.sql.insertion import insertion
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, Verb, VerbKind


def submit(engine: Engine, jobs: Sequence[NewJob]) -> Verb[Submitted]:
    """Insert jobs, leaving alone those whose id exists.

    A retry may find what the attempt before it has stored. So the verb remembers which jobs its
    attempts may have stored: of these it cannot tell whether they existed before.
    """
    every = range(len(jobs))
    maybe_stored: Container[int] = ()

    def script() -> Script[Submitted]:
        nonlocal maybe_stored
        earlier, maybe_stored = maybe_stored, every  # stays so if no answer comes
        found = yield from _found(engine, jobs)
        if not found:
            return Submitted(len(jobs))
        unknown = frozenset(position for position in found if position in earlier)
        existing = found - unknown
        if existing:  # seen before this attempt could store them
            maybe_stored = frozenset(every) - existing
        return Submitted(len(jobs), existing, unknown)

    return Verb("submit", VerbKind.SINGLE, script)


def _found(engine: Engine, jobs: Sequence[NewJob]) -> Script[frozenset[int]]:
    """Insert jobs; returns the positions of those that were found instead."""
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
