"""A sandbox: an app on a database of a test's own, with a clock that the test moves."""

from __future__ import annotations

import contextlib
from typing import Any, Self, TypeVar, Unpack, overload

from msgspec.structs import replace

from pulsed.app import Pulse
from pulsed.client.filter import Filter
from pulsed.client.job import Job
from pulsed.client.jobtype import JobType
from pulsed.errors import ConfigError
from pulsed.rpc.open import is_remote
from pulsed.store.blocking import run_blocking
from pulsed.store.open import StoreSettings, scratch_settings
from pulsed.testing import draining
from pulsed.testing.clock import Clock
from pulsed.testing.draining import DrainOptions, topic_of
from pulsed.testing.enqueued import described, listed, matching
from pulsed.testing.ran import Ran

R = TypeVar("R")

IN_MEMORY = "sqlite://"
PAGE = 1_000


class Sandbox:
    """An app on a database of a test's own. Make one with ``override``.

    Inside of the block, everything that uses the app uses that database: your code, whose module
    has the app, and the test. Afterwards the app is as before, and the jobs are gone.
    """

    def __init__(self, app: Pulse, url: str = IN_MEMORY, *, clock: Clock | None = None) -> None:
        if is_remote(url):
            raise ConfigError(
                "A sandbox needs a database: a server's clock cannot be moved. To run what is due "
                "through a server, call pulsed.testing.drain(app)."
            )
        self.app = app
        self.url = url
        self.clock = clock or Clock()
        """The time in the sandbox."""
        self._redirection = contextlib.ExitStack()

    # -- running ----------------------------------------------------------------------------------

    def drain(self, **options: Unpack[DrainOptions]) -> list[Ran]:
        """Run what is due until nothing is; returns the runs in their order."""
        return draining.drain(self.app, **options)

    async def adrain(self, **options: Unpack[DrainOptions]) -> list[Ran]:
        """Run what is due until nothing is, on this event loop; returns the runs in their order."""
        return await draining.adrain(self.app, **options)

    # -- what was enqueued ------------------------------------------------------------------------
    #
    # None of these has an async twin: a test may block its event loop for a read.

    @overload
    def enqueued(self, job: JobType[..., R], /, **arguments: Any) -> list[Job[R]]: ...
    @overload
    def enqueued(self, job: str | None = None, /, **arguments: Any) -> list[Job[Any]]: ...

    def enqueued(
        self, job: JobType[..., Any] | str | None = None, /, **arguments: Any
    ) -> list[Job[Any]]:
        """Return all jobs, or those of a topic with these arguments, oldest first.

        Also those that have run: a sandbox keeps every job until its end.
        """
        topic = None if job is None else topic_of(job)
        handler = None if topic is None else self.app.registry.find(topic)
        return matching(self._jobs(topic), handler, arguments)

    @overload
    def assert_enqueued(self, job: JobType[..., R], /, **arguments: Any) -> Job[R]: ...
    @overload
    def assert_enqueued(self, job: str, /, **arguments: Any) -> Job[Any]: ...

    def assert_enqueued(self, job: JobType[..., Any] | str, /, **arguments: Any) -> Job[Any]:
        """Fail unless there is a job with these arguments, among others; returns the newest."""
        if found := self.enqueued(job, **arguments):
            return found[-1]
        call = described(topic_of(job), arguments)
        raise AssertionError(f"{call} was not enqueued. Enqueued:{listed(self._jobs())}")

    def assert_not_enqueued(self, job: JobType[..., Any] | str, /, **arguments: Any) -> None:
        """Fail if there is a job with these arguments, among others."""
        if found := self.enqueued(job, **arguments):
            call = described(topic_of(job), arguments)
            raise AssertionError(f"{call} was enqueued:{listed(found)}")

    def _jobs(self, topic: str | None = None) -> list[Job[Any]]:
        """Read jobs, oldest first."""
        where: Filter = {} if topic is None else {"topic": topic}
        jobs: list[Job[Any]] = []
        before = None
        while True:
            page = run_blocking(self.app.jobs.alist(limit=PAGE, before=before, **where))
            jobs += page
            if (before := page.next) is None:
                return jobs[::-1]

    # -- life -------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        settings = self._redirection.enter_context(scratch_settings(self.url, self._settings()))
        self._redirection.enter_context(self.app.redirected(self.url, settings))
        return self

    def _settings(self) -> StoreSettings:
        return replace(
            self.app.settings,
            clock=self.clock,
            migrate=True,
            synchronous="NORMAL",
            listen_url=None,
        )

    def __exit__(self, *_: object) -> None:
        with self._redirection:
            run_blocking(self.app.aclose())

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        with self._redirection:
            await self.app.aclose()

    def __repr__(self) -> str:
        return f"<Sandbox of {self.app!r} at {self.clock.now.isoformat()}>"


def override(app: Pulse, url: str = IN_MEMORY, *, clock: Clock | None = None) -> Sandbox:
    """Give an app a database of the test's own, for the time of a ``with`` block.

    ``url`` is SQLite in memory if left out, a file, or a PostgreSQL database, in which the sandbox
    uses a schema of its own.
    """
    return Sandbox(app, url, clock=clock)
