"""A database that goes away at a chosen moment."""

from typing import Any, Literal

from pulsed.errors import TransientStorageError
from pulsed.store.sql_store import SqlStore
from pulsed.store.verbs.script import Verb

When = Literal["before", "after"]


class Fault:
    """Breaks one verb of a store, so many times: before it began, or after it was committed."""

    def __init__(self, store: SqlStore, verb: str, when: When, times: int = 1) -> None:
        self.hits = 0
        self._verb = verb
        self._when = when
        self._times = times
        self._perform = store.perform
        setattr(store, "perform", self._broken)  # noqa: B010 - an instance's own method

    async def _broken(self, verb: Verb[Any]) -> Any:
        if verb.name != self._verb or self.hits >= self._times:
            return await self._perform(verb)
        self.hits += 1
        if self._when == "after":
            await self._perform(verb)
        raise TransientStorageError(f"the connection was lost {self._when} the commit")
