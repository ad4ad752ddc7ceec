"""A decorated function: call it as before, or enqueue it.

``JobType[P, R]`` knows the parameters of the function (without a context) and what it returns, so
that a type checker sees a wrong argument of ``enqueue`` as it would see one of a call.
"""

from __future__ import annotations

import functools
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Generic, ParamSpec, Self, TypeVar, Unpack, overload
from uuid import UUID

from pulsed.batches import TRANSACTION, Limits
from pulsed.client.arguments import (
    MoreThanFour,
    TakesFour,
    TakesNone,
    TakesOne,
    TakesThree,
    TakesTwo,
)
from pulsed.client.job import Client, Job
from pulsed.client.job_maker import Bound, JobMaker
from pulsed.client.one_job import find_one
from pulsed.client.submitting import submit
from pulsed.errors import ConfigError, InvalidOption
from pulsed.handler import (
    Call,
    Handler,
    HandlerContext,
    Options,
    checked_options,
    job_maker,
)
from pulsed.handler.options import EXPIRY, checked_count
from pulsed.handler.registry import ONE_ID
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobRow, NewJob
from pulsed.model.job_batch import FreshJob, JobBatch, ids_of
from pulsed.store.blocking import blocking, refuse_in_event_loop, run_blocking
from pulsed.store.results import ONE_NEW, Submitted
from pulsed.wording import counted

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
S = TypeVar("S")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

LARGEST_BATCH = 100_000
ALTERNATIVES = (("at", "delay"), EXPIRY)
"""Options that overrule one another."""


class Declaration:
    """A handler and its app; a router's handler has none until an app includes the router."""

    def __init__(self, handler: Handler[Any], client: Client | None = None) -> None:
        self.handler = handler
        self.client = client

    def belong_to(self, client: Client, handler: Handler[Any]) -> None:
        """Join an app, under the topic it has there."""
        self.client = client
        self.handler = handler


