"""Every error pulsed raises, in one tree.

::

    PulsedError
    ├── ConfigError (ValueError)        the program is set up wrongly
    │   ├── InvalidURL                  a database URL that names nothing pulsed can open
    │   ├── MissingDriver               an extra has to be installed first
    │   └── InvalidHandler              a function that cannot be a handler
    ├── InvalidJob (ValueError)         refused at enqueue; nothing was stored
    │   ├── UnknownTopic                no handler of that name
    │   ├── InvalidArguments            they do not fit the handler's signature
    │   ├── InvalidPayload              cannot be stored as JSON, or too large, or too deep
    │   └── InvalidOption               a queue, priority, delay, ... out of range
    │       └── UnknownZone             a time zone that this machine does not know
    ├── StorageError                    the database refused or failed
    │   ├── TransientStorageError       a transient failure; retried for you
    │   │   ├── JobsLocked              another session holds some of the jobs; the others are done
    │   │   └── ServerUnreachable       no pulsed server answers; its database's state is unknown
    │   ├── StorageRefused              the database will never accept this row
    │   ├── StorageFull                 no space left on its disk
    │   ├── StorageReadOnly             the database is read-only
    │   ├── NotADatabase                the file is something else
    │   ├── DatabaseReplaced            the file is not the one that was opened
    │   ├── AccessDenied                a pulsed server denies the operation
    │   ├── ServerTooOld                a pulsed server does not know the operation
    │   └── SchemaError                 the tables are missing, too old or too new
    ├── JobError                        about one job, whose id is in ``job_id``
    │   ├── JobNotFound (LookupError)
    │   ├── InvalidTransition           its state does not allow that
    │   ├── LeaseLost                   the run lost its lease; another worker may have the job
    │   ├── RunEnded                    its context was used after its handler had ended
    │   ├── JobFailed                   ``result()`` of a dead-lettered job
    │   ├── JobCancelled                ``result()`` of a cancelled job
    │   │   └── NeverStarted            ``result()`` of one that expired before a worker started it
    │   ├── ResultTimeout (TimeoutError)
    │   └── WorkflowError               a workflow cannot continue as its code says
    │       ├── NonDeterministic        its code asks for another step than the stored one
    │       ├── StepFailed              a step has used up its retries
    │       ├── FanOutFailed            too many children failed; ``results`` has them all
    │       ├── SignalTimeout (TimeoutError)
    │       ├── WaitTimeout (TimeoutError)  children or a job took too long
    │       └── CannotSuspend           in a plain function, a step, or a task of its own
    ├── BulkNotFound (LookupError)        no bulk operation with that id
    ├── ProcessDied                       the process of a job has ended without a report
    ├── WorkerNotFound (LookupError)      no worker with that id, or not one alone
    ├── CodecError                        the app's codec cannot encode or decode user data
    ├── ScheduleNotFound (LookupError)    no schedule of that name in this app
    ├── ScheduleChanged                   it was changed concurrently
    ├── DrainLimit                        a test's drain ran too many jobs and did not come to rest
    ├── CalledInEventLoop (RuntimeError)  a blocking method where its ``a…`` twin belongs
    └── NoEventLoop (RuntimeError)        an ``a…`` method without asyncio, as under trio

    Directive                           what a handler raises to say how its run ends
    ├── RetryAfter(seconds)             fail now, run again after this long
    ├── NoRetry(reason)                 fail now, dead-letter at once
    └── Snooze(seconds)                 not an attempt: run again after this long

    RunStopped (BaseException)          raised by ``ctx.check()`` in a run that was told to stop
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID

LONGEST_DELAY = 10 * 366 * 86_400.0
"""Ten years, in seconds: no delay, backoff, lease or timeout may be longer."""


class PulsedError(Exception):
    """The root of the tree: catch it to catch everything pulsed raises on purpose."""


class ConfigError(PulsedError, ValueError):
    """The program is set up wrongly; no retry will help."""


class InvalidURL(ConfigError):
    """A database URL that names nothing pulsed can open."""


class MissingDriver(ConfigError):
    """A package that the URL needs is not installed."""


class InvalidHandler(ConfigError):
    """A function that cannot be a handler, or a topic that is taken."""


class InvalidJob(PulsedError, ValueError):
    """The job was refused before anything was stored."""


class UnknownTopic(InvalidJob):
    """No handler of that name is registered."""


class InvalidArguments(InvalidJob, TypeError):
    """The arguments do not fit the handler's signature."""


class InvalidPayload(InvalidJob):
    """The arguments cannot be stored: not JSON, too large, or nested too deeply."""


class InvalidOption(InvalidJob):
    """An option of the job is out of its range."""


class UnknownZone(InvalidOption):
    """A time zone that this machine does not know; another one, with newer data, may."""


class StorageError(PulsedError):
    """The database refused or failed; unless the error is transient, no retry will help."""


class TransientStorageError(StorageError):
    """A transient failure of the database; whether a write was committed may be unknown."""


class TooManyConnections(TransientStorageError):
    """The database server has no connection left; opening one is retried after a pause."""


class StorageBusy(TransientStorageError):
    """The database did not finish in time: rows are locked, or it had too much to do at once."""


class JobsLocked(StorageBusy):
    """Other sessions hold locks on jobs that were to be changed; all others were changed."""


class ServerUnreachable(TransientStorageError):
    """No pulsed server answers: the network is down, or the server is."""


class ServerTooOld(StorageError):
    """The pulsed server is older than this process and does not know the operation."""


class StorageRefused(StorageError):
    """The database will never accept this row; it accepts others."""


