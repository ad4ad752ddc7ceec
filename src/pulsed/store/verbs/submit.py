"""Submitting new jobs."""

from __future__ import annotations

from collections.abc import Sequence

from pulsed.model.job import NewJob
from pulsed.store.sql.insertion import insertion
from pulsed.store.sql.jobs import Statements
from pulsed.store.verbs.script import Kind, Script, Verb


def submit(s: Statements, jobs: Sequence[NewJob]) -> Verb[int]:
    """Insert jobs, leaving alone those whose id exists."""

    def script() -> Script[int]:
        [(count,)] = yield insertion(s, jobs)
        return int(count)

    return Verb("submit", Kind.SINGLE, script)
