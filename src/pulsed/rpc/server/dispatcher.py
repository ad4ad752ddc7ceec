"""One claim loop for all streams of a server.

A grant is a worker's request for so many jobs. The loop serves streams in turn, one grant of each
and one queue of it at a time, and answers a grant when it is full or all its queues were claimed
from. A grant that finds nothing stands: it waits in a wait list (``wait_list.py``) until jobs may
have arrived, or its time is over.

An answer is bounded by bytes: over a slow line the first jobs start while the next are in flight.
The size of the last jobs decides how many to claim; what does not fit is given back.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from random import Random

from pulsed.batches import first_batch
from pulsed.errors import StorageError
from pulsed.model.job import Assignment
from pulsed.model.limit import LimitRule
from pulsed.model.outcome import Released, Report
from pulsed.rpc.messages.contract import PART
from pulsed.rpc.server.wait_list import Grant, Stream, WaitList, owner_of, size_of
from pulsed.store.base import Store
from pulsed.store.listener import SCHEDULES, Listener, concerns
from pulsed.store.results import Assignments
from pulsed.wording import counted

log = logging.getLogger("pulsed.server")

GIVE_BACK_TRIES = 5

_random = Random()  # noqa: S311 - jitter


class Dispatcher:
    """Claims jobs for the streams of one server."""

    def __init__(self, store: Store, *, poll: float = 1.0) -> None:
        self._store = store
        self._poll = poll
        self._turns: deque[Stream] = deque()
        """Streams with grants to serve, each once."""
        self._serving: Grant | None = None
        self._work = asyncio.Event()
        self._wait_lists: dict[tuple[str, str], WaitList] = {}
        self._named: Counter[tuple[str, str]] = Counter()
        """How many streams have named a queue, by queue and key of the stream."""
        self._queues: Counter[str] = Counter()
        """The same by queue alone."""
        self._listener: Listener | None = None
        self._giving_back: set[asyncio.Task[None]] = set()
        self._draining = False
        self.streams: set[Stream] = set()
        self.on_schedules: Callable[[], None] = lambda: None
        self.claims = 0
        """How many claims were made."""

    # -- streams --------------------------------------------------------------------------------

    def join(self, stream: Stream) -> None:
        """Add a stream."""
        self.streams.add(stream)
        self._hear(stream, stream.queues)

    def leave(self, stream: Stream) -> None:
        """Remove a stream; what was claimed for it, or is being claimed, is given back."""
        stream.closed = True
        self.streams.discard(stream)
        grants = list(stream.grants)
        stream.grants.clear()
        self.give_back([each for grant in grants for each in grant.claimed])
        for wait_list in list(self._wait_lists.values()):
            standing = [each for each in wait_list.waiting if owner_of(each) is stream]
            for waiter in [*standing, *grants, stream]:
                wait_list.leave(waiter)
        self._forget(stream)

    def limit_rules(self) -> dict[str, LimitRule]:
        """Return how the connected workers compute the keys of their topics with a limit."""
        distinct = {stream.key: stream.topics for stream in self.streams}
        policies = itertools.chain.from_iterable(distinct.values())
        return {each.topic: rule for each in policies if (rule := each.limit) is not None}

    def grant(self, grant: Grant) -> None:
        """Accept a grant; it will be answered once."""
        grant.stream.unanswered += 1
        grant.stream.withdrawn = self._draining
        if self._draining:  # it was in flight when the worker was told to go elsewhere
            grant.wait = 0.0
        self._hear(grant.stream, grant.queues)
        if not self._stands_at_once(grant):
            self._enqueue(grant)

    def answer_all(self, stream: Stream | None = None) -> None:
        """Answer every standing grant, for the server stops; or those of one stream that stops."""
        self._draining = self._draining or stream is None
        leaving = list(self.streams) if stream is None else [stream]
        for each in leaving:
            each.withdrawn = True
            for wait_list in list(self._wait_lists.values()):
                wait_list.leave(each)
        for wait_list in list(self._wait_lists.values()):
            for waiter in list(wait_list.waiting):
                if isinstance(waiter, Grant) and stream in (None, waiter.stream):
                    self._expire(waiter)
        for each in leaving:  # last: a turn passed on above may have gone to one of these
            for grant in each.grants:
                grant.wait = 0.0
        if self._serving is not None and stream in (None, self._serving.stream):
            self._serving.wait = 0.0

    # -- news -----------------------------------------------------------------------------------

    def hint(self, names: Collection[str] | None = None) -> bool:
        """Pass on a notification: jobs or schedules may have arrived; by default, of any name.

        Returns whether a stream has the turn to claim from one of the queues.
        """
        is_claiming = False
        for wait_list in list(self._wait_lists.values()):
            if names is None or wait_list.queue in names:
                wait_list.hint()
                is_claiming = is_claiming or wait_list.has_turn
        if concerns(names, SCHEDULES):
            self.on_schedules()
        return is_claiming

    async def listen(self) -> None:
        """Listen for notifications of jobs that other processes submitted; forever."""
        async with self._store.listen((*self._queues, SCHEDULES), self.hint) as listener:
            self._listener = listener
            listener.hear(self._queues)  # also those that were named while it opened
            await asyncio.Event().wait()

    async def poll(self) -> None:
        """Poll all wait lists at intervals, with or without notifications; forever."""
        while True:
            await asyncio.sleep(self._poll * _random.uniform(0.9, 1.1))
            for wait_list in list(self._wait_lists.values()):
                wait_list.hint()

    def _hear(self, stream: Stream, queues: Iterable[str]) -> None:
        new = [queue for queue in queues if queue not in stream.named]
        if new:
            stream.named.update(new)
            self._named.update((queue, stream.key) for queue in new)
            self._queues.update(new)
            if self._listener is not None:
                self._listener.hear(new)

    def _forget(self, stream: Stream) -> None:
        """Forget the wait lists and queues that only this stream, which is gone, has named."""
        for queue in stream.named:
            place = (queue, stream.key)
            self._named[place] -= 1
            self._queues[queue] -= 1
            if not self._named[place]:
                del self._named[place]
                self._wait_lists.pop(place, None)
        alone = [queue for queue in stream.named if not self._queues[queue]]
        for queue in alone:
            del self._queues[queue]
        stream.named.clear()
        if alone and self._listener is not None:
            self._listener.forget(alone)

    # -- claiming -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the streams in turn, one grant of each and one queue of it; forever."""
        while True:
            while self._turns:
                stream = self._turns.popleft()
                if stream.grants:
                    grant = stream.grants.popleft()
                    if stream.grants:
                        self._turns.append(stream)
                    self._serving = grant
                    await self.serve(grant)
                    self._serving = None
            self._work.clear()
            await self._work.wait()

    def _enqueue(self, grant: Grant) -> None:
        stream = grant.stream
        if stream.closed:
            for wait_list in grant.seen:
                wait_list.leave(grant)
            return
        grant.asked, grant.claimed, grant.is_cut = 0, [], False
        stream.grants.append(grant)
        self._take_turn(stream)

    def _take_turn(self, stream: Stream) -> None:
        if len(stream.grants) == 1:
            self._turns.append(stream)
        self._work.set()

    async def serve(self, grant: Grant) -> None:
        """Claim for a grant from its next queue; if full or at the last, answer or let it stand."""
        stream = grant.stream
        credit = min(grant.credits, stream.pace)
        try:
            await self._claim_next_queue(grant, max(1, credit - len(grant.claimed)))
        except Exception as error:  # noqa: BLE001 - the stream's owner reports it
            self._fail(grant, error)
            return
        full = grant.is_cut or len(grant.claimed) >= credit
        if not full and grant.asked < len(grant.queues) and not stream.closed:
            stream.grants.appendleft(grant)  # other streams are served before its next queue
            self._take_turn(stream)
            return
        # It may be full before it reached the queue whose wait list gave it the turn.
        for wait_list in grant.seen:
            wait_list.pass_on(grant)
        self._finish(grant, grant.claimed, full=full)

    async def _claim_next_queue(self, grant: Grant, wanted: int) -> None:
        queue = grant.queues[grant.asked]
        grant.asked += 1
        wait_list = self._wait_list(queue, grant.stream.key)
        grant.seen[wait_list] = wait_list.news
        self.claims += 1
        found = await self._claim(grant, queue, wanted)
        if found.again_in is not None:
            wait_list.hint_in(found.again_in)
        self._take(grant, found)
        wait_list.claimed(grant, full=len(found) == wanted)

    def _take(self, grant: Grant, found: list[Assignment]) -> None:
        """Take as many jobs as fit into the answer, and give the others back."""
        grant.stream.note_sizes(found)
        claimed = [*grant.claimed, *found]
        taken = len(first_batch(claimed, size_of, PART))
        grant.is_cut = taken < len(claimed)
        self.give_back(claimed[taken:])
        grant.claimed = claimed[:taken]

    def _fail(self, grant: Grant, error: Exception) -> None:
        # The claim may have been committed: the worker must check for jobs it does not know of.
        stream = grant.stream
        for wait_list in grant.seen:
            wait_list.failed(grant)
        self._settled(grant)
        if stream.closed:
            self.give_back(grant.claimed)
        elif grant.claimed:
            stream.deliver(grant, grant.claimed)
        stream.fail(error)

    async def _claim(self, grant: Grant, queue: str, most: int) -> Assignments:
        stream, doubts = grant.stream, self._store.doubtful_claims
        try:
            return await self._store.claim(stream.worker_id, queue, stream.topics, most)
        finally:
            grant.lost_answers += self._store.doubtful_claims - doubts

    def _finish(self, grant: Grant, claimed: list[Assignment], *, full: bool) -> None:
        stream = grant.stream
        if stream.closed:
            self.give_back(claimed)
            return
        if not claimed and grant.wait > 0 and not grant.lost_answers:
            self._let_stand(grant)
            return
        self._answer(grant, claimed, full=full)

    def _answer(self, grant: Grant, claimed: list[Assignment], *, full: bool) -> None:
        stream = grant.stream
        self._settled(grant)
        stream.deliver(grant, claimed)
        if not stream.wants_offers or stream.withdrawn:
            return
        if not full:
            for wait_list, seen in grant.seen.items():
                wait_list.add(stream, seen)
        elif len(claimed) < grant.credits:  # else the worker takes the queue for empty
            for queue in grant.queues[grant.asked - 1 :]:
                stream.offer(queue)

    def _stands_at_once(self, grant: Grant) -> bool:
        """Let a grant stand without a claim if its stream is in line: the last was not full."""
        if grant.wait <= 0:
            return False
        wait_lists = [self._wait_list(queue, grant.stream.key) for queue in grant.queues]
        if not all(grant.stream in wait_list.waiting for wait_list in wait_lists):
            return False
        grant.seen = {wait_list: wait_list.news for wait_list in wait_lists}
        self._let_stand(grant)
        return True

    def _let_stand(self, grant: Grant) -> None:
        if grant.timer is None:
            loop = asyncio.get_running_loop()
            grant.timer = loop.call_later(grant.wait, self._expire, grant)
        if any(wait_list.news != seen for wait_list, seen in grant.seen.items()):
            self._enqueue(grant)  # a hint arrived during the claim
            return
        for wait_list in grant.seen:
            wait_list.waiting.pop(grant.stream, None)  # no offers while this stands
            wait_list.waiting[grant] = None

    def _serve_standing(self, grant: Grant) -> None:
        """Claim again, in all its wait lists, for a grant that has the turn in one of them."""
        for wait_list in grant.seen:
            wait_list.call(grant)
        self._enqueue(grant)

    def _expire(self, grant: Grant) -> None:
        """Answer a grant that found nothing before its wait was over."""
        grant.wait = 0.0  # if a claim for it is in flight, that one is the last
        standing = [wait_list for wait_list in grant.seen if grant in wait_list.waiting]
        for wait_list in standing:
            del wait_list.waiting[grant]
            # It was in line: other waiters have handled these hints.
            grant.seen[wait_list] = wait_list.news
        if standing:
            self._answer(grant, [], full=False)

    @staticmethod
    def _settled(grant: Grant) -> None:
        grant.stream.unanswered -= 1
        if grant.timer is not None:
            grant.timer.cancel()

    def _wait_list(self, queue: str, key: str) -> WaitList:
        wait_list = self._wait_lists.get((queue, key))
        if wait_list is None:
            wait_list = self._wait_lists[queue, key] = WaitList(queue, self._serve_standing)
        return wait_list

    # -- giving back ----------------------------------------------------------------------------

    def give_back(self, claimed: list[Assignment]) -> None:
        """Release jobs that were claimed for a stream and could not be sent to it."""
        if claimed:
            task = asyncio.get_running_loop().create_task(self._release(claimed))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def given_back(self) -> None:
        """Wait until no release is in flight."""
        while self._giving_back:
            await asyncio.wait(self._giving_back)

    async def _release(self, claimed: list[Assignment]) -> None:
        log.info("giving back %s that could not be sent", counted(len(claimed), "job"))
        reports = [Report.of(each, Released()) for each in claimed]
        for _ in range(GIVE_BACK_TRIES):
            try:
                _, locked = await self._store.settle_free(reports)
            except StorageError as error:
                log.warning("cannot give back %s (%s)", counted(len(reports), "job"), error)
            else:
                self.hint()
                reports = [each for each in reports if each.lease in locked]
                if not reports:
                    return
            await asyncio.sleep(self._poll)
        log.warning("gave up on %s: their leases will expire", counted(len(reports), "job"))
