"""``Job``: what you get when you enqueue a job or look one up."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar
from uuid import UUID

import msgspec

from pulsed.client.one_job import cancel_one, read_one, retry_one
from pulsed.client.signals import send_signal
from pulsed.engine.around import Arounds
from pulsed.errors import (
    JobCancelled,
    JobFailed,
    NeverStarted,
    PulsedError,
    ResultTimeout,
    checked_seconds,
)
from pulsed.handler import Handler, Registry
from pulsed.handler.envelope import plain_value, readable
from pulsed.model.job import JobRow, NewJob, Status
from pulsed.model.job_batch import UnreadJob
from pulsed.model.lifecycle import TERMINAL
from pulsed.store.blocking import blocking, pause

if TYPE_CHECKING:
    from pulsed.client.stream import ItemStream
    from pulsed.store.base import Store

R_co = TypeVar("R_co", covariant=True)


FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.25
"""Polling intervals of ``result()``: short at first, for jobs that are quick."""


class Client(NamedTuple):
    """What a ``Job`` needs: the store to read from, and the handlers to decode its result."""

    store: Callable[[], Store]
    registry: Callable[[], Registry]
    arounds: Arounds
    """What surrounds an enqueue."""

    @classmethod
    def over(cls, store: Store) -> Client:
        """Return a client without an app: no handler is known, and nothing surrounds a call."""
        return cls(lambda: store, Registry, Arounds())


class Job(Generic[R_co]):
    """One job: a snapshot of its row, which you can refresh.

    The properties describe the moment of the snapshot. For a job that you have enqueued, that is
    its submission, known without reading it back; ``refresh()`` reads the row.
    """

    __slots__ = ("_client", "_handler", "_latest", "is_new")

    def __init__(
        self,
        client: Client,
        snapshot: JobRow | NewJob | UnreadJob,
        handler: Handler[R_co] | None = None,
        *,
        is_new: bool | None = False,
    ) -> None:
        self.is_new = is_new
        """Whether the enqueue that returned this ``Job`` stored it.

        False if another job holds its key, which this ``Job`` then is; or if a job with its id was
        stored before: that stays as it is, and ``refresh()`` reads it. None if that is not known:
        the enqueue was retried after an answer of the database was lost, and then found the job."""
        self._client = client
        self._latest = snapshot
        self._handler = handler

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A Job belongs to its app and cannot be pickled; pass job.id, and look the job up with "
            "app.jobs.get(id)."
        )

    @property
    def id(self) -> UUID:
        """Its id, known before it is stored."""
        return self._snapshot.id

    @property
    def row(self) -> JobRow:
        """The snapshot, as a row."""
        snapshot = self._snapshot
        if isinstance(snapshot, NewJob):
            self._latest = snapshot = _as_submitted(snapshot)
        return snapshot

    @property
    def _snapshot(self) -> JobRow | NewJob:
        if isinstance(self._latest, UnreadJob):
            self._latest = self._latest.read()
        return self._latest

    @property
    def topic(self) -> str:
        """The name of the handler it is for."""
        return self._snapshot.topic

    @property
    def queue(self) -> str:
        """The queue it is claimed from."""
        return self._snapshot.queue

    @property
    def priority(self) -> int:
        """From -100 to 100; higher runs first."""
        return self._snapshot.priority

    @property
    def status(self) -> Status:
        """Its state at the snapshot."""
        return self.row.status

    @property
    def is_cancelling(self) -> bool:
        """Whether it was asked to stop and was still RUNNING."""
        return self.row.is_cancelling

    @property
    def attempts(self) -> int:
        """How many runs counted against ``max_attempts``."""
        return self.row.attempts

    @property
    def max_attempts(self) -> int | None:
        """How many attempts it may have; None until a claim takes it from the handler."""
        return self.row.max_attempts

    @property
    def crashes(self) -> int:
        """How often in a row its worker died while it ran this job and others."""
        return self.row.crashes

    @property
    def payload(self) -> dict[str, Any]:
        """The named arguments, as plain JSON data."""
        payload: dict[str, Any] = plain_value(f"The payload of {self}", self._snapshot.payload)
        return payload

    @property
    def result_value(self) -> R_co | None:
        """What its handler returned, decoded; None unless it had SUCCEEDED."""
        return self.decode_result(self.row.result) if self.status is Status.SUCCEEDED else None

    @property
    def progress(self) -> Any:
        """What the handler last reported about its progress, or None."""
        return plain_value(f"The progress of {self}", self.row.progress)

    @property
    def last_error(self) -> str | None:
        """Why the last failed run failed."""
        return self.row.last_error

    @property
    def headers(self) -> dict[str, str]:
        """Its headers, which are passed on to the handler."""
        return self.row.headers

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, which you can filter by."""
        return self.row.tags

    @property
    def next_run_at(self) -> datetime | None:
        """When it becomes, or became, due; None if only a wake-up makes it due."""
        return self.row.due_at

    @property
    def expires_at(self) -> datetime | None:
        """The instant from which on it is not started any more, if it has one."""
        return self.row.expires_at

    @property
    def has_expired(self) -> bool:
        """Whether it had ended because no worker started it in time."""
        return self.row.has_expired

    @property
    def last_outcome(self) -> str | None:
        """How its last run ended, or ``EXPIRED``, ``REPLAYED``, ``REPLACED``; None before that."""
        return self.row.last_outcome

    @property
    def key(self) -> str | None:
        """Its key, whether or not it holds it now."""
        return self._snapshot.key

    @property
    def holds_key(self) -> bool:
        """Whether no other job of its topic can have its key."""
        return self.row.key_held

    @property
    def parent_id(self) -> UUID | None:
        """The job whose fan-out made it."""
        return self.row.parent_id

    @property
    def schedule_id(self) -> UUID | None:
        """The schedule that made it, if one did."""
        return self.row.schedule_id

    @property
    def occurrence(self) -> datetime | None:
        """The instant at which that schedule was due; None for a manual run."""
        return self.row.occurrence

    @property
    def submitted_at(self) -> datetime:
        """When it was enqueued."""
        return self.row.submitted_at

    @property
    def started_at(self) -> datetime | None:
        """When its latest run began."""
        return self.row.started_at

    @property
    def completed_at(self) -> datetime | None:
        """When it ended."""
        return self.row.completed_at

    @property
    def updated_at(self) -> datetime:
        """When it last changed: submitted, claimed, ended, woken, acted on, or its progress set."""
        return self.row.updated_at

    @property
    def is_done(self) -> bool:
        """Whether it had ended: succeeded, dead-lettered or cancelled."""
        return self.row.status in TERMINAL

    async def arefresh(self) -> Job[R_co]:
        """Take a new snapshot and return this job."""
        self._latest = await read_one(self._client.store(), self.id)
        return self

    async def aresult(self, timeout: float | None = None) -> R_co:  # noqa: ASYNC109 - blocks too
        """Wait for the job to end and return what its handler returned.

        Raises ``JobFailed`` or ``JobCancelled`` if it ends another way (``NeverStarted`` if it
        expired), and ``ResultTimeout`` after ``timeout`` seconds; the job itself continues.
        """
        give_up_at = None if timeout is None else _deadline(timeout)
        wait = FIRST_PAUSE
        while not (await self.arefresh()).is_done:
            left = wait if give_up_at is None else give_up_at - time.monotonic()
            if left <= 0:
                raise ResultTimeout(
                    f"{self} is still {self.status} after {timeout:g} s: {await self._awhy()}.",
                    job_id=self.id,
                )
            await pause(min(wait, left))
            wait = min(wait * 1.5, LONGEST_PAUSE)
        return self._outcome()

    async def _awhy(self) -> str:
        """Return why it has not ended, or that it continues if the reason cannot be read."""
        from pulsed.engine.held_back import why  # noqa: PLC0415 - only for those who waited in vain

        store = self._client.store()
        try:
            reasons = await why(store, self.row)
        except PulsedError:
            reasons = []
        return "; ".join(reasons) or "it has not ended, ask again later"

    async def asignal(self, name: str, payload: Any = None) -> None:
        """Send it a signal, which a workflow gets from ``ctx.wait_signal(name)``."""
        await send_signal(self._client.store(), self.id, name, payload)

    async def acancel(self) -> Status:
        """Cancel it, or ask it to stop if it is running; returns its status now."""
        return self._noted(await cancel_one(self._client.store(), self.id))

    async def aretry(self, *, fresh: bool = False) -> Status:
        """Send it back to PENDING with fresh attempts, if it is dead-lettered or cancelled.

        A workflow continues from its checkpoints; ``fresh=True`` restarts it from the beginning.
        """
        return self._noted(await retry_one(self._client.store(), self.id, fresh=fresh))

    def stream(self, *, after: int = 0, follow: bool = True) -> ItemStream:
        """Return what it emits with ``ctx.emit``, for ``async for`` or ``for``, until it ends.

        ``after`` is the position of the last item that you have. Without ``follow`` it ends with
        the items that there are.
        """
        from pulsed.client.stream import ItemStream  # noqa: PLC0415 - not all read streams

        return ItemStream(self._client.store, self.id, after=after, follow=follow)

    refresh = blocking(arefresh)
    result = blocking(aresult)
    signal = blocking(asignal)
    cancel = blocking(acancel)
    retry = blocking(aretry)

    def decode_result(self, text: str | None) -> R_co:
        """Return a stored result, decoded by the handler's return hint if that is known."""
        handler: Handler[Any] | None = self._handler or self._client.registry().find(self.topic)
        text = readable(f"The result of {self}", text or "null")
        result: R_co = handler.decode_result(text) if handler else msgspec.json.decode(text)
        return result

    def _outcome(self) -> R_co:
        row = self.row
        if row.has_expired:
            raise NeverStarted(
                f"{self} expired at {row.expires_at}: no worker had started it. It has no result; "
                "retry() runs it all the same.",
                job_id=self.id,
            )
        if row.status is Status.CANCELLED:
            raise JobCancelled(f"{self} was cancelled and has no result.", job_id=self.id)
        if row.status is Status.DEAD_LETTERED:
            raise JobFailed(
                f"{self} was dead-lettered in attempt {row.attempts}: {row.last_error}",
                job_id=self.id,
            )
        return self.decode_result(row.result)

    def _noted(self, status: Status) -> Status:
        self._latest = msgspec.structs.replace(self.row, status=status)
        return status

    def __str__(self) -> str:
        return f"Job {self.id} ({self.topic})"

    def __repr__(self) -> str:
        row = self.row
        return f"<Job {self.id} {row.topic} {row.status} attempts={row.attempts}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)


def _deadline(timeout: float) -> float:
    return time.monotonic() + checked_seconds("timeout", timeout)


def _as_submitted(job: NewJob) -> JobRow:
    """Return the row that a submission made, as far as the producer can know it.

    Its times come from the timestamp in the job's id; a refresh reads the database's own.
    """
    submitted = datetime.fromtimestamp((job.id.int >> 80) / 1000, UTC)
    fields = {name: getattr(job, name_there) for name, name_there in _submitted_fields()}
    start = max(submitted, job.at or submitted + timedelta(seconds=job.delay))
    if job.expires_at is None and job.expires is not None:
        fields["expires_at"] = start + timedelta(seconds=job.expires)
    return JobRow(
        **fields | {"headers": job.headers or {}},
        status=Status.PENDING,
        next_run_at=start,
        submitted_at=submitted,
        updated_at=submitted,
        key_held=job.key is not None,
    )


@functools.cache
def _submitted_fields() -> list[tuple[str, str]]:
    """Return the attributes of a row that its producer sets, and their names in ``NewJob``."""
    from pulsed.model.fields import NEW, ROW, fields_of  # noqa: PLC0415 - not all read it

    return [(field.name, field.attribute(NEW)) for field in fields_of(NEW) if ROW in field.use]
