"""Claims over any SQL engine: of jobs without a limit and of those with one, and the floors."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pulsed.errors import StorageError, TransientStorageError
from pulsed.model.job import TopicPolicy
from pulsed.store.results import Assignments
from pulsed.store.retrying import Retries, dequeue_retry_of
from pulsed.store.sql import rows as decode
from pulsed.store.verbs import claim, queue_control
from pulsed.store.verbs.claim import LeasedRows
from pulsed.store.verbs.engine import Claim
from pulsed.store.verbs.floors import Floors
from pulsed.store.verbs.limited import claim_limited
from pulsed.store.verbs.script import Verb
from pulsed.store.verbs.topics import Topics, topics_of

if TYPE_CHECKING:
    from pulsed.store.sql_store.store import SqlStore

MOST_FLOORS = 1000
"""Pairs of queue and topic set for which one process keeps floors (where a claim's scan begins)."""


class SqlClaims:
    """The claims of one store, and what it remembers between them."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.floors: dict[tuple[str, str], Floors] = {}

    async def claim(
        self, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> Assignments:
        """Lease up to ``limit`` due jobs of a queue."""
        every = topics_of(tuple(topics))
        floors = self._floors_of(queue, every.names)
        was_governed, saw_limited = floors.is_governed, floors.saw_limited
        claimed = await self._claim(worker_id, queue, every, floors, limit)
        if len(claimed) < limit and floors.saw_limited and not (saw_limited or every.rules):
            rest = self._claim_limited(worker_id, queue, every, floors, limit - len(claimed))
            claimed = await with_rest(claimed, rest)
        if floors.is_governed is was_governed or len(claimed) >= limit:
            return claimed
        # It has found out just now that a control governs the queue, or that none does.
        rest = self._claim(worker_id, queue, every, floors, limit - len(claimed))
        return await with_rest(claimed, rest)

    def _claim(
        self, worker_id: UUID, queue: str, topics: Topics, floors: Floors, limit: int
    ) -> Coroutine[Any, Any, Assignments]:
        has_limits = topics.rules or floors.saw_limited
        claim = self._claim_both if has_limits else self._claim_unlimited
        return claim(worker_id, queue, topics, floors, limit)

    async def _claim_both(
        self, worker_id: UUID, queue: str, topics: Topics, floors: Floors, limit: int
    ) -> Assignments:
        """Claim jobs without a limit and those with one; of several claims, each is first once."""
        claims = [self._claim_unlimited, self._claim_limited]
        if self._store.limited.rotation(queue, topics.names).take_turn():
            claims.reverse()
        first, second = claims
        claimed = await first(worker_id, queue, topics, floors, limit)
        if len(claimed) >= limit:
            return claimed
        rest = second(worker_id, queue, topics, floors, limit - len(claimed))
        return await with_rest(claimed, rest)

    async def _claim_unlimited(
        self, worker_id: UUID, queue: str, topics: Topics, floors: Floors, limit: int
    ) -> Assignments:
        unlimited = topics.unlimited
        if not unlimited.policies:
            return Assignments()
        make = queue_control.claim if floors.is_governed else claim.claim
        verb = make(self._store.engine, worker_id, queue, unlimited, limit, floors)
        return await self._claimed(verb, worker_id, queue, floors)

    async def _claim_limited(
        self, worker_id: UUID, queue: str, topics: Topics, floors: Floors, limit: int
    ) -> Assignments:
        keys: dict[UUID, str] = {}
        rotation = self._store.limited.rotation(queue, topics.names)
        wanted = Claim(worker_id, queue, topics, is_governed=floors.is_governed)
        verb = claim_limited(self._store.engine, wanted, limit, floors, rotation, keys)
        claimed = await self._claimed(verb, worker_id, queue, floors)
        self._store.limited.claimed(queue, keys)
        return claimed

    async def _claimed(
        self, verb: Verb[LeasedRows], worker_id: UUID, queue: str, floors: Floors
    ) -> Assignments:
        store = self._store
        retries: Retries | None = None  # most claims need none
        while True:
            try:
                leased = await store.perform(verb)
                jobs = decode.assignment.all(store.dialect, leased.rows, queue, worker_id)
                break
            except BaseException as error:  # whatever the error, the claim may have been committed
                store.doubtful_claims += 1
                floors.forget()
                if not isinstance(error, TransientStorageError):
                    raise
                policy = dequeue_retry_of(store.options)
                retries = retries or Retries(policy, what=verb.action, events=store.events)
                await retries.pause_after(error)
        claimed = Assignments(jobs, again_in=leased.again_in)
        if floors.is_governed:
            store.governed.claimed(queue, claimed)
        return claimed

    def _floors_of(self, queue: str, topics: str) -> Floors:
        known = self.floors.get((queue, topics))
        if known is None:
            if len(self.floors) >= MOST_FLOORS:
                self.floors.clear()
            known = self.floors.setdefault((queue, topics), Floors(self._store.seconds))
        return known


async def with_rest(claimed: Assignments, claiming: Awaitable[Assignments]) -> Assignments:
    """Return the jobs of a claim and of the next one, and when to come back for more.

    If the next one fails, those of the first are to run all the same.
    """
    try:
        rest = await claiming
    except StorageError:
        if not claimed:
            raise
        return claimed
    known = [each.again_in for each in (claimed, rest) if each.again_in is not None]
    return Assignments([*claimed, *rest], again_in=min(known, default=None))
