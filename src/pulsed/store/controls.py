"""The store's interface for controls: what governs queues, topics and limits at run time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import datetime

from pulsed.model.audit import Operator
from pulsed.model.control import Control, ControlKey, ControlScope, Numbers
from pulsed.model.limit import LimitUse

CONTROL_PAGE = 1_000
"""Controls in one page of a listing."""


class ControlStore(ABC):
    """Where controls live. What nothing governs has a control, too: a neutral one."""

    @abstractmethod
    async def get(self, scope: ControlScope, name: str) -> Control:
        """Read a control."""

    @abstractmethod
    async def list_page(
        self,
        scope: ControlScope | None = None,
        *,
        limit: int = CONTROL_PAGE,
        after: ControlKey | None = None,
    ) -> list[Control]:
        """Read a page of the controls that are not neutral, by scope and name."""

    async def each(self, scope: ControlScope | None = None) -> AsyncIterator[Control]:
        """Iterate over the controls that are not neutral, reading a page at a time."""
        after: ControlKey | None = None
        while True:
            rows = await self.list_page(scope, limit=CONTROL_PAGE, after=after)
            for row in rows:
                yield row
            if len(rows) < CONTROL_PAGE:
                return
            after = rows[-1].key

    @abstractmethod
    async def pause(self, scope: ControlScope, name: str, *, by: Operator | None = None) -> Control:
        """Start no more jobs: once this returns, none is claimed. Those that run continue."""

    @abstractmethod
    async def resume(
        self, scope: ControlScope, name: str, *, by: Operator | None = None
    ) -> Control:
        """Start jobs again, at once."""

    @abstractmethod
    async def override(
        self,
        scope: ControlScope,
        name: str,
        numbers: Numbers,
        *,
        fields: Collection[str] | None = None,
        by: Operator | None = None,
    ) -> Control:
        """Use an operator's numbers instead of the declared ones.

        With ``fields``, only these change, and the others stay as they are now.
        """

    @abstractmethod
    async def clear(self, scope: ControlScope, name: str, *, by: Operator | None = None) -> Control:
        """Use the declared numbers again."""

    @abstractmethod
    async def declare(self, scope: ControlScope, declared: Mapping[str, Numbers]) -> dict[str, str]:
        """Write the numbers that a program declares; without any, a name has none any more.

        Returns the effect on each, by name: changed or unchanged.
        """

    @abstractmethod
    async def limit_use(self, name: str, *, keys: int = 0) -> LimitUse:
        """Read what a limit has in use, with its ``keys`` busiest keys, at a bounded cost."""

    @abstractmethod
    async def rates(self, scope: ControlScope, keys: Sequence[str]) -> dict[str, datetime]:
        """Read the theoretical arrival times of rates (``model/rate.py``); unused ones are missing.

        The key of a queue's rate is the queue, that of a limit's its ``limit_key``.
        """
