"""Declaring code of your own around runs, steps and enqueues, and for events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pulsed.client.hooks import EventStream, Hooks
from pulsed.engine.around import Arounds, around_of
from pulsed.model.events import EngineEvent, JobEvent
from pulsed.store.event_bus import Events

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Callable[[Any], Any])
E = TypeVar("E", bound=JobEvent | EngineEvent)


class CodeAround:
    """The decorators ``@app.around…`` and ``@app.on(…)``, and what they have declared."""

    def __init__(self) -> None:
        self._arounds = Arounds()
        self._events = Events()
        self._hooks = Hooks(self._events)

    def around(self, fn: F) -> F:
        """Run your code around every run of a job: a function that takes ``ctx`` and yields once.

        The first one declared is the outermost. An async one runs on the worker's event loop; a
        plain one in the thread of a plain handler, and on the loop around an async handler, where
        it must not block. The ``yield`` raises what the handler raises; what you raise counts as
        the run's error. A context manager class will do as well.
        """
        self._arounds.runs.append(around_of(fn, "around"))
        return fn

    def around_step(self, fn: F) -> F:
        """Run your code around every call of a step's function; it takes a ``StepCall``.

        It runs on the worker's event loop, so a plain one must not block. A step whose result is
        stored is not called.
        """
        self._arounds.steps.append(around_of(fn, "around_step"))
        return fn

    def around_enqueue(self, fn: F) -> F:
        """Run your code around every enqueue: a plain function that takes the jobs and yields once.

        It gets a list of ``OutgoingJob`` and may add to their ``headers``. The jobs of schedules
        do not pass through it.
        """
        self._arounds.enqueues.append(around_of(fn, "around_enqueue", plain=True))
        return fn

    def on(self, *kinds: type[E]) -> Callable[[H], H]:
        """Call your function with each event of these kinds: ``@app.on(JobDeadLettered)``.

        A plain function is called in a thread of its own, an async one on the worker's loop. What
        it raises is logged. It cannot hold up a job: if it is too slow, events are dropped.
        """

        def declare(fn: H) -> H:
            self._hooks.add(fn, kinds)
            return fn

        return declare

    def events(self, *kinds: type[E], most: int = 1_000) -> EventStream[E]:
        """Return the events of these kinds from now on, for ``async for``; without kinds, all.

        They are those of this process: of its workers, and of jobs that it enqueues. Up to ``most``
        wait for you; then the oldest are dropped.
        """
        return EventStream(self._events, kinds, most)
