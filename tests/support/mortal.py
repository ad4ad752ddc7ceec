"""A worker process that dies at a chosen storage call, and a world that goes on without it.

Everything runs in the test's own loop, one job at a time, so the same workflow makes the same calls
in the same order every time: "the 17th call" means something. A call that dies was either never
made, or made and committed, its answer lost. From then on the process makes no call at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal
from uuid import uuid4

from pulsed.engine.context import Context
from pulsed.engine.worker.run import Run
from pulsed.engine.worker.runs import Runner
from pulsed.engine.workflow.shared import Workflows
from pulsed.errors import StorageError, TransientStorageError
from pulsed.handler import Registry
from pulsed.model.job import Assignment
from pulsed.model.outcome import Outcome, Report
from pulsed.rpc.client.store import RemoteStore
from pulsed.store.verbs.script import Verb
from pulsed.store.workflows import CommitUnknown, Transaction

When = Literal["before", "after", "blinks before", "blinks after"]
"""Dies before or after the commit; or only loses its connection there, and lives."""

QUEUES = ("parents", "children")


class Fate:
    """At which call something happens, and what. Shared by all processes of one life."""

    def __init__(self, at: int = 0, when: When = "before") -> None:
        self.at = at
        self.when = when
        self.calls: list[str] = []
        self.struck = ""
        """The name of the call it happened at."""

    def strikes(self, name: str) -> bool:
        """Count a call; whether it is the one."""
        self.calls.append(name)
        if len(self.calls) != self.at:
            return False
        self.struck = name
        return True


class Process:
    """One worker with one slot."""

    def __init__(self, store: Any, registry: Registry, fate: Fate) -> None:
        self.id = uuid4()
        self.dead = False
        self.woken = 0
        """How many parents its calls have woken; unknown through a server."""
        self.store = store
        self._fate = fate
        self._registry = registry
        self._make_mortal()

    def _make_mortal(self) -> None:
        if isinstance(self.store, RemoteStore):
            self._claim, self._call = self.store.claim, self.store.connection.call
            setattr(self.store, "claim", self._claiming)  # noqa: B010 - an instance's own methods
            setattr(self.store.connection, "call", self._calling)  # noqa: B010
        else:
            self._perform, self._transaction = self.store.perform, self.store.step_transaction
            setattr(self.store, "perform", self._performing)  # noqa: B010
            setattr(self.store, "step_transaction", self._in_transaction)  # noqa: B010

    async def work(self) -> bool:
        """Claim one job and run it to its end; False if there was none, or if it died at it."""
        policies = self._registry.policies()
        try:
            for queue in QUEUES:
                for assignment in await self.store.claim(self.id, queue, policies, 1):
                    outcome = await self._run(assignment)
                    if not self.dead:
                        await self.store.settle([Report.of(assignment, outcome)])
                    return True
        except StorageError:
            if not self.dead:
                raise
        return False

    async def _run(self, assignment: Assignment) -> Any:
        ended: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        runner = Runner(
            1,
            on_ended=lambda runs: ended.set_result(runs[0].outcome),
            on_free_slot=lambda: None,
            on_stuck=lambda: None,
        )
        workflows = Workflows(self.store, self._registry)
        handler = self._registry.get(assignment.topic)
        runner.start([Run(assignment, handler, lambda job: Context(job, self.store, workflows))])
        outcome = await ended
        await runner.close()
        return outcome

    async def _performing(self, verb: Verb[Any]) -> Any:
        self._check()
        strikes = verb.name != "schema_check" and self._fate.strikes(verb.name)
        if strikes and self._fate.when.endswith("before"):
            self._strike()
        answer = await self._perform(verb)
        self._count(verb, answer)
        if strikes:
            self._strike()
        return answer

    async def _claiming(self, *args: Any) -> Any:
        return await self._over_the_network("claim", lambda: self._claim(*args))

    async def _calling(self, name: str, request: Any, **options: Any) -> Any:
        return await self._over_the_network(name, lambda: self._call(name, request, **options))

    async def _over_the_network(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call; repeat one whose answer was lost, as the client does."""
        self._check()
        strikes = self._fate.strikes(name)
        blinks = self._fate.when.startswith("blinks")
        if strikes and not blinks and self._fate.when == "before":
            self._strike()
        answer = await call()
        if strikes and not blinks:
            self._strike()
        if strikes and name != "claim" and self._fate.when == "blinks after":
            answer = await call()
        return answer

    def _count(self, verb: Verb[Any], answer: Any) -> None:
        queues: frozenset[str] = getattr(getattr(answer, "effects", None), "queues", frozenset())
        if verb.name == "signal":
            queues = answer[1]
        self.woken += "parents" in queues

    @asynccontextmanager
    async def _in_transaction(self, *args: Any, **options: Any) -> AsyncIterator[Transaction]:
        self._check()
        if self._fate.strikes("begin"):
            self._strike()
        async with self._transaction(*args, **options) as transaction:
            commit = transaction.commit

            async def committing(checkpoint: Any) -> None:
                self._check()
                strikes = self._fate.strikes("commit")
                if strikes and self._fate.when.endswith("before"):
                    self._strike()
                await commit(checkpoint)
                if strikes and self._fate.when == "blinks after":
                    raise CommitUnknown("the answer was lost")
                if strikes:
                    self._strike()

            setattr(transaction, "commit", committing)  # noqa: B010
            yield transaction

    def _check(self) -> None:
        if self.dead:
            raise StorageError("a dead process makes no calls")

    def _strike(self) -> None:
        if self._fate.when.startswith("blinks"):
            raise TransientStorageError("the connection was lost")
        self.dead = True
        raise StorageError("the process died")

    async def bury(self) -> None:
        """Give back what the operating system would take."""
        await self.store.aclose()
