"""Wait lists: which stream gets the turn when jobs may have arrived.

Streams that wait for the same topics in the same queue form a wait list. A hint, which is a
notification of jobs or a poll, goes to one waiter of a wait list at a time, and to the next only
when the claim before was full. So a thousand idle streams cost one claim a poll, and one job wakes
one worker.

A stream that wants offers is notified that there may be jobs, and must then grant: a frozen worker
is offered jobs, but assigned none. An offer that is not taken goes to the next in the wait list.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from uuid import UUID

from pulsed.batches import text_size
from pulsed.model.job import Assignment, TopicPolicy
from pulsed.rpc.messages.contract import LARGEST_ASSIGNMENT_BATCH, PART

OFFER_TIMEOUT = 0.05
"""Seconds after which an offer that was not taken goes to the next in the wait list."""
FIRST_CLAIM = 100
"""Jobs to claim for a stream before their size is known."""
GROWTH = 4
ASSIGNMENT_BYTES = 200
"""About what a job takes besides its payload."""


@dataclass(eq=False, slots=True)
class Grant:
    """A worker's request for at most ``credits`` jobs."""

    stream: Stream
    id: int
    credits: int
    queues: tuple[str, ...]
    wait: float
    lost_answers: int = 0
    asked: int = 0
    """How many of its queues were claimed from in this round."""
    claimed: list[Assignment] = field(default_factory=list)
    """The jobs that were claimed in this round."""
    is_cut: bool = False
    """More was found than fits into an answer."""
    seen: dict[WaitList, int] = field(default_factory=dict)
    """Its wait lists, each with its ``news`` as of the last claim there."""
    timer: asyncio.TimerHandle | None = None


class Stream:
    """One worker's stream, as the dispatcher sees it. Its owner sends what the callbacks get."""

    def __init__(
        self,
        worker_id: UUID,
        queues: tuple[str, ...],
        topics: Sequence[TopicPolicy],
        *,
        wants_offers: bool,
        deliver: Callable[[Grant, list[Assignment]], None],
        offer: Callable[[str], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.worker_id = worker_id
        self.queues = queues
        self.topics = topics
        policies_text = repr(sorted(topics, key=lambda policy: policy.topic))
        self.key = sha256(policies_text.encode()).hexdigest()  # thousands of topics are a megabyte
        self.wants_offers = wants_offers
        self.deliver = deliver
        self.offer = offer
        self.fail = fail
        self.grants: deque[Grant] = deque()
        self.named: set[str] = set()
        """The queues that it has named so far, in its Hello and in grants."""
        self.unanswered = 0
        self.pace = FIRST_CLAIM if wants_offers else LARGEST_ASSIGNMENT_BATCH
        """The most jobs to claim at once, estimated from the size of the last ones."""
        self.withdrawn = False
        """It is about to stop: no offers until it grants again."""
        self.closed = False

    def note_sizes(self, found: list[Assignment]) -> None:
        """Estimate from the size of jobs how many fit into an answer."""
        if found:
            average = sum(map(size_of, found)) // len(found)
            most = min(LARGEST_ASSIGNMENT_BATCH, GROWTH * self.pace)
            self.pace = max(1, min(most, PART.bytes // average))


class WaitList:
    """The streams that wait for the same topics in one queue; one at a time has the turn."""

    def __init__(self, queue: str, serve: Callable[[Grant], None]) -> None:
        self.queue = queue
        self.news = 0
        """Counts hints, so that one that arrives during a claim is not missed."""
        self.waiting: dict[Grant | Stream, None] = {}
        self._serve = serve
        self._turn: Grant | Stream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._later: asyncio.TimerHandle | None = None

    @property
    def has_turn(self) -> bool:
        """Whether a waiter is about to claim."""
        return self._turn is not None

    def hint(self) -> None:
        """Note that jobs may have arrived; the first in line gets the turn, if it is free."""
        self.news += 1
        if self._turn is None:
            self._advance()

    def hint_in(self, seconds: float) -> None:
        """Hint after so many seconds: then a rate permits a job that is due."""
        if self._later is not None:
            self._later.cancel()
        self._later = asyncio.get_running_loop().call_later(seconds, self.hint)

    def add(self, stream: Stream, seen: int) -> None:
        """Put a stream in line; after hints since ``seen``, the first in line gets the turn."""
        self.waiting[stream] = None
        if self._turn is stream:  # its answer supersedes that offer, and says there is nothing
            self.pass_on(stream)
        elif self.news != seen and self._turn is None:
            self._advance()

    def call(self, grant: Grant) -> None:
        """Take a grant out of the line; it gets the turn, unless another waiter has it."""
        self.waiting.pop(grant, None)
        if self._turn is None:
            self._turn = grant

    def claimed(self, grant: Grant, *, full: bool) -> None:
        """End the turn after a claim; pass it on if the claim was full or a new hint arrived."""
        if self._turn in (grant, grant.stream):
            if full or self.news != grant.seen[self]:
                self.pass_on(self._turn)
            else:
                self._end_turn()

    def failed(self, grant: Grant) -> None:
        """End its turn; the others wait for the poll, because the same claim would fail again."""
        if self._turn in (grant, grant.stream):
            self._end_turn()

    def pass_on(self, waiter: Grant | Stream) -> None:
        """Give the turn to the next in line, if this waiter has it."""
        if waiter is self._turn:
            self._end_turn()
            self._advance()

    def leave(self, waiter: Grant | Stream) -> None:
        """Take a waiter out of the line; if it has the turn, the next one gets it."""
        self.waiting.pop(waiter, None)
        self.pass_on(waiter)

    def _advance(self) -> None:
        if not self.waiting:
            return
        self._turn = waiter = next(iter(self.waiting))
        del self.waiting[waiter]
        if isinstance(waiter, Grant):
            self._serve(waiter)
        else:
            waiter.offer(self.queue)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(OFFER_TIMEOUT, self.leave, waiter)

    def _end_turn(self) -> None:
        self._turn = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def size_of(assignment: Assignment) -> int:
    """Return about how many bytes of an answer a job takes."""
    return text_size(assignment.payload) + ASSIGNMENT_BYTES


def owner_of(waiter: Grant | Stream) -> Stream:
    """Return the stream that waits."""
    return waiter.stream if isinstance(waiter, Grant) else waiter
