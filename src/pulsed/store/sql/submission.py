"""The insertion of new jobs."""

from __future__ import annotations

from functools import lru_cache

from pulsed.model.keys import UNTIL_END, UNTIL_START
from pulsed.store.sql.columns import EXPIRY, NEW_JOB, NEW_JSON, NOT_STORED, START
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
        self.submit_untried = self.submit
        """For a job whose id nobody can have used before; an engine may have a faster form."""

    def _submit(self, shared: tuple[str, ...], own: tuple[str, ...]) -> Sql:
        """Return the insertion of jobs, which answers with the number of new ones."""
        return self.dialect.sql(self.insertion(shared, own), batch_of(own), counted=True)

    def insertion(self, shared: tuple[str, ...], own: tuple[str, ...]) -> str:
        """Return the text of an insertion; an id that exists is the same job submitted again."""
        return f"{self.first_insertion(shared, own)} ON CONFLICT DO NOTHING"

    def first_insertion(self, shared: tuple[str, ...], own: tuple[str, ...]) -> str:
        """Return the text of an insertion, naming only the columns that one of its jobs fills.

        ``shared`` columns have one value for all jobs and are parameters; ``own`` columns differ
        and go in as a batch. An id that exists is an error.
        """
        d = self.dialect

        def given(name: str) -> str:
            value = f"r.{name}" if name in own else f":{name}::{NEW_JOB[name]}"
            return f"{value}::json" if name in NEW_JSON else value

        names = [name for name in NEW_JOB if name in shared or name in own]
        values = {name: given(name) for name in names if name not in NOT_STORED}
        values["status"] = "'PENDING'"
        values["submitted_at"] = d.now
        values["next_run_at"] = start(d, {name: given(name) for name in START if name in names})
        if "expires" in names:
            given_expiry = {name: given(name) for name in EXPIRY if name in names}
            values["expires_at"] = expiry(d, values["next_run_at"], given_expiry)
        if "key" in names:
            values["key_held"] = f"CASE WHEN {given('key')} IS NOT NULL THEN {d.true} END"
        if "key_for" in names:
            values["key_until"] = key_until(d, given("key_for"))
        listed = ", ".join(values.values())
        source = d.inserted(listed, batch_of(own)) if own else f"VALUES ({listed})"
        return f"INSERT INTO {d.jobs} ({', '.join(values)}) {source}"


def start(d: Dialect, given: dict[str, str]) -> str:
    """Return when a new job may start: at its instant, after its delay, or now."""
    if not given:
        return d.now
    after = f"{d.now} + {d.seconds(given['delay'])}" if "delay" in given else d.now
    after = f"coalesce({given['at']}, {after})" if "at" in given else after
    return f"{d.greatest}({d.now}, {after})"


def expiry(d: Dialect, start: str, given: dict[str, str]) -> str:
    """Return when a new job expires: at its instant, or so long after it may start."""
    after = f"{start} + {d.seconds(given['expires'])}"
    return f"coalesce({given['expires_at']}, {after})" if "expires_at" in given else after


def key_until(d: Dialect, key_for: str) -> str:
    """Return until when a new job holds its key, if that is for a period."""
    period = f"nullif(nullif({key_for}, '{UNTIL_START}'), '{UNTIL_END}')::float8"
    return f"{d.now} + {d.seconds(period)}"


def batch_of(columns: tuple[str, ...]) -> str:
    """Return the declaration of a batch of new jobs that differ in these columns."""
    return ", ".join(f"{name} {NEW_JOB[name]}" for name in columns)
