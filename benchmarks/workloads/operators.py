"""What people wait for: lists, counts and acts of operators, beside very many finished jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from click.testing import CliRunner

from benchmarks.databases import Server, enqueue
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale
from pulsed import Pulse, Status
from pulsed.cli.root import root
from pulsed.errors import PulsedError

SOME = 1_000
"""Jobs that have not ended, on top of those that have."""

HOUR = timedelta(hours=1)
COMMANDS = (
    ("list", "--status", "running"),
    ("list", "--topic", "none"),
    ("counts",),
    ("show",),
)


def measure_operators(server: Server, results: Results, scale: Scale) -> None:
    """Time every operation of ``app.jobs``, and the commands around them, one after the other."""
    database = server.database("operators")
    database.fill("finished", scale.beside)
    enqueue(database, SOME)
    database.settle_down()
    with Pulse(database.url) as app:
        app.jobs.counts()  # opens the database
        operations = _operations(app)
        for _ in range(scale.repeat):
            for name, operate in operations.items():
                with _timed(results, server.engine, name):
                    operate()
            for words in COMMANDS:
                job = [str(app.jobs.list(limit=1)[0].id)] if words == ("show",) else []
                with _timed(results, server.engine, f"pulsed jobs {' '.join(words)}"):
                    _command(database.url, *words, *job)
    server.drop("operators")


def _operations(app: Pulse) -> dict[str, Callable[[], object]]:
    jobs, now = app.jobs, datetime.now(UTC)
    lists: dict[str, dict[str, Any]] = {
        "no filter": {},
        **{f"status={status}": {"status": status} for status in Status},
        "a topic without jobs": {"topic": "none"},
        "a queue without jobs": {"queue": "none"},
        "a tag without jobs": {"tag": "none"},
        "an error without jobs": {"error": "none"},
        "dead letters of a topic": {"status": Status.DEAD_LETTERED, "topic": "none"},
        "since an hour": {"since": now - HOUR},
        "until an hour ago": {"until": now - HOUR},
        "children": {"parent": uuid4()},
    }
    pending = iter(jobs.list(status=Status.PENDING, limit=200))
    return {
        **{f"list, {name}": partial(jobs.list, **where) for name, where in lists.items()},
        **{f"counts, {name}": partial(jobs.counts, **where) for name, where in lists.items()},
        "get": lambda: jobs.get(next(pending).id),
        "failures": lambda: jobs.failures(next(pending).id),
        "cancel": lambda: jobs.cancel(next(pending).id),
        "cancel and retry": lambda: _cancel_and_retry(app, next(pending).id),
        "delete": lambda: jobs.delete(next(pending).id),
        "schedules": app.schedules.list,
    }


def _cancel_and_retry(app: Pulse, job_id: Any) -> None:
    app.jobs.cancel(job_id)
    app.jobs.retry(job_id)


@contextmanager
def _timed(results: Results, engine: str, name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    took = (time.perf_counter() - began) * 1000
    results.add("operators", engine, f"{PULSED}, {name}", "ms", took)


def _command(url: str, *words: str) -> None:
    """Run a command in this process: what Python takes to start is not the database's doing."""
    result = CliRunner().invoke(root, ["jobs", *words], env={"PULSED_URL": url})
    if result.exit_code:
        raise PulsedError(result.output)