class StorageFull(StorageError):
    """The database has no space left. Nothing was stored; free some space and try again."""


class StorageReadOnly(StorageError):
    """The database is read-only."""


class NotADatabase(StorageError):
    """The file exists but is not an SQLite database."""


class DatabaseReplaced(StorageError):
    """The SQLite file was removed or replaced while it was open; the next try opens the new one."""


class AccessDenied(StorageError):
    """A pulsed server denies access: no token, an unknown one, or one without the permission."""


class SchemaError(StorageError):
    """The tables are missing, or belong to an older or newer pulsed."""


def concerns_everything(error: BaseException) -> bool:
    """Whether every write would meet this error, not only the one that raised it."""
    return isinstance(
        error,
        TransientStorageError
        | StorageFull
        | StorageReadOnly
        | NotADatabase
        | DatabaseReplaced
        | AccessDenied
        | SchemaError,
    )


class JobError(PulsedError):
    """An error about one job, whose id is in ``job_id``."""

    def __init__(self, message: str, *, job_id: UUID) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobNotFound(JobError, LookupError):
    """There is no such job: never enqueued here, deleted, or removed by retention."""


class InvalidTransition(JobError):
    """The job's state does not allow that."""


class KeyNotFound(PulsedError, LookupError):
    """No job of that topic holds the key, or held it."""


class DuplicateKey(JobError):
    """Another job, that of ``job_id``, holds the key of one that was to be stored."""


class LeaseLost(JobError):
    """The run lost its lease; another worker may have the job by now."""

    @classmethod
    def of(cls, job_id: UUID, topic: str | None = None) -> LeaseLost:
        """Return the error for a job."""
        which = f"{job_id} ({topic})" if topic else str(job_id)
        return cls(f"Job {which} lost its lease; another worker may run it.", job_id=job_id)


class RunEnded(JobError):
    """The context of a run was used after its handler had ended."""


class JobFailed(JobError):
    """The job is dead-lettered; the message carries its last error."""


class JobCancelled(JobError):
    """The job was cancelled and has no result."""


class NeverStarted(JobCancelled):
    """The job expired before a worker started it, and has no result."""


class ResultTimeout(JobError, TimeoutError):
    """The job did not end in the time given; it continues."""


class WorkflowError(JobError):
    """A workflow cannot continue as its code says."""


class NonDeterministic(WorkflowError):
    """The code asks for another step than the one stored; the job is dead-lettered."""


class StepFailed(WorkflowError):
    """A step has used up its retries. That is stored: a later run gets the same error."""


class FanOutFailed(WorkflowError):
    """Too many children failed for the fan-out's strategy; ``results`` has all of them."""

    def __init__(self, message: str, *, job_id: UUID, results: object) -> None:
        super().__init__(message, job_id=job_id)
        self.results = results


class SignalTimeout(WorkflowError, TimeoutError):
    """No signal arrived in the time given."""


class WaitTimeout(WorkflowError, TimeoutError):
    """Children, or another job, did not end in the time given."""


class CannotSuspend(WorkflowError):
    """The wait was not called by an ``async def`` handler itself.

    A workflow cannot wait in a plain function, inside a step, or in a task beside the handler.
    """


class BulkNotFound(PulsedError, LookupError):
    """There is no bulk operation with that id."""


class ProcessDied(PulsedError):
    """The process of a job ended without a report: it crashed, was killed, or could not start."""


class WorkerNotFound(PulsedError, LookupError):
    """There is no such worker, or there are several."""


class CodecError(PulsedError):
    """The app's codec cannot encode or decode what user code wrote; the stored data is intact."""


class ScheduleNotFound(PulsedError, LookupError):
    """The app has no schedule of that name."""


class ScheduleChanged(PulsedError):
    """The schedule has changed since it was read; nothing was written."""


class DrainLimit(PulsedError):
    """A drain of ``pulsed.testing`` ran as many jobs as it may, and more were due."""


class CalledInEventLoop(PulsedError, RuntimeError):
    """A blocking method was called where it would block a running event loop."""


class NoEventLoop(PulsedError, RuntimeError):
    """An async method was awaited where asyncio does not run."""


class Directive(Exception):
    """Raised by a handler to say how its run ends."""


class RetryAfter(Directive):
    """Fail this attempt and run again after ``seconds``, whatever the backoff says."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        self.seconds = checked_seconds("RetryAfter(seconds)", seconds)
        self.reason = reason or f"the handler asked to be retried after {self.seconds:g} s"
        super().__init__(self.reason)


class NoRetry(Directive):
    """Fail for good: the job is dead-lettered now, however many attempts are left."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Snooze(Directive):
    """Run again after ``seconds`` without counting this run as an attempt."""

    def __init__(self, seconds: float) -> None:
        self.seconds = checked_seconds("Snooze(seconds)", seconds)
        super().__init__(f"snoozed for {self.seconds:g} s")


class RunStopped(BaseException):
    """Raised by ``ctx.check()``: the run was told to stop.

    Let it pass. It is no ``Exception``, so that code which survives any error does not catch it.
    """


def checked_seconds(
    what: str, value: float, *, least: float = 0.0, most: float = LONGEST_DELAY
) -> float:
    """Return ``value`` as a finite float of ``least``..``most`` seconds, or raise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOption(f"{what} must be a number of seconds, not {value!r}.")
    if not least <= value <= most:  # also false for NaN
        raise InvalidOption(
            f"{what} must be between {least:g} and {most:,.12g} seconds, not {value!r}."
        )
    return float(value)
