"""Bulk acts in the background: how far they are, what stops them, and how many there may be."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pulsed.client.bulk import CANCEL
from pulsed.errors import InvalidOption, StorageError
from pulsed.model.job import JobFilter
from pulsed.web import works
from pulsed.web.works import Work, Works


class Pages:
    """A store whose only verb is the one that a bulk act begins with."""

    def __init__(self, list_jobs: Callable[..., Awaitable[Any]]) -> None:
        self.list_jobs = list_jobs


async def never(*_: Any, **__: Any) -> Any:
    await asyncio.Event().wait()


async def unreachable(*_: Any, **__: Any) -> Any:
    raise StorageError("the database is gone")


async def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("secret")


def a_work(number: int = 0) -> Work:
    return Work(id=str(number), act=CANCEL, what="jobs", expected=4, is_at_least=False)


def start(some: Works, verb: Callable[..., Awaitable[Any]], work: Work) -> None:
    store: Any = Pages(verb)
    some.start(store, CANCEL, JobFilter(topic="x"), work)


@pytest.mark.parametrize(
    "verb, says",
    [(unreachable, "the database is gone"), (broken, "the log of the dashboard's process")],
)
async def test_an_act_that_fails_says_so_and_ends(verb, says):
    work = a_work()
    start(Works(), verb, work)
    assert work.task is not None
    await work.task
    assert (work.has_ended, says in work.error, work.percent) == (True, True, 0)


async def test_a_few_at_once_and_no_more_until_one_ends():
    some = Works()
    for number in range(works.MOST_AT_ONCE):
        start(some, never, a_work(number))
    with pytest.raises(InvalidOption, match="in progress: wait for one to end"):
        start(some, never, a_work(99))
    await some.close()
    start(some, never, a_work(99))
    assert some.get("99") is not None
    await some.close()


async def test_ended_ones_are_forgotten_after_a_while(monkeypatch):
    monkeypatch.setattr(works, "MOST_KEPT", 2)
    some = Works()
    for number in range(5):
        start(some, unreachable, a_work(number))
        await asyncio.sleep(0)
        work = some.get(str(number))
        assert work is not None
        assert work.task is not None
        await work.task
    assert [number for number in range(5) if some.get(str(number))] == [2, 3, 4]
