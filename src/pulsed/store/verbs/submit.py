"""Submitting new jobs."""

from __future__ import annotations

from collections.abc import Sequence

from pulsed.model.job import NewJob
from pulsed.store.sql.insertion import insertion
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, Verb, VerbKind


def submit(engine: Engine, jobs: Sequence[NewJob]) -> Verb[int]:
    """Insert jobs, leaving alone those whose id exists."""

    def script() -> Script[int]:
        [(count,)] = yield insertion(engine.submission, jobs)
        return int(count)

    return Verb("submit", VerbKind.SINGLE, script)
