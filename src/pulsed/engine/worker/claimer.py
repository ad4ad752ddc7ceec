"""Claiming: as many jobs as there are free slots.

A job claimed ahead of its slot may wait for one, and is interrupted when a sibling kills the
process. So the claimer waits for free slots, claims for all of them at once, and only while
handlers end at once for those that are about to be free (``Runner.room``). When the queues are
empty it sleeps until a hint (a notification that jobs may have arrived) or the next poll. If it has
just had jobs, it lingers first: a store that supports it may then push the next ones. No storage
error ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from pulsed.engine.forever import Alarm, forever
from pulsed.engine.worker.leases import Leases
from pulsed.errors import StorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.model.events import JobsClaimed
from pulsed.model.job import Assignment, Lease, TopicPolicy
from pulsed.model.outcome import Released, Report
from pulsed.store.base import Store
from pulsed.wording import counted

log = logging.getLogger("pulsed.worker")

GATHER = 0.005
"""Seconds to wait for more free slots before a small claim."""

LINGER = 5.0
"""Seconds in which a store may push jobs to a worker that has just had some. If it freezes
meanwhile, they wait for their leases to expire, so the time is short and the jobs are few."""
LINGER_FOR = 2
"""Jobs pushed at most: two, so that a single one says that there are no more."""
LINGER_SHARE = 1 / 6
"""The part of a lease to linger at most: a lease counts from when the claim was sent."""

FAILING_AFTER = 3
"""Consecutive failed claims, each after its storage retries, that make a worker ``failing``."""

CLAIM_BACKOFF = RetryPolicy(initial=0.5, max=10.0, jitter=0.2)


class SlotGroup(NamedTuple):
    """Topics that share slots, which jobs of other topics do not take."""

    topics: Sequence[TopicPolicy]
    slots: int
    free_slots: Callable[[int], int]
    """For how many more jobs there is room, besides so many that were claimed and will start."""


class Claimer:
    """Decides when to claim, from which queue, for which group, and how much."""

    def __init__(
        self,
        store: Store,
        worker_id: UUID,
        leases: Leases,
        *,
        queues: Sequence[str] | Mapping[str, float],
        groups: Sequence[SlotGroup],
        poll: float,
        start: Callable[[list[Assignment], float], None],
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._leases = leases
        self._queues = queues
        self._groups = groups
        self._poll = poll
        self._start = start
        self._prepare = prepare
        """What has to succeed before the first claim: limits are declared."""
        self._alarm = Alarm()
        self._slot_freed = asyncio.Event()
        self._doubts = store.doubtful_claims
        self._in_doubt_until = 0.0
        self._failures = 0
        self._was_busy = False
        self._unstarted: list[tuple[list[Assignment], float]] = []
        """Claimed jobs, and when they were asked for: they start when the next claim is sent."""
        self.again_in: float | None = None
        """Seconds after which the next claim may find more: by a rate, or a scan that is due."""
        self._awaits_slot = False
        """Whether a group had no free slot, so that one which becomes free is reason to claim."""
        seconds = [topic.lease for group in groups for topic in group.topics]
        self._longest_lease = max(seconds, default=30.0)
        self._linger_at_most = min(LINGER, min(seconds, default=0.0) * LINGER_SHARE)
        self.stopping = False

    def wake(self) -> None:
        """Claim now: jobs may have arrived."""
        self._alarm.ring()

    def slot_freed(self) -> None:
        """Note that a run has ended, so there may be a free slot."""
        self._slot_freed.set()
        if self._awaits_slot:
            self._alarm.ring()

    def stop(self) -> None:
        """Claim nothing more."""
        self.stopping = True
        self._store.withdraw(self._worker_id)
        self._alarm.ring()
        self._slot_freed.set()

    async def run(self) -> None:
        """Claim until stopped. A claim in flight is always finished."""
        await forever(
            self._tick_and_pause,
            "claiming jobs",
            log=log,
            after_failure=self._after_failure,
            sleep=self._alarm.sleep,
        )
        if self.in_doubt:
            with contextlib.suppress(StorageError):
                await self.release_unknown()

    async def _tick_and_pause(self) -> float | None:
        while not self.stopping:
            is_drained = await self._fill_slots()
            # A server is asked to push further jobs first, while these are started.
            if is_drained and not self._store.is_remote:
                await self._begin_runs()
            is_drained = is_drained and not await self.linger()
            self._failures = 0
            if is_drained and not self.stopping:
                return self._pause()
        return None

    async def _begin_runs(self) -> None:
        """Start what was claimed, and leave the loop to it: no other claim is about to be sent."""
        if self._unstarted:
            self._start_claimed()
            await asyncio.sleep(0)

    def _pause(self) -> float:
        """Return the seconds until the next poll: earlier if a rate permits a job before."""
        poll = self._poll * random.uniform(0.9, 1.1)  # noqa: S311
        return poll if self.again_in is None else min(poll, self.again_in)

    def _after_failure(self, failures: int) -> float:
        self._failures = failures
        return CLAIM_BACKOFF.delay(failures)

    async def tick(self) -> bool:
        """Fill the free slots once; True if all queues are drained."""
        is_drained = await self._fill_slots()
        self._start_claimed()
        return is_drained

    async def _fill_slots(self) -> bool:
        if self._prepare is not None:
            await self._prepare()
            self._prepare = None
        if not self._has_enough():
            await self._wait_for_slots()
        self._alarm.reset()
        if self.in_doubt:
            await self.release_unknown()
        self.again_in = None
        self._awaits_slot = False
        groups, is_drained = list(self._groups), True
        for queue in self._order():
            for group in list(groups):
                if self.stopping:
                    return False
                free = self._free(group)
                if free > 0 and await self._begin(self._claim(queue, group, free)) < free:
                    continue
                # It is full, or it was given as many as asked for, and there may be more.
                groups.remove(group)
                self._awaits_slot = True
                is_drained = is_drained and free <= 0
            if not groups:
                return False
        return is_drained

    async def linger(self) -> bool:
        """Wait shortly for pushed jobs, if there have just been some; True if any came.

        Not with several groups: jobs of one could not be claimed while another waits.
        """
        group = self._groups[0]
        most = min(self._free(group), LINGER_FOR) if len(self._groups) == 1 else 0
        if self.stopping or self.in_doubt or most <= 0 or not self._was_busy:
            return False
        self._was_busy = False
        queues, seconds = self._order(), self._linger_at_most
        awaiting = self._store.await_jobs(
            self._worker_id, queues, group.topics, most, seconds=seconds
        )
        pushed = await self._begin(awaiting)
        if pushed < most:  # there are no more: no claim has to be sent before these are started
            await self._begin_runs()
        return pushed > 0

    def is_failing(self) -> bool:
        """Whether the last ``FAILING_AFTER`` claims failed."""
        return self._failures >= FAILING_AFTER

    @property
    def in_doubt(self) -> bool:
        """Whether a claim without an answer may have leased jobs unknown to this worker."""
        return time.monotonic() < self._in_doubt_until

    async def release_unknown(self) -> list[Lease]:
        """Release jobs that are leased to this worker without its knowledge; returns the leases.

        Only between two of its claims: a row of a claim in flight is not unknown. A run that has
        given its lease up began, and may not have stopped yet: its job waits for the watchdog.
        """
        self._start_claimed()
        unknown = self._leases.unknown(await self._store.held(self._worker_id))
        if unknown:
            log.warning(
                "giving back %s of a claim whose answer was lost", counted(len(unknown), "job")
            )
            await self._store.settle_free([Report(lease, Released()) for lease in unknown])
        return unknown

    async def _claim(self, queue: str, group: SlotGroup, free: int) -> list[Assignment]:
        asked_at = time.monotonic()
        claimed = await self._store.claim(self._worker_id, queue, group.topics, free)
        again_in = claimed.again_in
        if again_in is not None and (self.again_in is None or again_in < self.again_in):
            self.again_in = again_in
        events = self._store.events
        if JobsClaimed in events.wanted:
            seconds = time.monotonic() - asked_at
            jobs = len(claimed)
            events.publish(
                [JobsClaimed(worker_id=self._worker_id, queue=queue, jobs=jobs, seconds=seconds)]
            )
        return claimed

    async def _begin(self, claim: Awaitable[list[Assignment]]) -> int:
        """Await a claim and have its jobs started; returns their number."""
        asked_at = time.monotonic()
        try:
            claimed = await claim
        finally:
            if self._store.doubtful_claims != self._doubts:
                self._doubts = self._store.doubtful_claims
                longest = max(self._longest_lease, 2 * self._poll)
                self._in_doubt_until = time.monotonic() + longest
        if claimed:
            self._was_busy = True
            self._unstarted.append((claimed, asked_at))
            # Not now: if slots are left, the next claim is sent first, and the database works while
            # Python starts these.
            asyncio.get_running_loop().call_soon(self._start_claimed)
        return len(claimed)

    def _start_claimed(self) -> None:
        unstarted, self._unstarted = self._unstarted, []
        for claimed, asked_at in unstarted:
            self._start(claimed, asked_at)

    def _free(self, group: SlotGroup) -> int:
        """Return for how many more jobs of a group there is room."""
        if len(self._groups) > 1:
            self._start_claimed()  # of which group they are does not matter then
        unstarted = 0
        for claimed, _ in self._unstarted:
            unstarted += len(claimed)
        return group.free_slots(unstarted)

    def _has_enough(self) -> bool:
        """Whether so many slots of a group are free that a claim is worth its cost."""
        for group in self._groups:  # noqa: SIM110 - without a generator, before each claim
            if self._free(group) >= max(1, group.slots // 4):
                return True
        return False

    async def _wait_for_slots(self) -> None:
        """Wait for a free slot, and up to ``GATHER`` seconds for more of them."""
        while not any(self._free(group) > 0 for group in self._groups) and not self.stopping:
            self._start_claimed()
            self._slot_freed.clear()
            if not self.in_doubt:
                await self._slot_freed.wait()
            elif not await self._within(self._poll, self._slot_freed):
                await self.release_unknown()
        until = time.monotonic() + GATHER
        while not (self._has_enough() or self.stopping):
            self._slot_freed.clear()
            if not await self._within(until - time.monotonic(), self._slot_freed):
                break

    def _order(self) -> list[str]:
        """Return the queues in the order given, or in random order by their weights."""
        if len(self._queues) == 1 or not isinstance(self._queues, Mapping):
            return list(self._queues)
        left = dict(self._queues)
        order = []
        while left:
            names = list(left)
            (name,) = random.choices(names, weights=[left[each] for each in names])  # noqa: S311
            order.append(name)
            del left[name]
        return order

    @staticmethod
    async def _within(seconds: float, event: asyncio.Event) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return False
        return True
