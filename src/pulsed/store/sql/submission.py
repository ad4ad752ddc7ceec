"""The insertion of new jobs."""

from __future__ import annotations

from functools import lru_cache

from pulsed.store.sql.columns import NEW_JOB, NEW_JSON, START
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.prepared import StatementGroup
from pulsed.store.sql.statement import Sql

MOST_FORMS = 128
"""Forms of the insertion that are cached; a program uses few of the possible ones."""


class SubmitStatements(StatementGroup):
    """New jobs, in the form that names only the columns they fill."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.submit = lru_cache(MOST_FORMS)(self._submit)

    def _submit(self, shared: tuple[str, ...], own: tuple[str, ...]) -> Sql:
        """Return the insertion of jobs, which answers with the number of new ones."""
        return self.dialect.sql(self.insertion(shared, own), batch_of(own), counted=True)

    def insertion(self, shared: tuple[str, ...], own: tuple[str, ...]) -> str:
        """Return the text of an insertion, naming only the columns that one of its jobs fills.

        ``shared`` columns have one value for all jobs and are parameters; ``own`` columns differ
        and go in as a batch. An id that exists is the same job submitted again.
        """
        d = self.dialect

        def given(name: str) -> str:
            value = f"r.{name}" if name in own else f":{name}::{NEW_JOB[name]}"
            return f"{value}::json" if name in NEW_JSON else value

        names = [name for name in NEW_JOB if name in shared or name in own]
        values = {name: given(name) for name in names if name not in START}
        values["status"] = "'PENDING'"
        values["submitted_at"] = d.now
        values["next_run_at"] = self._start({name: given(name) for name in START if name in names})
        listed = ", ".join(values.values())
        source = d.inserted(listed, batch_of(own)) if own else f"VALUES ({listed})"
        return f"INSERT INTO {d.jobs} ({', '.join(values)}) {source} ON CONFLICT DO NOTHING"

    def _start(self, given: dict[str, str]) -> str:
        """Return when a new job may start: at its instant, after its delay, or now."""
        d = self.dialect
        if not given:
            return d.now
        start = f"{d.now} + {d.seconds(given['delay'])}" if "delay" in given else d.now
        start = f"coalesce({given['at']}, {start})" if "at" in given else start
        return f"{d.greatest}({d.now}, {start})"


def batch_of(columns: tuple[str, ...]) -> str:
    """Return the declaration of a batch of new jobs that differ in these columns."""
    return ", ".join(f"{name} {NEW_JOB[name]}" for name in columns)
