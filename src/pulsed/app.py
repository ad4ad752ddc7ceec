"""The app: declare, enqueue, inspect and run jobs.

Making a ``Pulse`` does no I/O, so you can do it at the top of a module. The first call that needs
the store opens it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from pulsed.app_database import AppDatabase
from pulsed.client.around import CodeAround
from pulsed.client.by_name import enqueue_by_name
from pulsed.client.declarations import Declarations, write_schedules
from pulsed.client.job import Client, Job
from pulsed.client.jobtype import Declaration
from pulsed.client.one_job import JobId, checked_id
from pulsed.client.router import JobDecorator, Router
from pulsed.client.signals import send_signal
from pulsed.handler import Handler, Options, Registry
from pulsed.handler.envelope import TextCodec
from pulsed.handler.options import checked_name
from pulsed.model.backoff import RetryPolicy, retry_policies
from pulsed.model.retention import Retention, checked_retention
from pulsed.store.blocking import blocking, refuse_in_event_loop
from pulsed.store.open import StoreSettings

# Imported by what needs them: a module that only declares and enqueues jobs loads faster.
if TYPE_CHECKING:
    from pulsed.client.audit import AuditLog
    from pulsed.client.jobs import Jobs
    from pulsed.client.limits import LimitActs
    from pulsed.client.queues import Queues, TopicActs
    from pulsed.client.schedule_spec import ScheduleOptions, Target
    from pulsed.client.schedules import Schedules
    from pulsed.client.stats import Statistics
    from pulsed.client.step_decorator import StepDecorator
    from pulsed.client.stream import ItemStream
    from pulsed.client.workers import Workers
    from pulsed.engine.worker.options import WorkerSettings
    from pulsed.engine.worker.processes.messages import Origin
    from pulsed.engine.worker.worker import Exit, Worker, WorkerParts
    from pulsed.model.rate import Rate
    from pulsed.store.base import Store

L = TypeVar("L", bound=Callable[..., Any])
J = TypeVar("J", bound="Target")


class Pulse(CodeAround, AppDatabase):
    """Your jobs, and the database that stores them.

    Args:
        url: ``sqlite:///jobs.db``, ``postgresql://…``; if left out, ``$PULSED_URL``.
        name: Distinguishes apps that share a database.
        imports: Modules that declare jobs; loaded when a worker starts or a topic is looked up.
        retention: When workers remove finished jobs: by default, seven days after their end. Dead
            letters are kept. ``Retention.forever()`` keeps everything.
        stats: Whether to record statistics of runs and of enqueued jobs, for ``app.stats``.
        retry: How database operations are retried. ``RetryPolicy.disabled()`` turns retries off,
            those of claims as well unless you give ``dequeue_retry``.
        retry_attempts: A shorthand for the default ``retry`` with this number of attempts.
        dequeue_retry: How claims are retried; by default, with a longer backoff.
        codec: Encodes what your code writes (arguments, results, steps, signals, progress, errors)
            before it is stored, and decodes it again: encryption. See ``TextCodec``.
        migrate: Create or update the tables at first use.
        synchronous: SQLite: NORMAL is faster, but a power failure may undo the last commits.
        schema: PostgreSQL: the schema of the tables; by default the search path decides.
        pool_size: PostgreSQL: connections per event loop.
        max_connections: PostgreSQL: the limit on all connections of this process, 9 or more.
        statement_timeout: PostgreSQL: seconds until the server cancels a statement; 30 by default.
        prepared_statements: PostgreSQL: turn them off behind a pooler in transaction mode.
        listen_url: PostgreSQL: a direct URL for notifications, if ``url`` is a pooler's.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = "default",
        imports: Iterable[str] = (),
        retention: Retention | None = None,
        stats: bool = True,
        retry: RetryPolicy | None = None,
        retry_attempts: int | None = None,
        dequeue_retry: RetryPolicy | None = None,
        codec: TextCodec | None = None,
        migrate: bool = True,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        schema: str | None = None,
        pool_size: int | None = None,
        max_connections: int | None = None,
        statement_timeout: float | None = None,
        prepared_statements: bool = True,
        listen_url: str | None = None,
    ) -> None:
        own, of_claims = retry_policies(retry, retry_attempts, dequeue_retry)
        settings = StoreSettings(
            retry=own or RetryPolicy(),
            dequeue_retry=of_claims or RetryPolicy.dequeue(),
            migrate=migrate,
            synchronous=synchronous,
            schema=schema,
            pool_size=pool_size,
            max_connections=max_connections,
            statement_timeout=statement_timeout,
            prepared_statements=prepared_statements,
            listen_url=listen_url,
        )
        CodeAround.__init__(self)
        AppDatabase.__init__(self, url, settings, self._events, codec, stats=stats)
        self.name = checked_name("name of the app", name)
        self._retention = checked_retention(retention)
        self._declarations = Declarations(imports)
        self._client = Client(
            lambda: self._store or self.store, lambda: self.registry, self._arounds
        )

    @classmethod
    def over(cls, store: Store, url: str) -> Pulse:
        """Return an app without jobs of its own on a store that is open already."""
        app = cls(url)
        app._store = store
        return app

    # -- what there is ---------------------------------------------------------------------------

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs in the database: read, cancel, retry, delete."""
        from pulsed.client.jobs import Jobs  # noqa: PLC0415 - when it is used

        return Jobs(self._client, lambda: self._retention)

    @cached_property
    def schedules(self) -> Schedules:
        """The schedules in the database."""
        from pulsed.client.schedules import Schedules  # noqa: PLC0415 - when it is used

        return Schedules(self._client, self.name, self._declarations.schedules)

    @cached_property
    def stats(self) -> Statistics:
        """Statistics of runs and of enqueued jobs."""
        from pulsed.client.stats import Statistics  # noqa: PLC0415 - when it is used

        return Statistics(self._client)

    @cached_property
    def audit(self) -> AuditLog:
        """What operators did."""
        from pulsed.client.audit import AuditLog  # noqa: PLC0415 - when it is used

        return AuditLog(self._client)

    @cached_property
    def limits(self) -> LimitActs:
        """Limits: what they have in use, and their numbers at run time."""
        from pulsed.client.limits import LimitActs  # noqa: PLC0415 - when it is used

        return LimitActs(self._client)

    @cached_property
    def workers(self) -> Workers:
        """The workers of the database: read them, drain them, stop them."""
        from pulsed.client.workers import Workers  # noqa: PLC0415 - when it is used

        return Workers(self._client)

    @cached_property
    def queues(self) -> Queues:
        """The queues: what is due and runs in each; pause, resume and limit them."""
        from pulsed.client.queues import Queues  # noqa: PLC0415 - when it is used

        return Queues(self._client)

    @cached_property
    def topics(self) -> TopicActs:
        """The topics: pause and resume them."""
        from pulsed.client.queues import TopicActs  # noqa: PLC0415 - when it is used

        return TopicActs(self._client)

    # -- declaring ------------------------------------------------------------------------------

    @property
    def job(self) -> JobDecorator:
        """Declare a job: ``@app.job`` or ``@app.job(max_attempts=5, ...)``."""
        return JobDecorator(self._declare)

    @property
    def step(self) -> StepDecorator:
        """Declare a step: ``@app.step`` or ``@app.step(retry=3, ...)`` on an async function.

        If you call the function in a job, it runs as a step, like ``ctx.step(function, …)``.
        Anywhere else, and inside another step, it is an ordinary function.
        """
        from pulsed.client.step_decorator import StepDecorator  # noqa: PLC0415 - not all have steps

        return StepDecorator()

    def include(self, router: Router, *, prefix: str = "") -> None:
        """Add the jobs of a router to this app, with ``prefix`` before their topics."""

        def include(declared: Declaration) -> None:
            handler = declared.handler
            handler = handler.renamed(prefix + handler.topic) if prefix else handler
            self._declarations.handlers.add(handler)
            declared.belong_to(self._client, handler)

        router.join(include)

    @overload
    def schedule(
        self, name: str, target: Target, /, **options: Unpack[ScheduleOptions]
    ) -> None: ...

    @overload
    def schedule(self, name: str, /, **options: Unpack[ScheduleOptions]) -> Callable[[J], J]: ...

    def schedule(
        self, name: str, target: Target | None = None, /, **options: Unpack[ScheduleOptions]
    ) -> Callable[[J], J] | None:
        """Declare a schedule, without I/O; a worker stores it when it starts.

        ``app.schedule("report", report.bind(...), cron="0 9 * * *")``. Without the target it is a
        decorator, which you put above ``@app.job``.
        """
        self._declarations.check_schedule_name(name)

        def declare(target: J) -> J:
            self._declarations.add_schedule(name, target, options)
            return target

        if target is None:
            return declare
        declare(target)
        return None

    def queue(
        self,
        name: str,
        *,
        running: int | None = None,
        rate: Rate | None = None,
        age: float | timedelta | None = None,
    ) -> None:
        """Declare the limits of a queue, without I/O; a worker stores them when it starts.

        They count for all workers, of this app and of others. Without any, the queue has none any
        more. An operator overrides them with ``app.queues.limit()`` or ``pulsed queues limit``.

        Args:
            name: The queue.
            running: The most jobs that run at the same time, on all workers.
            rate: How often jobs start: ``Rate(60, per=60)``.
            age: Seconds of waiting that raise the priority of a job by one.
        """
        self._declarations.add_queue(name, running, rate, age)

    def lifespan(self, fn: L) -> L:
        """Run your code around a worker: an async function that takes the app and yields once.

        The code before the ``yield`` runs before the first job, the code after it when the last
        job has ended. Several lifespans are entered in the order in which you declare them.
        """
        self._declarations.add_lifespan(fn)
        return fn

    @property
    def registry(self) -> Registry:
        """All handlers, after loading ``imports``."""
        return self._declarations.registry

    # -- enqueuing by name ----------------------------------------------------------------------

    async def aenqueue(
        self,
        topic: str,
        payload: Mapping[str, Any] | None = None,
        /,
        *,
        unknown: bool = False,
        **options: Unpack[Options],
    ) -> Job[Any]:
        """Enqueue a job by the name of its topic, without the code of its handler.

        If this app has handlers, the topic must be one of theirs and the payload must fit it.
        Pass ``unknown=True`` if another app handles the topic.
        """
        return await enqueue_by_name(self._client, topic, payload, options, unknown=unknown)

    enqueue = blocking(aenqueue)

    # -- signals --------------------------------------------------------------------------------

    async def asignal(self, job_id: JobId, name: str, payload: Any = None) -> None:
        """Send a signal to a job, which gets the payload from ``ctx.wait_signal(name)``.

        The job need not be waiting for it yet. Raises ``JobNotFound``, and ``InvalidTransition``
        if the job has ended.
        """
        await send_signal(self.store, checked_id(job_id), name, payload)

    signal = blocking(asignal)

    # -- streams --------------------------------------------------------------------------------

    def stream(self, job: Job[Any] | JobId, *, after: int = 0, follow: bool = True) -> ItemStream:
        """Return what a job emits with ``ctx.emit``, for ``async for`` or ``for``, until it ends.

        ``after`` is the position of the last item that you have. Without ``follow`` it ends with
        the items that there are. Raises ``JobNotFound`` when it is read.
        """
        from pulsed.client.stream import ItemStream  # noqa: PLC0415 - not all read streams

        job_id = job.id if isinstance(job, Job) else checked_id(job)
        return ItemStream(lambda: self.store, job_id, after=after, follow=follow)

    # -- working --------------------------------------------------------------------------------

    async def arun(self, **options: Unpack[WorkerSettings]) -> Exit:
        """Run a worker inside this process; cancel the task to stop it."""
        return await self.worker(**options).run()

    def run(self, **options: Unpack[WorkerSettings]) -> Exit:
        """Run a worker until SIGINT, SIGTERM or SIGHUP; a second signal does not wait for jobs.

        Only the main thread receives signals. To stop a worker in another thread, make it with
        ``worker()``, run ``asyncio.run(worker.run())`` there, and call ``worker.stop()``.
        """
        from pulsed.client.working import run_until_signal  # noqa: PLC0415 - producers need none

        refuse_in_event_loop("arun")
        return run_until_signal(self, lambda: self.worker(**options))

    def worker(self, **options: Unpack[WorkerSettings]) -> Worker:
        """Return a worker for this app's handlers; start it with ``await worker.run()``."""
        from pulsed.engine.worker.worker import Worker  # noqa: PLC0415 - producers need none

        return Worker(**self.worker_parts(options))

    def worker_parts(self, options: WorkerSettings) -> WorkerParts:
        """Return what a worker of this app is made of, for another kind of worker."""
        from pulsed.client.working import worker_options  # noqa: PLC0415 - as above

        checked = worker_options(options, self._retention, stats=self._records_stats)
        registry = self.registry
        declared = self._declarations.schedules()  # an invalid one raises before the start
        return {
            "store": self._store_of_workers(),
            "registry": registry,
            "options": checked,
            "lifespan": self._lifespan,
            "declare": self._write_schedules if declared else None,
            "arounds": self._arounds,
            "origin": self._origin,
        }

    def _origin(self) -> Origin:
        """Return where the processes of this app's jobs find it."""
        from pulsed.engine.worker.processes.origin import locate  # noqa: PLC0415 - nor this

        return locate(self, self.url)

    @contextlib.asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        async with self._declarations.lifespan(self):
            self._hooks.settle_in()
            try:
                yield
            finally:
                await self._hooks.drain()

    async def _write_schedules(self) -> None:
        await write_schedules(self.schedules)

    @property
    def retention(self) -> Retention:
        """When workers remove finished jobs; a new value applies to workers made later."""
        return self._retention

    @retention.setter
    def retention(self, retention: Retention) -> None:
        self._retention = checked_retention(retention)

    def __repr__(self) -> str:
        return f"<Pulse {self.name!r}: {len(self._declarations.handlers)} jobs>"

    def _declare(self, handler: Handler[Any]) -> Declaration:
        self._declarations.handlers.add(handler)
        return Declaration(handler, self._client)
