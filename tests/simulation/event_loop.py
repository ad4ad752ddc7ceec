"""An event loop whose time jumps, and whose callbacks belong to simulated processes.

A dead process never runs again, as after SIGKILL: no ``finally``, no ``except``. A frozen one,
as after SIGSTOP, runs everything that became due meanwhile when it is thawed.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

from tests.support.jumping_loop import JumpingLoop

CURRENT: ContextVar[Life | None] = ContextVar("simulated_process", default=None)
"""The process that the running code belongs to; tasks and callbacks inherit it."""


INSTANT = 1e-6
"""Seconds of a turn of the loop: code that waits for a clock to reach an instant must get there."""


class Life:
    """Whether the callbacks of a process are run, or kept for later."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._kept: list[tuple[_Callback, tuple[Any, ...]]] = []
        self.is_dead = False
        self.is_frozen = False
        self.context = contextvars.copy_context()
        """What runs in it belongs to this process."""
        self.context.run(CURRENT.set, self)

    def kill(self) -> None:
        """Run nothing of it any more, until the whole run is over."""
        self.is_dead = self.is_frozen = True

    def freeze(self, seconds: float) -> None:
        """Run nothing of it for so long."""
        if not self.is_frozen:
            self.is_frozen = True
            self._loop.outside(seconds, self._thaw)

    def _thaw(self) -> None:
        if not self.is_dead:
            self.resume()

    def resume(self) -> None:
        """Run what has become due meanwhile."""
        kept, self._kept, self.is_frozen = self._kept, [], False
        for callback, args in kept:
            callback.again(args)

    def keep(self, callback: _Callback, args: tuple[Any, ...]) -> None:
        """Run a callback when the process is thawed."""
        self._kept.append((callback, args))


class _Callback:
    """A callback of a process; its handle tells whether it was cancelled meanwhile."""

    __slots__ = ("_function", "_life", "_loop", "context", "handle")

    def __init__(
        self, loop: SimulatedLoop, life: Life, function: Callable[..., object], context: Any
    ) -> None:
        self._loop = loop
        self._life = life
        self._function = function
        self.context = context
        self.handle: asyncio.Handle | None = None

    def __call__(self, *args: Any) -> None:
        if self._life.is_frozen:
            self._life.keep(self, args)
            return
        self._function(*args)

    def again(self, args: tuple[Any, ...]) -> None:
        self._loop.call_soon(self._unless_cancelled, *args, context=self.context)

    def _unless_cancelled(self, *args: Any) -> None:
        """Run it, unless what ran just before has cancelled it."""
        if self.handle is None or not self.handle.cancelled():
            self._function(*args)


class Contextvars:
    """In the place of the module, where a task gets an empty context: it belongs to its process."""

    copy_context = staticmethod(contextvars.copy_context)

    @staticmethod
    def Context() -> Context:  # noqa: N802 - the name of the class
        context = contextvars.Context()
        context.run(CURRENT.set, CURRENT.get())
        return context


class SimulatedLoop(JumpingLoop):
    """Begins at zero; every callback belongs to the process whose context it has."""

    def __init__(self) -> None:
        super().__init__()
        self._jumps.instant, self._jumps.has_files = INSTANT, False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        owned = self._owned(callback, context)
        handle = super().call_soon(owned, *args, context=context)
        if isinstance(owned, _Callback):
            owned.handle = handle
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_soon(callback, *args, context=context)  # there is one thread

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Any:
        owned = self._owned(callback, context)
        handle = super().call_at(when, owned, *args, context=context)
        if isinstance(owned, _Callback):
            owned.handle = handle
        return handle

    def outside(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call something later that belongs to no process."""
        nobody = contextvars.copy_context()
        nobody.run(CURRENT.set, None)
        self.call_later(seconds, callback, context=nobody)

    def _owned(self, callback: Callable[..., object], context: Context | None) -> Any:
        context = contextvars.copy_context() if context is None else context
        life = context.get(CURRENT)
        return callback if life is None else _Callback(self, life, callback, context)
