"""One claim loop for all streams of a server.

Streams hand in grants; the loop takes them in turn, one of each stream, claims for it and answers.
A grant that finds nothing stands until its wait is over. News of jobs, or the poll, goes to one of
a lane at a time. So a thousand idle streams cost one claim a poll, and one job wakes one worker.

A stream that wants offers is told that there may be jobs, and must then grant: a worker that froze
has jobs offered, but none given. Meanwhile we claim for it, as many as it could last take, so that
its grant finds them here. What is not taken goes back, and the offer to the next in the lane.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from random import Random

from pulsed.errors import StorageError
from pulsed.job import Assignment, Released, Report
from pulsed.rpc.lanes import Grant, Hold, Lane, Stream
from pulsed.rpc.wire import LARGEST_ASSIGNMENT_BATCH
from pulsed.store.base import SCHEDULES, Store

log = logging.getLogger("pulsed.server")

GIVE_BACK_TRIES = 5
AGAIN = -1
"""As what was seen of a lane's news: there may be more."""

_random = Random()  # noqa: S311 - jitter


class Dispatcher:
    """Feeds the streams of one server."""

    def __init__(self, store: Store, *, poll: float = 1.0) -> None:
        self._store = store
        self._poll = poll
        self._turns: deque[Stream] = deque()
        """Streams with grants to look at, each once."""
        self._serving: Grant | None = None
        self._work = asyncio.Event()
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._queues: set[str] = set()
        self._queues_changed = asyncio.Event()
        self._giving_back: set[asyncio.Task[None]] = set()
        self.streams: set[Stream] = set()
        self.on_schedules: Callable[[], None] = lambda: None
        self.claims = 0
        """How often the database was asked."""

    # -- streams --------------------------------------------------------------------------------

    def join(self, stream: Stream) -> None:
        """Take a stream in."""
        self.streams.add(stream)
        self._hear(stream.queues)

    def leave(self, stream: Stream) -> None:
        """Let a stream go; what is claimed for it meanwhile is given back."""
        stream.closed = True
        self.streams.discard(stream)
        grants = [each for each in stream.work if isinstance(each, Grant)]
        stream.work.clear()
        for hold in list(stream.holds.values()):
            self._drop(hold)
        for lane in list(self._lanes.values()):
            standing = [each for each in lane.waiting if _owner(each) is stream]
            for waiter in [*standing, *grants, stream]:
                lane.leave(waiter)
        self._sweep()

    def grant(self, grant: Grant) -> None:
        """Take a grant; it will be answered once."""
        grant.stream.unanswered += 1
        self._hear(grant.queues)
        hold = grant.stream.holds.get(grant.queues[0])
        if hold is None or len(grant.queues) > 1 or grant.wait > 0:
            self._enqueue(grant)
        elif hold.claimed is not None:
            self._hand_over(hold, grant)
        elif hold.under_way and hold.grant is None:
            hold.grant = grant
            hold.lane.take(grant.stream)
        else:
            self._enqueue(grant)

    def answer_all(self, stream: Stream | None = None) -> None:
        """Answer every grant that stands, or those of one stream: somebody is going away."""
        for lane in list(self._lanes.values()):
            for waiter in list(lane.waiting):
                if isinstance(waiter, Grant) and stream in (None, waiter.stream):
                    self._expire(waiter)
        for each in self.streams if stream is None else [stream]:
            for item in each.work:
                if isinstance(item, Grant):
                    item.wait = 0.0
        if self._serving is not None and stream in (None, self._serving.stream):
            self._serving.wait = 0.0

    # -- news -----------------------------------------------------------------------------------

    def hint(self) -> None:
        """Something may have arrived somewhere."""
        for lane in list(self._lanes.values()):
            lane.hint()
        self.on_schedules()

    async def listen(self) -> None:
        """Hear of jobs that others submitted; for ever."""
        while True:
            self._queues_changed.clear()
            async with self._store.listen((*self._queues, SCHEDULES), self.hint):
                await self._queues_changed.wait()

    async def poll(self) -> None:
        """Look from time to time, whatever was heard; for ever."""
        while True:
            await asyncio.sleep(self._poll * _random.uniform(0.9, 1.1))
            for lane in list(self._lanes.values()):
                lane.hint()

    def _hear(self, queues: Iterable[str]) -> None:
        if not self._queues.issuperset(queues):
            self._queues.update(queues)
            self._queues_changed.set()

    # -- claiming -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve grants and holds, one of each stream in turn; for ever."""
        while True:
            while self._turns:
                stream = self._turns.popleft()
                if stream.work:
                    item = stream.work.popleft()
                    if stream.work:
                        self._turns.append(stream)
                    if isinstance(item, Hold):
                        await self._fill(item)
                    else:
                        self._serving = item
                        await self.serve(item)
                        self._serving = None
            self._work.clear()
            await self._work.wait()

    def _enqueue(self, item: Grant | Hold) -> None:
        stream = item.stream
        if stream.closed:
            if isinstance(item, Grant):
                for lane in item.stands_in:
                    lane.leave(item)
            return
        stream.work.append(item)
        if len(stream.work) == 1:
            self._turns.append(stream)
        self._work.set()

    async def serve(self, grant: Grant) -> None:
        """Claim for one grant and answer it, or let it stand."""
        stream = grant.stream
        claimed: list[Assignment] = []
        credit = min(grant.credits, LARGEST_ASSIGNMENT_BATCH)
        looked: list[tuple[Lane, int]] = []
        try:
            for queue in grant.queues:
                lane = self._lane(queue, stream.key)
                looked.append((lane, lane.news))
                wanted = credit - len(claimed)
                hold = stream.holds.get(queue)
                if hold is not None and hold.claimed is not None:
                    found, looked[-1] = self._taken(hold, wanted)
                else:
                    found = await self._claim(stream, queue, wanted)
                claimed += found
                lane.looked(grant, full=len(found) == wanted)
                lane.looked(stream, full=len(found) == wanted)
                if len(found) == wanted:
                    break
        except Exception as error:  # noqa: BLE001 - the stream's owner says what it was
            # The claim may have been committed: the worker must look for jobs it does not know of.
            for lane, _ in looked:  # the others wait for the poll: what failed now fails again
                lane.looked(grant, full=False)
                lane.looked(stream, full=False)
            self._settled(grant)
            if claimed and not stream.closed:
                stream.deliver(grant, claimed)
            stream.fail(error)
            return
        self._finish(grant, claimed, looked, full=len(claimed) == credit)

    async def _claim(self, stream: Stream, queue: str, most: int) -> list[Assignment]:
        doubts = self._store.doubtful_claims
        self.claims += 1
        try:
            return await self._store.claim(stream.worker_id, queue, stream.topics, most)
        finally:
            stream.lost_answers += self._store.doubtful_claims - doubts

    def _finish(
        self,
        grant: Grant,
        claimed: list[Assignment],
        looked: list[tuple[Lane, int]],
        *,
        full: bool,
    ) -> None:
        stream = grant.stream
        if stream.closed:
            self.give_back(claimed)
            return
        if not claimed and grant.wait > 0 and not stream.lost_answers:
            self._let_stand(grant, looked)
            return
        self._settled(grant)
        stream.room = grant.credits - len(claimed) if grant.may_hold else 0
        if stream.lost_answers:  # the worker will look for lost jobs: what we hold is none
            stream.room = 0
            for hold in list(stream.holds.values()):
                self._drop(hold)
        stream.deliver(grant, claimed)
        if stream.wants_offers and not full:
            for lane, seen in looked:
                lane.add(stream, seen)

    # -- holding --------------------------------------------------------------------------------

    def hold_for(self, stream: Stream, lane: Lane) -> None:
        """Claim for a stream that is just asked whether it wants jobs: as many as it has room."""
        hold = stream.holds.get(lane.queue)
        if hold is None:
            room = stream.room - sum(each.most for each in stream.holds.values())
            if room > 0 and not stream.work:
                hold = Hold(stream, lane, min(room, LARGEST_ASSIGNMENT_BATCH))
                stream.holds[lane.queue] = hold
                self._enqueue(hold)
        elif hold.claimed == []:
            hold.claimed = None
            self._enqueue(hold)

    async def _fill(self, hold: Hold) -> None:
        """Claim what is to be held."""
        if hold.lapsed:
            return
        hold.under_way, hold.seen = True, hold.lane.news
        claimed: list[Assignment] = []
        try:
            claimed = await self._claim(hold.stream, hold.lane.queue, hold.most)
        except Exception as error:  # noqa: BLE001 - whoever grants will be told
            log.debug("could not claim for an offer: %s", error)
            self._drop(hold)
        hold.under_way = False
        grant, hold.grant = hold.grant, None
        too_soon = not claimed and hold.lane.news != hold.seen
        if grant is not None and too_soon:
            self._drop(hold)
        if hold.lapsed:
            self.give_back(claimed)
            if grant is not None:
                self._enqueue(grant)
        elif too_soon:
            self._enqueue(hold)
        else:
            hold.claimed = claimed
            if grant is not None:
                self._hand_over(hold, grant)

    def _hand_over(self, hold: Hold, grant: Grant) -> None:
        """Answer a grant with what is held."""
        most = min(grant.credits, LARGEST_ASSIGNMENT_BATCH)
        claimed, looked = self._taken(hold, most)
        full = len(claimed) == most
        hold.lane.looked(hold.stream, full=full)
        self._finish(grant, claimed, [looked], full=full)

    def _taken(self, hold: Hold, most: int) -> tuple[list[Assignment], tuple[Lane, int]]:
        """End a hold; returns so many of its jobs, and what was seen of the lane's news."""
        held = hold.claimed or []
        seen = AGAIN if len(held) == hold.most else hold.seen
        hold.claimed = held[most:]
        self._drop(hold)
        return held[:most], (hold.lane, seen)

    def _drop(self, hold: Hold) -> None:
        """End a hold; what is still in it goes back."""
        hold.lapsed = True
        if hold.stream.holds.get(hold.lane.queue) is hold:
            del hold.stream.holds[hold.lane.queue]
        self.give_back(hold.claimed or [])

    def lapse(self, stream: Stream, lane: Lane) -> None:
        """Give back what a stream did not take; then, or if we did not look, it is the next's."""
        hold = stream.holds.get(lane.queue)
        looked = hold is not None and hold.claimed is not None
        if hold is not None:
            self._drop(hold)
        lane.looked(stream, full=not looked)

    def _let_stand(self, grant: Grant, looked: list[tuple[Lane, int]]) -> None:
        if grant.timer is None:
            loop = asyncio.get_running_loop()
            grant.timer = loop.call_later(grant.wait, self._expire, grant)
        grant.stands_in = [lane for lane, _ in looked]
        for lane, seen in looked:
            lane.add(grant, seen)

    def serve_standing(self, grant: Grant) -> None:
        """Look again for a grant whose turn it is in one of its lanes."""
        for lane in grant.stands_in:
            lane.waiting.pop(grant, None)
        self._enqueue(grant)

    def _expire(self, grant: Grant) -> None:
        """Answer a grant that found nothing in all its time."""
        grant.wait = 0.0  # if it is being looked at just now, that look is the last
        standing = [lane for lane in grant.stands_in if grant in lane.waiting]
        for lane in standing:
            lane.waiting.pop(grant)
        if standing:
            self._settled(grant)
            if not grant.stream.closed:
                grant.stream.deliver(grant, [])

    @staticmethod
    def _settled(grant: Grant) -> None:
        grant.stream.unanswered -= 1
        if grant.timer is not None:
            grant.timer.cancel()

    def _lane(self, queue: str, key: str) -> Lane:
        lane = self._lanes.get((queue, key))
        if lane is None:
            lane = self._lanes[queue, key] = Lane(queue, self)
        return lane

    def _sweep(self) -> None:
        """Forget lanes in which nobody is; topics change with every deployment."""
        known = {stream.key for stream in self.streams}
        for place, lane in list(self._lanes.items()):
            if place[1] not in known and lane.is_empty:
                del self._lanes[place]

    # -- giving back ----------------------------------------------------------------------------

    def give_back(self, claimed: list[Assignment]) -> None:
        """Release what was claimed for a stream that ended before it could be sent."""
        if claimed:
            task = asyncio.get_running_loop().create_task(self._release(claimed))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def given_back(self) -> None:
        """Wait until everything that was to be given back has been."""
        while self._giving_back:
            await asyncio.wait(self._giving_back)

    async def _release(self, claimed: list[Assignment]) -> None:
        log.info("giving back %d jobs whose stream ended before they were sent", len(claimed))
        for _ in range(GIVE_BACK_TRIES):
            try:
                await self._store.settle([Report(each.lease, Released()) for each in claimed])
            except StorageError as error:
                log.warning("cannot give back %d jobs (%s)", len(claimed), error)
                await asyncio.sleep(self._poll)
            else:
                self.hint()
                return


def _owner(waiter: Grant | Stream) -> Stream:
    return waiter.stream if isinstance(waiter, Grant) else waiter
