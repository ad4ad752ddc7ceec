"""``app.limits``: see what limits have in use, and change their numbers at run time."""

from __future__ import annotations

import builtins
from typing import Any

from msgspec import UNSET, UnsetType

from pulsed.client.job import Client
from pulsed.client.operator import operator
from pulsed.engine.limits import LimitState, read_limit, read_limits
from pulsed.errors import InvalidOption
from pulsed.handler.options import checked_count, checked_name
from pulsed.model.control import Control, ControlScope, Numbers
from pulsed.model.rate import Rate
from pulsed.store.blocking import blocking
from pulsed.store.controls import ControlStore

MOST_KEYS = 1_000


class LimitActs:
    """The limits of an app's database: ``app.limits``."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def _controls(self) -> ControlStore:
        return self._client.store().controls

    async def alist(self) -> builtins.list[LimitState]:
        """Read the limits, by name: their numbers, how many jobs run and how many wait.

        A limit is listed once a worker that declares it has started. Counting is bounded.
        """
        return await read_limits(self._client.store())

    async def aget(self, name: str, *, keys: int = 20) -> LimitState:
        """Read one limit, with its busiest keys: the jobs that hold them, and the next permit."""
        checked_count("keys", keys, 0, MOST_KEYS)
        return await read_limit(self._client.store(), _checked(name), keys)

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
        given: dict[str, Any] = {"running": running, "rate": rate}
        fields = {key: value for key, value in given.items() if value is not UNSET}
        if not fields:
            raise InvalidOption("override() needs running= or rate=; clear() ends an override.")
        return await self._controls.override(
            ControlScope.LIMIT, _checked(name), Numbers(**fields), fields=[*fields], by=operator()
        )

    async def aclear(self, name: str) -> Control:
        """Use the declared numbers again."""
        return await self._controls.clear(ControlScope.LIMIT, _checked(name), by=operator())

    async def apause(self, name: str) -> Control:
        """Start no more jobs of a limit, whatever their keys; those that run continue."""
        return await self._controls.pause(ControlScope.LIMIT, _checked(name), by=operator())

    async def aresume(self, name: str) -> Control:
        """Start jobs of a limit again."""
        return await self._controls.resume(ControlScope.LIMIT, _checked(name), by=operator())

    list = blocking(alist)
    get = blocking(aget)
    override = blocking(aoverride)
    clear = blocking(aclear)
    pause = blocking(apause)
    resume = blocking(aresume)


def _checked(name: str) -> str:
    return checked_name("name of the limit", name)
