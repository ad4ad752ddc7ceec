"""The jobs of ``enqueue_many`` and ``enqueue_iter``, from the arguments of each."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, TypeAlias, TypeVar, cast

from pulsed.batches import Gathering, Limits, batches, text_size
from pulsed.errors import InvalidArguments, InvalidOption
from pulsed.handler import Call, Handler, job_maker
from pulsed.handler.registry import job_template
from pulsed.model.ids import new_job_id, new_job_ids
from pulsed.model.job import NewJob
from pulsed.model.job_batch import JobBatch

T = TypeVar("T")

Bound: TypeAlias = Call[T] | tuple[Any, ...]
"""The arguments of one job: ``job.bind(...)``, or a tuple of positional ones."""

FIRST_SLICE, LARGEST_SLICE = 16, 500
"""Calls of ``enqueue_iter`` that are encoded together, at first and at most…"""
SLICE_BYTES = 256 * 1024
"""…and at most so many that their payloads have this size, if they are as large as the last ones.
"""

_NO_KEYWORDS: Mapping[str, Any] = {}


class JobMaker:
    """Makes the jobs of one handler, with the options of one ``using(...)``."""

    def __init__(self, handler: Handler[Any], options: Mapping[str, Any], connection: Any) -> None:
        self._handler = handler
        self._options = options
        self._connection = connection
        self._make = job_maker(handler.topic, handler, options)
        self._template = job_template(handler.topic, handler, options)

    def one(self, call: Bound[Any]) -> NewJob:
        """Return the job of a call."""
        if isinstance(call, tuple):
            payload = self._handler.encode(call, _NO_KEYWORDS)
            return self._make(payload=payload, id=new_job_id())
        if isinstance(call, Call) and call.topic == self._handler.topic:
            make = self._make
            if call.options is not self._options:
                options = {**self._options, **self._without_conn(call)}
                make = job_maker(call.topic, self._handler, options)
            return make(payload=call.payload, id=new_job_id())
        raise self._not_ours(call)

    def many(self, calls: Sequence[Bound[Any]]) -> Sequence[NewJob]:
        """Return the jobs of calls; as a batch, if they have nothing of their own but arguments."""
        if self._template is None or not _are_tuples(calls):
            return list(map(self.one, calls))
        return self._batch(self._template, self._encoded(calls))

    def batches(self, calls: Iterable[Bound[Any]], limits: Limits) -> Iterator[Sequence[NewJob]]:
        """Yield the jobs of calls in batches within the limits."""
        rest = iter(calls)
        if self._template is not None:
            first: list[Bound[Any]] = []
            gathering: Gathering[str] = Gathering(text_size, limits)
            for some in self._payloads(rest, limits.items, first):
                for payloads in gathering.extend(some):
                    yield self._batch(self._template, payloads)
            if payloads := gathering.take():
                yield self._batch(self._template, payloads)
            rest = chain(first, rest)
        yield from batches(map(self.one, rest), _size_of, limits)

    async def abatches(
        self, calls: Iterable[Bound[Any]] | AsyncIterable[Bound[Any]], limits: Limits
    ) -> AsyncIterator[Sequence[NewJob]]:
        """Yield the jobs of calls, from a sync or async source, in batches within the limits."""
        if not isinstance(calls, AsyncIterable):
            for batch in self.batches(calls, limits):
                yield batch
            return
        gathering = Gathering(_size_of, limits)
        async for call in calls:
            for full in gathering.add(self.one(call)):
                yield full
        if rest := gathering.take():
            yield rest

    def _payloads(
        self, calls: Iterator[Bound[Any]], batch: int, other: list[Bound[Any]]
    ) -> Iterator[list[str]]:
        """Yield the payloads of calls until some are no tuples, which are left in ``other``.

        No more are taken from the source than belong to one batch of so many.
        """
        size, room = FIRST_SLICE, batch
        while some := list(islice(calls, min(size, room))):
            if not _are_tuples(some):
                other += some
                return
            payloads = self._encoded(some)
            yield payloads
            size = min(LARGEST_SLICE, SLICE_BYTES // max(map(text_size, payloads)) or 1)
            room = room - len(some) or batch

    def _encoded(self, calls: Sequence[Bound[Any]]) -> list[str]:
        return self._handler.encode_many(cast("Sequence[tuple[Any, ...]]", calls))

    def _batch(self, template: NewJob, payloads: Sequence[str]) -> JobBatch:
        return JobBatch(template, new_job_ids(len(payloads)), payloads, is_untried=True)

    def _without_conn(self, call: Call[Any]) -> dict[str, Any]:
        """Return the options of a call; its ``conn`` must be the one that stores all calls."""
        options = dict(call.options)
        if options.pop("conn", self._connection) is not self._connection:
            raise InvalidOption(
                "A call was bound with another conn= than the one that stores it: say "
                "job.using(conn=...).enqueue_many(...), and bind the calls without conn=."
            )
        return options

    def _not_ours(self, call: object) -> InvalidArguments:
        given = f"bound to {call.topic!r}" if isinstance(call, Call) else f"{call!r:.100}"
        return InvalidArguments(
            f"{self._handler.topic!r} takes its own bind(...) or a tuple of arguments for each "
            f"job, not {given}."
        )


def _are_tuples(calls: Sequence[Bound[Any]]) -> bool:
    return set(map(type, calls)) == {tuple}


def _size_of(job: NewJob) -> int:
    return text_size(job.payload)
