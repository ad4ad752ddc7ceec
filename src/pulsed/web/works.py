"""Bulk acts that go on in the server's process after the visitor's request has been answered."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from pulsed.client.bulk import Act, act_on_matching
from pulsed.errors import InvalidOption, PulsedError
from pulsed.model.job import JobFilter, Status
from pulsed.store.base import Store

log = logging.getLogger("pulsed.ui")

MOST_AT_ONCE = 4
MOST_KEPT = 50
"""Ended ones are kept for whoever looks at their page."""


@dataclass
class Work:
    """A bulk act, and how far it is."""

    id: str
    act: Act
    what: str
    """The filter in words."""
    expected: int
    is_at_least: bool
    done: int = 0
    error: str = ""
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def has_ended(self) -> bool:
        """Whether it is done, has failed or was stopped."""
        return self.task is not None and self.task.done()

    @property
    def percent(self) -> int:
        """How much of what was expected is done, as far as that is known."""
        if self.has_ended and not self.error:
            return 100
        return min(99, 100 * self.done // max(1, self.expected))


class Works:
    """The bulk acts of one dashboard."""

    def __init__(self) -> None:
        self._works: dict[str, Work] = {}

    def get(self, work_id: str) -> Work | None:
        """Return an act by its id, if it is still known."""
        return self._works.get(work_id)

    def start(self, store: Store, act: Act, where: JobFilter, work: Work) -> None:
        """Let an act begin. It goes through bounded pages, and each leaves an audit entry."""
        running = [each for each in self._works.values() if not each.has_ended]
        if len(running) >= MOST_AT_ONCE:
            raise InvalidOption(f"{MOST_AT_ONCE} bulk acts are in progress: wait for one to end.")
        for old in [each.id for each in self._works.values() if each.has_ended][:-MOST_KEPT]:
            del self._works[old]
        self._works[work.id] = work
        work.task = asyncio.create_task(self._perform(store, act, where, work))

    async def _perform(self, store: Store, act: Act, where: JobFilter, work: Work) -> None:
        def tell(done: Mapping[UUID, Status]) -> None:
            work.done += len(done)

        try:
            await act_on_matching(store, act, where, tell)
        except PulsedError as error:
            work.error = str(error)
        except Exception:
            log.exception("a bulk act of the dashboard failed: %s %s", act.verb, work.what)
            work.error = "It failed; the log of the dashboard's process says why."

    async def close(self) -> None:
        """Stop what is in progress: pages that are done stay done."""
        tasks = [work.task for work in self._works.values() if work.task and not work.has_ended]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def new_id() -> str:
    """Return an id that cannot be guessed."""
    return secrets.token_urlsafe(12)
