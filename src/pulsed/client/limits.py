"""``app.limits``: see what limits have in use, and change their numbers at run time."""

from __future__ import annotations

import builtins

from msgspec import UNSET, UnsetType

from pulsed.client.controls import Governing
from pulsed.engine.limits import LimitState, read_limit, read_limits
from pulsed.handler.options import checked_count
from pulsed.model.control import Control, ControlScope
from pulsed.model.rate import Rate
from pulsed.store.blocking import blocking

MOST_KEYS = 1_000


class LimitActs(Governing):
    """The limits of an app's database: ``app.limits``."""

    _scope = ControlScope.LIMIT
    _noun = "name of the limit"

    async def alist(self) -> builtins.list[LimitState]:
        """Read the limits, by name: their numbers, how many jobs run and how many wait.

        A limit is listed once a worker that declares it has started. Counting is bounded.
        """
        return await read_limits(self._client.store())

    async def aget(self, name: str, *, keys: int = 20) -> LimitState:
        """Read one limit, with its busiest keys: the jobs that hold them, and the next permit."""
        checked_count("keys", keys, 0, MOST_KEYS)
        return await read_limit(self._client.store(), self._checked(name), keys)

    async def aoverride(
        self,
        name: str,
        *,
        running: int | UnsetType | None = UNSET,
        rate: Rate | UnsetType | None = UNSET,
    ) -> Control:
        """Use other numbers than the code declares, from now on and until ``clear``.

        What you leave out stays as it is; None means no such limit. Jobs that run continue.
        """
        needed = "override() needs running= or rate=; clear() ends an override."
        return await self._override(name, {"running": running, "rate": rate}, needed)

    list = blocking(alist)
    get = blocking(aget)
    override = blocking(aoverride)
