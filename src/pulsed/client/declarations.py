"""What the code of an app declares: handlers, schedules, queues, lifespans. No I/O.

A worker stores the schedules and the limits of queues when it starts.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from pulsed.client.setup_lock import setup_lock
from pulsed.errors import ConfigError
from pulsed.handler import Registry
from pulsed.handler.options import checked_name

# Imported by what needs them: a module that only declares and enqueues jobs loads faster.
if TYPE_CHECKING:
    from pulsed.client.schedule_spec import ScheduleOptions, Target
    from pulsed.client.schedules import Schedules
    from pulsed.model.rate import Rate
    from pulsed.model.schedule import ScheduleSpec

log = logging.getLogger("pulsed.app")

Lifespan: TypeAlias = Callable[[Any], contextlib.AbstractAsyncContextManager[Any]]
"""Takes the app, and returns what is entered before a worker's first job."""


class Declarations:
    """The declarations of one app, and the modules that still have to be imported for them."""

    def __init__(self, imports: Iterable[str]) -> None:
        self.handlers = Registry()
        """The handlers so far; ``registry`` imports the rest first."""
        self._imports = [imports] if isinstance(imports, str) else list(imports)
        self._schedules: dict[str, tuple[Target, ScheduleOptions]] = {}
        self._lifespans: list[Lifespan] = []

    @property
    def registry(self) -> Registry:
        """All handlers, after importing the modules that declare them."""
        with setup_lock():
            while self._imports:
                _import(self._imports[0])
                self._imports.pop(0)
        return self.handlers

    def check_schedule_name(self, name: str) -> None:
        """Refuse a name that is invalid or taken."""
        checked_name("name of the schedule", name)
        if name in self._schedules:
            raise ConfigError(f"The schedule {name!r} is declared twice; give one another name.")

    def add_schedule(self, name: str, target: Target, options: ScheduleOptions) -> None:
        """Add a schedule; an invalid one raises here."""
        from pulsed.client.schedule_spec import make_spec  # noqa: PLC0415 - not all have schedules

        make_spec(target, options, self.handlers)
        self._schedules[name] = (target, options)

    def schedules(self) -> dict[str, ScheduleSpec]:
        """Return all schedules by name, after importing the modules that declare them."""
        registry = self.registry
        if not self._schedules:
            return {}
        from pulsed.client.schedule_spec import make_spec  # noqa: PLC0415 - not all have schedules

        return {
            name: make_spec(target, options, registry)
            for name, (target, options) in self._schedules.items()
        }

    def add_queue(
        self, name: str, running: int | None, rate: Rate | None, age: float | timedelta | None
    ) -> None:
        """Add the limits of a queue."""
        from pulsed.model.control import Numbers  # noqa: PLC0415 - few declare queues

        checked = checked_name("queue", name)
        if checked in self.handlers.queues:
            raise ConfigError(f"The queue {name!r} is declared twice; declare it once.")
        seconds = age.total_seconds() if isinstance(age, timedelta) else age
        self.handlers.queues[checked] = Numbers(running=running, rate=rate, age=seconds)

    def add_lifespan(self, fn: Callable[..., Any]) -> None:
        """Add code around a worker: an async generator function, or what returns a manager."""
        manager = contextlib.asynccontextmanager(fn) if inspect.isasyncgenfunction(fn) else fn
        self._lifespans.append(manager)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: object) -> AsyncIterator[None]:
        """Enter all lifespans, in the order in which they were declared."""
        async with contextlib.AsyncExitStack() as stack:
            for lifespan in self._lifespans:
                await stack.enter_async_context(lifespan(app))
            yield


async def write_schedules(schedules: Schedules) -> None:
    """Store the declared schedules, and log what that has changed."""
    done = await schedules.aapply()
    for names, what in ((done.created, "created"), (done.changed, "changed")):
        if names:
            log.info("schedules %s: %s", what, ", ".join(names))
    if done.removed:
        log.warning(
            "schedules in the database that are no longer declared: %s", ", ".join(done.removed)
        )


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # found, but it imports something that is missing
        raise ConfigError(
            f"Pulse(imports=[{module!r}]): there is no module {error.name!r}. Is the working "
            "directory or PYTHONPATH the one you meant?"
        ) from error
