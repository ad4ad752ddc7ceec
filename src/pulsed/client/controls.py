"""What an operator does to a queue, a topic or a limit: pause, resume, set numbers, clear them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import UNSET

from pulsed.client.job import Client
from pulsed.client.operator import operator
from pulsed.errors import InvalidOption
from pulsed.handler.options import checked_name
from pulsed.model.control import Control, ControlScope, Numbers
from pulsed.store.blocking import blocking
from pulsed.store.controls import ControlStore


class Pausing:
    """Pauses and resumes what has a name in one scope."""

    _scope: ClassVar[ControlScope]
    _noun: ClassVar[str]
    """What a name is called in messages."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def _controls(self) -> ControlStore:
        return self._client.store().controls

    def _checked(self, name: str) -> str:
        return checked_name(self._noun, name)

    async def apause(self, name: str) -> Control:
        """Start no more of its jobs; those that run continue.

        Once it returns, no worker claims one. Jobs that were claimed before may just be starting.
        """
        return await self._controls.pause(self._scope, self._checked(name), by=operator())

    async def aresume(self, name: str) -> Control:
        """Start its jobs again, at once."""
        return await self._controls.resume(self._scope, self._checked(name), by=operator())

    pause = blocking(apause)
    resume = blocking(aresume)


class Governing(Pausing):
    """Sets numbers as well, instead of those that the code declares."""

    async def aclear(self, name: str) -> Control:
        """Take an operator's numbers away: those that the code declares count again."""
        return await self._controls.clear(self._scope, self._checked(name), by=operator())

    clear = blocking(aclear)

    async def _override(self, name: str, given: Mapping[str, Any], needed: str) -> Control:
        """Store the numbers that are set; ``needed`` is the error if none is."""
        checked = self._checked(name)
        fields = {key: value for key, value in given.items() if value is not UNSET}
        if not fields:
            raise InvalidOption(needed)
        return await self._controls.override(
            self._scope, checked, Numbers(**fields), fields=list(fields), by=operator()
        )
