"""Who waits for which jobs: streams, their grants, and the lanes in which they stand in line.

Streams that wait for the same topics in the same queue form a lane. News of jobs goes to one of a
lane at a time, and to the next only when the one before took all that it could.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from pulsed.job import Assignment, TopicPolicy

OFFER_PATIENCE = 0.05
"""Seconds after which an offer that was not taken goes to the next."""


@dataclass(eq=False, slots=True)
class Grant:
    """A worker's consent to take so many jobs."""

    stream: Stream
    id: int
    credits: int
    queues: tuple[str, ...]
    wait: float
    may_hold: bool = False
    stands_in: list[Lane] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False, slots=True)
class Hold:
    """Jobs that are claimed for a stream while its worker is asked whether it takes them."""

    stream: Stream
    lane: Lane
    most: int
    under_way: bool = False
    """Whether the database is just being asked."""
    claimed: list[Assignment] | None = None
    """None until it has answered."""
    seen: int = 0
    """The lane's news before the claim."""
    grant: Grant | None = None
    """What is answered as soon as the claim has come back."""
    lapsed: bool = False
    """Whether nobody wants them any more: what is claimed is given back."""


class Stream:
    """One worker's stream, as the dispatcher sees it. Its owner sends what it is given."""

    def __init__(
        self,
        worker_id: UUID,
        queues: tuple[str, ...],
        topics: list[TopicPolicy],
        *,
        wants_offers: bool,
        deliver: Callable[[Grant, list[Assignment]], None],
        offer: Callable[[str], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.worker_id = worker_id
        self.queues = queues
        self.topics = topics
        self.key = repr(sorted(topics, key=lambda policy: policy.topic))
        self.wants_offers = wants_offers
        self.deliver = deliver
        self.offer = offer
        self.fail = fail
        self.work: deque[Grant | Hold] = deque()
        """What the database is to be asked for, in this order."""
        self.holds: dict[str, Hold] = {}
        """By queue."""
        self.room = 0
        """How many jobs may be held for the worker: what its last grant had left."""
        self.lost_answers = 0
        """Claims without an answer that the worker has not been told of."""
        self.unanswered = 0
        self.closed = False


class Attendant(Protocol):
    """What a lane has done for the one whose turn it is."""

    def serve_standing(self, grant: Grant) -> None:
        """Look again for a grant."""

    def hold_for(self, stream: Stream, lane: Lane) -> None:
        """Claim for a stream that is just asked whether it wants jobs."""

    def lapse(self, stream: Stream, lane: Lane) -> None:
        """Do without a stream that did not take its offer."""


class Lane:
    """The streams that wait for the same topics in one queue."""

    def __init__(self, queue: str, attendant: Attendant) -> None:
        self.queue = queue
        self.news = 0
        """Counts hints, so that one which comes during a claim is not missed."""
        self.waiting: dict[Grant | Stream, None] = {}
        self._attendant = attendant
        self._turn: Grant | Stream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._again = False

    def hint(self) -> None:
        """Jobs may have arrived: let the first in line look."""
        self.news += 1
        if self._turn is None:
            self._advance()
        else:
            self._again = True
            if isinstance(self._turn, Stream):
                self._attendant.hold_for(self._turn, self)

    def add(self, waiter: Grant | Stream, seen: int) -> None:
        """Join the end of the line, unless there was news since ``seen``: then look again."""
        self.waiting[waiter] = None
        if self.news != seen and self._turn is None:
            self._advance()

    def take(self, waiter: Stream) -> None:
        """Note that an offer was taken: what the claim finds will end the turn."""
        if waiter is self._turn:
            self._stop_timer()

    def looked(self, waiter: Grant | Stream, *, full: bool) -> None:
        """Note what a claim found: all that was asked for means that there may be more."""
        if waiter is self._turn:
            self._turn = None
            self._stop_timer()
            if full or self._again:
                self._again = False
                self._advance()

    def leave(self, waiter: Grant | Stream) -> None:
        """Be gone; if it was its turn, the next one looks."""
        self.waiting.pop(waiter, None)
        self.looked(waiter, full=True)

    @property
    def is_empty(self) -> bool:
        """Whether nobody is here."""
        return not self.waiting and self._turn is None

    def _advance(self) -> None:
        if not self.waiting:
            return
        self._turn = waiter = next(iter(self.waiting))
        del self.waiting[waiter]
        if isinstance(waiter, Grant):
            self._attendant.serve_standing(waiter)
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(OFFER_PATIENCE, self._attendant.lapse, waiter, self)
            waiter.offer(self.queue)
            self._attendant.hold_for(waiter, self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
