"""What a server remembers for calls that are made again, and how much of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsed.batches import Limits
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import METHODS
from pulsed.rpc.server.answers import ANSWERED_ONCE, Answers, RequestKey


class Work:
    """Answers of a given size, and how often they were made."""

    def __init__(self, size: int = 1_000) -> None:
        self.done = 0
        self._size = size

    async def __call__(self) -> Any:
        self.done += 1
        return pb.ListAuditLogRequest(actor="x" * self._size)


def request(number: int) -> RequestKey:
    return RequestKey("somebody", "ReplayJobs", str(number))


def test_every_method_that_is_answered_once_is_in_the_contract():
    assert set(METHODS) >= ANSWERED_ONCE


async def test_a_repetition_gets_the_answer_of_the_first_try():
    answers, work = Answers(), Work()
    first, again = [await answers.once(request(1), work) for _ in range(2)]
    assert first is again
    assert work.done == 1
    await answers.once(request(2), work)
    assert work.done == 2


async def test_also_while_the_first_try_is_under_way():
    answers, work, go = Answers(), Work(), asyncio.Event()

    async def slow() -> Any:
        await go.wait()
        return await work()

    tries = [asyncio.ensure_future(answers.once(request(1), slow)) for _ in range(3)]
    await asyncio.sleep(0)
    tries[0].cancel()  # the first caller has gone away
    go.set()
    await asyncio.gather(*tries[1:])
    assert work.done == 1


async def test_what_failed_is_done_anew_and_nothing_of_it_is_kept():
    answers, work = Answers(), Work()

    async def failing() -> Any:
        raise LookupError("no such job")

    with pytest.raises(LookupError, match="no such job"):
        await answers.once(request(1), failing)
    assert len(answers) == 0
    await answers.once(request(1), work)
    assert (work.done, len(answers)) == (1, 1)


async def test_they_are_bounded_by_number():
    answers, work = Answers(Limits(3, 10**9)), Work()
    for number in range(5):
        await answers.once(request(number), work)
    assert len(answers) == 3
    await answers.once(request(4), work)
    assert work.done == 5
    await answers.once(request(0), work)
    assert work.done == 6


async def test_they_are_bounded_by_bytes():
    answers, work = Answers(Limits(1_000, 10_000)), Work(size=1_000)
    for number in range(100):
        await answers.once(request(number), work)
        assert answers.bytes <= 10_000
    assert 5 <= len(answers) < 10
    await answers.once(request(99), work)
    assert work.done == 100


async def test_one_that_is_larger_than_all_may_be_is_kept_until_the_next():
    answers, work = Answers(Limits(1_000, 10_000)), Work(size=20_000)
    for number in (1, 1, 2, 2):
        await answers.once(request(number), work)
    assert (work.done, len(answers)) == (2, 1)
