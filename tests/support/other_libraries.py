"""Other queues in one process and without a server: for the left columns of ``docs/from-*.md``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar


class Library:
    """A queue whose code is on the left side of a page."""

    replaced: ClassVar[Mapping[str, str]] = {}
    """What is replaced in its code: it needs no server then, and waits less for results."""

    returns_results: ClassVar = True
    """Whether it can print what the right side prints."""

    def before(self) -> None:
        """Do what the next block relies on."""

    def close(self) -> None:
        """Check what it has done, besides what the blocks print."""


class CeleryInMemory(Library):
    """Celery with a worker in a thread, and a broker in memory."""

    replaced: ClassVar = {
        'broker="redis://localhost"': 'broker="memory://"',
        'backend="redis://localhost"': 'backend="cache+memory://"',
        ".get(timeout=10)": ".get(timeout=10, interval=0.01)",
    }

    def __init__(self) -> None:
        self._update: Callable[[], None] | None = None

    def before(self) -> None:
        """Start the worker, or tell it of tasks that were declared since."""
        if self._update is not None:
            self._update()
        elif "tasks" in sys.modules:
            self._update = self._start(sys.modules["tasks"].celery)

    def _start(self, app: Any) -> Callable[[], None]:
        from celery.contrib.testing.worker import start_worker  # noqa: PLC0415 - one library each

        app.conf.broker_transport_options = {"polling_interval": 0.01}
        options = {"pool": "solo", "queues": ["celery", "mail"], "perform_ping_check": False}
        self._running = start_worker(app, loglevel="ERROR", **options)
        update: Callable[[], None] = self._running.__enter__().consumer.update_strategies
        return update


class RqInMemory(Library):
    """RQ with a fake Redis; it runs a job at once, in place of a worker that would fork."""

    replaced: ClassVar = {
        "from redis import Redis": "from fakeredis import FakeStrictRedis as Redis",
        "connection=Redis()": "connection=Redis(), is_async=False",
    }


class DramatiqInMemory(Library):
    """Dramatiq with its broker and its results for tests, and a worker in threads."""

    replaced: ClassVar = {"RedisBackend": "StubBackend"}

    def __init__(self) -> None:
        import dramatiq  # noqa: PLC0415 - one library each
        from dramatiq.brokers.stub import StubBroker  # noqa: PLC0415
        from dramatiq.results import Results  # noqa: PLC0415
        from dramatiq.results.backends import StubBackend  # noqa: PLC0415

        broker = StubBroker()
        broker.add_middleware(Results(backend=StubBackend()))
        dramatiq.set_broker(broker)
        dramatiq.Worker(broker, worker_timeout=10, worker_threads=2).start()


class ProcrastinateInMemory(Library):
    """Procrastinate with its connector for tests, and a worker for what was deferred."""

    replaced: ClassVar = {
        "from procrastinate import App, PsycopgConnector, RetryStrategy": (
            "from procrastinate import App, RetryStrategy\n"
            "from procrastinate.testing import InMemoryConnector as PsycopgConnector"
        ),
        "psycopg.connect()": "__import__('contextlib').nullcontext()",
    }
    returns_results: ClassVar = False

    def close(self) -> None:
        """Run what is due: all that was deferred, but for one that has a time."""
        app = sys.modules["tasks"].app
        asyncio.run(app.run_worker_async(wait=False, install_signal_handlers=False))
        statuses = [job["status"] for job in app.connector.jobs.values()]
        assert sorted(statuses) == ["succeeded", "succeeded", "todo"], statuses


LIBRARIES: Mapping[str, type[Library]] = {
    "from-celery.md": CeleryInMemory,
    "from-rq.md": RqInMemory,
    "from-dramatiq.md": DramatiqInMemory,
    "from-procrastinate.md": ProcrastinateInMemory,
}
"""By the page about it."""
