"""The acts on what governs a queue or a limit: pause, resume, override, clear."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from pulsed.app import Pulse
from pulsed.client.limits import LimitActs
from pulsed.client.queues import Queues
from pulsed.handler.options import checked_name
from pulsed.model.control import Control, described
from pulsed.web.control_form import ControlField, typed_in
from pulsed.web.render import path
from pulsed.web.site import PageCall


class ControlActs:
    """The acts of one kind of page, each a handler of its route."""

    def __init__(
        self,
        noun: str,
        of: Callable[[Pulse], Queues | LimitActs],
        override: Callable[..., Awaitable[Control]],
        fields: tuple[ControlField, ...],
    ) -> None:
        self._noun = noun
        self._of = of
        self._override = override
        self._fields = fields

    async def pause(self, call: PageCall) -> Response:
        """Start no more of its jobs."""
        name = self.name(call)
        await self._of(call.app).apause(name)
        text = f"The {self._noun} {name} is paused: what runs goes on, and nothing else starts."
        return self._done(call, text)

    async def resume(self, call: PageCall) -> Response:
        """Start its jobs again."""
        name = self.name(call)
        await self._of(call.app).aresume(name)
        return self._done(call, f"The {self._noun} {name} starts jobs again.")

    async def override(self, call: PageCall) -> Response:
        """Use an operator's numbers instead of the declared ones."""
        numbers = typed_in(call, self._fields)
        return self._changed(call, await self._override(call.app, self.name(call), **numbers))

    async def clear(self, call: PageCall) -> Response:
        """Use the declared numbers again."""
        return self._changed(call, await self._of(call.app).aclear(self.name(call)))

    def name(self, call: PageCall) -> str:
        """Return the name in the address."""
        return checked_name(self._noun, call.path("name"))

    def address(self, name: str) -> str:
        """Return the address of a page."""
        return f"/{self._noun}s/{path(name)}"

    def _changed(self, call: PageCall, control: Control) -> Response:
        text = f"The {self._noun} {control.name} has {described(control.numbers)} now."
        return self._done(call, text)

    def _done(self, call: PageCall, text: str) -> Response:
        return call.done(text, call.back(self.address(self.name(call))))