class JobType(Generic[P, R_co]):
    """A function whose calls you can store as jobs."""

    def __init__(self, declared: Declaration, options: Mapping[str, Any] | None = None) -> None:
        functools.update_wrapper(self, declared.handler.fn)
        self._declared = declared
        self._options = dict(options or {})
        self._connection = self._options.pop("conn", None)
        self._id: UUID | None = self._options.pop("id", None)
        self._made_for: Handler[Any] | None = None

    @property
    def topic(self) -> str:
        """The name its jobs are stored under."""
        return self._declared.handler.topic

    @property
    def handler(self) -> Handler[R_co]:
        """The function with its options, as a worker sees it."""
        return self._declared.handler

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, here and now."""
        return self._declared.handler.fn(*args, **kwargs)

    def using(self, **options: Unpack[Options]) -> Self:
        """Return the same job type with other options, leaving this one unchanged."""
        new = checked_options(options)
        given = {**self._options, **new}
        for names in ALTERNATIVES:
            if any(name in new for name in names):  # either of them overrules an earlier one
                given = {name: given[name] for name in given if name in new or name not in names}
        if self._connection is not None:
            given.setdefault("conn", self._connection)
        if self._id is not None:
            given.setdefault("id", self._id)
        return type(self)(self._declared, checked_options(given))

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """Check arguments and return them as a call that you can enqueue later."""
        self._client()
        self._refuse_id()
        payload = self.handler.encode(args, kwargs)
        options = self._options
        if self._connection is not None:  # it is needed where the call is stored
            options = {**options, "conn": self._connection}
        return Call(self.topic, payload, self.handler, options)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]:
        """Store a call as a job, which a worker will run."""
        handler = self._declared.handler
        payload = handler.codec.encode(args, kwargs)
        make = self._make if self._made_for is handler else self._maker_of(handler)
        client = self._declared.client or self._client()
        job = make(id=self._id or new_job_id(), payload=payload)
        # An id that exists must not be an error in the caller's own transaction.
        is_fresh = self._id is None and self._connection is None
        jobs: list[NewJob] = FreshJob((job,)) if is_fresh else [job]
        (stored,), done = await self._store(client, jobs)
        return Job(client, stored, handler, is_new=done is ONE_NEW or done.is_new(0))

    @overload
    async def aenqueue_many(
        self: TakesNone[S], calls: Iterable[Call[Any] | tuple[()]]
    ) -> list[Job[S]]: ...

    @overload
    async def aenqueue_many(
        self: TakesOne[A, S], calls: Iterable[Call[Any] | tuple[A]]
    ) -> list[Job[S]]: ...

    @overload
    async def aenqueue_many(
        self: TakesTwo[A, B, S], calls: Iterable[Call[Any] | tuple[A, B]]
    ) -> list[Job[S]]: ...

    @overload
    async def aenqueue_many(
        self: TakesThree[A, B, C, S], calls: Iterable[Call[Any] | tuple[A, B, C]]
    ) -> list[Job[S]]: ...

    @overload
    async def aenqueue_many(
        self: TakesFour[A, B, C, D, S], calls: Iterable[Call[Any] | tuple[A, B, C, D]]
    ) -> list[Job[S]]: ...

    @overload
    async def aenqueue_many(self, calls: Iterable[Call[Any] | MoreThanFour]) -> list[Job[R_co]]: ...

    async def aenqueue_many(self: Any, calls: Iterable[Bound[Any]]) -> Any:
        """Store many calls in one transaction: all of them, or none.

        Give ``job.bind(...)`` or a tuple of arguments for each. A type checker compares tuples of
        up to four with the parameters, if they all have the same length.
        """
        client, handler = self._client(), self.handler
        stored, done = await self._store(client, self._maker().many(list(calls)))
        if done.new == done.total:
            snapshots = stored.unread() if isinstance(stored, JobBatch) else stored
            return [Job(client, snapshot, handler, is_new=True) for snapshot in snapshots]
        return [
            Job(client, job, handler, is_new=done.is_new(position))
            for position, job in enumerate(stored)
        ]

    async def afind(self, key: str) -> Job[R_co]:
        """Read its job that holds a key, or else the latest one that held it."""
        client = self._client()
        return Job(client, await find_one(client.store(), self.topic, key), self.handler)

    @overload
    def enqueue_many(
        self: TakesNone[S], calls: Iterable[Call[Any] | tuple[()]]
    ) -> list[Job[S]]: ...

    @overload
    def enqueue_many(
        self: TakesOne[A, S], calls: Iterable[Call[Any] | tuple[A]]
    ) -> list[Job[S]]: ...

    @overload
    def enqueue_many(
        self: TakesTwo[A, B, S], calls: Iterable[Call[Any] | tuple[A, B]]
    ) -> list[Job[S]]: ...

    @overload
    def enqueue_many(
        self: TakesThree[A, B, C, S], calls: Iterable[Call[Any] | tuple[A, B, C]]
    ) -> list[Job[S]]: ...

    @overload
    def enqueue_many(
        self: TakesFour[A, B, C, D, S], calls: Iterable[Call[Any] | tuple[A, B, C, D]]
    ) -> list[Job[S]]: ...

    @overload
    def enqueue_many(self, calls: Iterable[Call[Any] | MoreThanFour]) -> list[Job[R_co]]: ...

    def enqueue_many(self: Any, calls: Iterable[Bound[Any]]) -> Any:
        """Store many calls in one transaction: all of them, or none."""
        refuse_in_event_loop("aenqueue_many")
        return run_blocking(self.aenqueue_many(calls))

    find = blocking(afind)
    enqueue = blocking(aenqueue)

    def enqueue_iter(self, calls: Iterable[Bound[Any]], *, batch: int = 5_000) -> Iterator[UUID]:
        """Store any number of calls, one transaction per ``batch``, while you iterate.

        Yields the id of every stored job; only one batch is in memory at a time.
        """
        refuse_in_event_loop("aenqueue_iter")
        self._check_batch(batch)
        return self._enqueue_batches(calls, Limits(batch, TRANSACTION.bytes))

    def aenqueue_iter(
        self, calls: Iterable[Bound[Any]] | AsyncIterable[Bound[Any]], *, batch: int = 5_000
    ) -> AsyncIterator[UUID]:
        """Store any number of calls, one transaction per ``batch``, while you iterate.

        Yields the id of every stored job; only one batch is in memory at a time.
        """
        self._check_batch(batch)
        return self._aenqueue_batches(calls, Limits(batch, TRANSACTION.bytes))

    def _enqueue_batches(self, calls: Iterable[Bound[Any]], limits: Limits) -> Iterator[UUID]:
        stored = 0
        try:
            for jobs in self._maker().batches(calls, limits):
                enqueued, _ = run_blocking(self._store(self._client(), jobs))
                stored += len(enqueued)
                yield from ids_of(enqueued)
        except Exception as error:
            _note_stored(error, stored)
            raise

    async def _aenqueue_batches(
        self, calls: Iterable[Bound[Any]] | AsyncIterable[Bound[Any]], limits: Limits
    ) -> AsyncIterator[UUID]:
        stored = 0
        try:
            async for jobs in self._maker().abatches(calls, limits):
                enqueued, _ = await self._store(self._client(), jobs)
                stored += len(enqueued)
                for job_id in ids_of(enqueued):
                    yield job_id
        except Exception as error:
            _note_stored(error, stored)
            raise

    def _check_batch(self, batch: int) -> None:
        checked_count("batch", batch, 1, LARGEST_BATCH)
        if self._connection is not None:
            raise InvalidOption(
                "enqueue_iter() commits batch by batch, and your connection has one transaction. "
                "Use enqueue_many() with conn=, or leave conn= out."
            )

    def _maker_of(self, handler: Handler[Any]) -> Callable[..., NewJob]:
        """Return the factory of its jobs, and keep it for the next one."""
        self._make = job_maker(handler.topic, handler, self._options)
        self._made_for = handler
        return self._make

    def _maker(self) -> JobMaker:
        self._refuse_id()
        return JobMaker(self.handler, self._options, self._connection)

    def _refuse_id(self) -> None:
        if self._id is not None:
            raise InvalidOption(ONE_ID)

    def _store(
        self, client: Client, jobs: Sequence[NewJob]
    ) -> Coroutine[Any, Any, tuple[Sequence[NewJob | JobRow], Submitted]]:
        """Store jobs; returns them, or those that hold their keys, and which of them are new."""
        enqueues, fresh_ids = client.arounds.enqueues, self._id is None
        return submit(client.store(), jobs, self._connection, enqueues, fresh_ids=fresh_ids)

    def _client(self) -> Client:
        if self._declared.client is None:
            raise ConfigError(
                f"{self.topic!r} is declared on a router that no app includes yet. "
                "Call app.include(router) first."
            )
        return self._declared.client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic!r}>"


class SyncJobType(JobType[P, R_co]):
    """The job type of a plain function."""

    @overload
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __call__(self, ctx: HandlerContext, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, here and now."""
        return super().__call__(*args, **kwargs)


class AsyncJobType(JobType[P, R_co]):
    """The job type of a coroutine function."""

    @overload
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...

    @overload
    def __call__(
        self, ctx: HandlerContext, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R_co]: ...

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, here and now."""
        return super().__call__(*args, **kwargs)


def _note_stored(error: Exception, stored: int) -> None:
    if stored:
        error.add_note(f"Stored by the batches before this one: {counted(stored, 'job')}.")
