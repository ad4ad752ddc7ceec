"""Every order in which the statements of two transactions can meet, on a real server.

Each actor is a call on a store of its own, in a thread of its own, that stops before every
statement and before its COMMIT. The explorer lets one go on at a time. One that waits for a lock
cannot be chosen until the other has let go of it, so what is left is what can really happen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

from msgspec import structs

from pulsed.errors import TransientStorageError
from pulsed.store.blocking import run_blocking
from pulsed.store.sql.statement import Rows, Statement
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.verbs.script import Script, Verb, VerbKind
from tests.support.backends import PostgresBackend, close_blocking

PATIENCE = 20.0
USUAL = 0.002
"""Seconds of a statement that waits for nothing: sooner, the server is not asked about locks."""

Act = Callable[[SqlStore], Coroutine[Any, Any, Any]]

WAITING_FOR_LOCKS = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


class Actor:
    """One call that stops before each of its statements."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self.at_gate = False
        self.woken = 0
        """How many jobs its statements have woken."""
        self.deadlocks = 0
        self._go = threading.Semaphore(0)
        self._future: Future[Any] | None = None
        self._perform = store.perform
        setattr(store, "perform", self._performing)  # noqa: B010 - an instance's own method

    def begin(self, threads: ThreadPoolExecutor, act: Act) -> None:
        self.at_gate, self.woken, self.deadlocks = False, 0, 0
        self._future = threads.submit(lambda: run_blocking(act(self.store)))

    @property
    def done(self) -> bool:
        assert self._future is not None
        return self._future.done()

    def result(self) -> Any:
        assert self._future is not None
        return self._future.result(PATIENCE)

    def go(self) -> None:
        self.at_gate = False
        self._go.release()

    def _stop(self) -> None:
        self.at_gate = True
        assert self._go.acquire(timeout=PATIENCE)

    async def _performing(self, verb: Verb[Any]) -> Any:
        script = verb.script
        stopping = structs.replace(verb, script=lambda: self._stopping(script(), verb.kind))
        try:
            return await self._perform(stopping)
        except TransientStorageError as error:
            self.deadlocks += "deadlock" in str(error)
            raise

    def _stopping(self, script: Script[Any], kind: VerbKind) -> Script[Any]:
        rows: Rows | None = None
        while True:
            try:
                statement: Statement = next(script) if rows is None else script.send(rows)
            except StopIteration as finished:
                if kind is VerbKind.TRANSACTION:
                    self._stop()
                return finished.value
            self._stop()
            rows = yield statement
            if statement.sql is self.store.engine.waiting.wake:
                self.woken += len(rows)


class Explorer:
    """Runs two acts in every order, each time on what ``prepare`` has made."""

    def __init__(self, backend: PostgresBackend, threads: ThreadPoolExecutor) -> None:
        self.backend = backend
        self.calm = backend.open()
        """To prepare and to check."""
        self.actors = [Actor(backend.open()), Actor(backend.open())]
        self._threads = threads
        self._looking = backend.connect()
        self.orders = 0

    def every_order(
        self, prepare: Callable[[], Sequence[Act]], *, switches: int = 99
    ) -> Iterator[str]:
        """Yield after each order in which the acts can meet, as the letters of who went on.

        Only those in which the turn is taken from an actor that could go on at most so often.
        """
        pending: list[list[int]] = [[]]
        while pending:
            prefix = pending.pop()
            chosen, free = self._run(prefix, prepare())
            for place in range(len(prefix), len(chosen)):
                if len(free[place]) > 1:
                    other = [*chosen[:place], 1 - chosen[place]]
                    if taken(other, free) <= switches:
                        pending.append(other)
            self.orders += 1
            yield "".join("AB"[choice] for choice in chosen)
            self.backend.empty()

    def _run(self, prefix: list[int], acts: Sequence[Act]) -> tuple[list[int], list[list[int]]]:
        for actor, act in zip(self.actors, acts, strict=True):
            actor.begin(self._threads, act)
        chosen: list[int] = []
        free: list[list[int]] = []
        while not all(actor.done for actor in self.actors):
            able = self._settled()
            if not able:
                continue
            last = chosen[-1] if chosen else 0
            choice = prefix[len(chosen)] if len(chosen) < len(prefix) else last
            choice = choice if choice in able else able[0]
            chosen.append(choice)
            free.append(able)
            self.actors[choice].go()
        return chosen, free

    def _settled(self) -> list[int]:
        """Wait until each actor is at its gate, has ended, or waits for a lock; who can run?"""
        began = time.monotonic()
        while True:
            busy = [a for a in self.actors if not (a.at_gate or a.done)]
            waited = time.monotonic() - began
            if not busy or (len(busy) == 1 and waited > USUAL and self._waits_for_a_lock(busy)):
                return [n for n, actor in enumerate(self.actors) if actor.at_gate]
            assert waited < PATIENCE, "an actor is stuck"
            time.sleep(0.0002)

    def _waits_for_a_lock(self, busy: list[Actor]) -> bool:
        return self._waiting_for_locks() == 1 and busy_still(busy)

    def _waiting_for_locks(self) -> int:
        ((count,),) = self._looking.execute(WAITING_FOR_LOCKS).fetchall()
        return int(count)

    def close(self) -> None:
        self._looking.close()
        for store in (self.calm, *(actor.store for actor in self.actors)):
            close_blocking(store)


def taken(chosen: list[int], free: list[list[int]]) -> int:
    """Return how often the turn went over though its owner could have gone on."""
    turns = zip(chosen, chosen[1:], free[1:], strict=False)
    return sum(before != after and before in able for before, after, able in turns)


def busy_still(actors: list[Actor]) -> bool:
    """Whether they have not arrived while we asked the server about their locks."""
    return not any(actor.at_gate or actor.done for actor in actors)


@contextmanager
def exploring(backend: PostgresBackend) -> Iterator[Explorer]:
    """Return an explorer on a database with its tables."""
    with ThreadPoolExecutor(2) as threads:
        explorer = Explorer(backend, threads)
        run_blocking(explorer.calm.now())
        backend.empty()
        with closing(explorer):
            yield explorer
