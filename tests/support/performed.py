"""What a store was asked to do: its transactions and their statements, to be counted.

How much work something is can be counted on any machine, however busy; how long it takes cannot.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import structs

from pulsed.store.sql.statement import Rows, Sql, Statement
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.verbs.script import Script, Verb


class Performed:
    """Remembers every verb that a store runs from now on, and what its statements were."""

    def __init__(self, store: SqlStore) -> None:
        self.verbs: Counter[str] = Counter()
        self.statements: Counter[str] = Counter()
        """How many, by the verb they belong to."""
        self.texts: set[Sql] = set()
        """Each statement once."""
        self._perform = store.perform
        setattr(store, "perform", self._remembering)  # noqa: B010 - an instance's own method

    async def _remembering(self, verb: Verb[Any]) -> Any:
        self.verbs[verb.name] += 1
        script = verb.script
        watched = structs.replace(verb, script=lambda: self._watch(verb.name, script()))
        return await self._perform(watched)

    def _watch(self, name: str, script: Script[Any]) -> Script[Any]:
        rows: Rows | None = None
        while True:
            try:
                statement: Statement = next(script) if rows is None else script.send(rows)
            except StopIteration as finished:
                return finished.value
            self.statements[name] += 1
            self.texts.add(statement.sql)
            rows = yield statement
