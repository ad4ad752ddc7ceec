"""``pulsed worker``: run an app's jobs, in this process or in several."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict, TypeVar, get_args

import click

from pulsed.app import Pulse
from pulsed.backoff import RetryPolicy
from pulsed.cli.banner import announce
from pulsed.cli.database import APP_VARIABLE, limited, max_connections_option, point
from pulsed.cli.keep import as_text, changed, keep_option
from pulsed.cli.loading import check_handlers, load_app
from pulsed.cli.logs import log_options, set_up_logs
from pulsed.cli.retry_option import as_text as retry_as_text
from pulsed.cli.retry_option import retry_policy
from pulsed.cli.times import duration
from pulsed.engine.loop import run as run_loop
from pulsed.engine.options import JobLogging
from pulsed.engine.supervisor import ABORT, Supervisor
from pulsed.engine.worker import Worker
from pulsed.retention import Age

F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("pulsed.worker")

EXAMPLES = """\b
examples:
  pulsed worker shop.jobs:app
  pulsed worker shop.jobs:app -q mail=3,default=1 -c 200
  pulsed worker shop.jobs:app --processes 4 --log-format json

\b
signals:
  SIGTERM or Ctrl-C   finish what runs, claim nothing more; exits with 0
  SIGHUP              the same, when the terminal is closed; ignored under nohup
  the same again      hand back what runs, its attempt not counted; exits with 130
                      (within a second of the first it is taken for an echo, and ignored)

\b
environment:
  PULSED_APP         the app, when none is given
  PULSED_URL         the database, when neither --url nor the app says
  DATABASE_URL       the database, when PULSED_URL is not set either
  PULSED_KEEP        the default of --keep
  PULSED_LOG_LEVEL   the default of --log-level
  PULSED_LOG_FORMAT  the default of --log-format
  PULSED_JOB_LOG     the default of --job-log"""


def queues(value: str | Sequence[str]) -> Sequence[str] | Mapping[str, float]:
    """Read names of queues in their order, or with weights: ``mail=3,default=1``."""
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.split(",") if part.strip()]
    weighted = [part.rpartition("=") for part in parts if "=" in part]
    if parts and not weighted:
        return tuple(dict.fromkeys(parts))
    try:
        weights = {name: float(weight) for name, _, weight in weighted}
    except ValueError:
        weights = {}
    if not parts or len(weights) != len(parts):
        raise click.BadParameter(
            f"{value!r}: write default,mail for an order, or mail=3,default=1 for weights of all."
        )
    return weights


class WorkingOptions(TypedDict):
    """What a worker is told, as its options carry it."""

    queues: Sequence[str] | Mapping[str, float] | None
    concurrency: int
    poll: float
    tick: float
    drain_timeout: float | None
    fence: bool | None
    schedules: bool
    retry: NotRequired[RetryPolicy]
    dequeue_retry: NotRequired[RetryPolicy]
    job_log: JobLogging


_OPTIONS = (
    click.option(
        "-q",
        "--queues",
        type=queues,
        metavar="QUEUES",
        help="default,mail in this order, or mail=3,default=1 by weight [default: every queue that "
        "a job of the app declares].",
    ),
    click.option(
        "-c",
        "--concurrency",
        type=click.IntRange(1, 10_000),
        metavar="N",
        default=100,
        show_default=True,
        help="How many jobs run at once.",
    ),
    click.option(
        "--poll",
        type=duration,
        metavar="TIME",
        default="1s",
        show_default=True,
        help="Time between two looks when no hint arrives.",
    ),
    click.option(
        "--tick",
        type=duration,
        metavar="TIME",
        default="10s",
        show_default=True,
        help="Time between two looks for silent workers.",
    ),
    click.option(
        "--drain-timeout",
        type=duration,
        metavar="TIME",
        help="How long a drain may take; then jobs are handed back.",
    ),
    click.option(
        "--fence/--no-fence",
        default=None,
        help="Stop jobs whose lease could not be confirmed [default: when no server answers].",
    ),
    click.option(
        "--no-schedules",
        is_flag=True,
        help="Leave schedules to other workers: neither write nor fire them.",
    ),
    click.option(
        "--job-log",
        type=click.Choice(get_args(JobLogging)),
        default="limited",
        envvar="PULSED_JOB_LOG",
        show_default=True,
        help="Log the end of all jobs, of successes up to 20 a second, or of failures only.",
    ),
    click.option(
        "--retry",
        type=retry_policy,
        metavar="POLICY",
        help="How database operations are retried: 10, attempts=10,initial=200ms,max=10s, or off "
        "[default: as the app says].",
    ),
    click.option(
        "--dequeue-retry",
        type=retry_policy,
        metavar="POLICY",
        help="The same for claiming jobs.",
    ),
    max_connections_option,
    keep_option,
)


def working_options(command: F) -> F:
    """Give a command the options of a worker."""

    @functools.wraps(command)
    def with_schedules(
        *,
        no_schedules: bool,
        retry: RetryPolicy | None,
        dequeue_retry: RetryPolicy | None,
        **options: Any,
    ) -> Any:
        given = {"retry": retry, "dequeue_retry": dequeue_retry}
        options |= {name: policy for name, policy in given.items() if policy is not None}
        return command(schedules=not no_schedules, **options)

    wrapped: Any = with_schedules
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


@click.command(epilog=EXAMPLES)
@click.argument("app", required=False, metavar="[MODULE:APP]")
@working_options
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    metavar="N",
    default=1,
    show_default=True,
    help="Worker processes; dead ones are replaced.",
)
@click.option("--url", metavar="URL", help="The database, instead of the app's.")
@click.option("--supervised", is_flag=True, hidden=True)
@log_options
def worker(
    app: str | None,
    processes: int,
    url: str | None,
    keep: Mapping[str, Age] | None,
    max_connections: int | None,
    supervised: bool,  # noqa: FBT001
    log_level: str,
    log_format: str,
    **options: Any,
) -> int:
    """Run the jobs of an app until told to stop."""
    commands = _own_stdin() if supervised else None
    set_up_logs(log_level, log_format, with_pid=supervised or processes > 1)
    working = WorkingOptions(**options)  # type: ignore[typeddict-item]
    if processes > 1:
        more = {
            "--keep": as_text(keep),
            "--max-connections": max_connections,
            "--url": url,
            "--log-level": log_level,
            "--log-format": log_format,
        }
        return _supervise(app, processes, working, more)
    loaded = loaded_for_work(app, url, keep, max_connections)
    announce(loaded, working, quiet=supervised or log_format == "json")
    return run_loop(_run(loaded, working, commands))


def loaded_for_work(
    name: str | None,
    url: str | None,
    keep: Mapping[str, Age] | None = None,
    max_connections: int | None = None,
) -> Pulse:
    """Load an app, with all its handlers, on the database that the command line says."""
    app = load_app(name)
    point(app, url)
    app.settings = limited(app.settings, max_connections)
    app.retention = changed(app.retention, keep)
    check_handlers(app, name or os.environ[APP_VARIABLE])
    return app


async def _run(app: Pulse, working: WorkingOptions, commands: int | None) -> int:
    async with app:
        worker = app.worker(**working)
        if commands is not None:
            _obey_supervisor(worker, commands)
        return (await worker.run(handle_signals=True)).value


def _own_stdin() -> int:
    """Take the supervisor's pipe from stdin, where programs that handlers start would read it."""
    commands = os.dup(0)  # which no program inherits
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return commands


def _obey_supervisor(worker: Worker, commands: int) -> None:
    """Do what the supervisor writes to its pipe; when it has gone, however it died, drain."""
    loop = asyncio.get_running_loop()

    def tell(*, abort: bool) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has just been closed
            loop.call_soon_threadsafe(functools.partial(worker.stop, abort=abort))

    def listen() -> None:
        while heard := os.read(commands, 64):
            tell(abort=ABORT in heard)
        log.warning("the supervisor has gone; draining")
        tell(abort=False)

    threading.Thread(target=listen, name="pulsed-supervisor", daemon=True).start()


def _supervise(
    app: str | None, processes: int, working: WorkingOptions, more: Mapping[str, object]
) -> int:
    options: dict[str, Any] = {
        "--queues": _queues_as_text(working["queues"]),
        "--concurrency": working["concurrency"],
        "--poll": working["poll"],
        "--tick": working["tick"],
        "--drain-timeout": working["drain_timeout"],
        "--retry": retry_as_text(working.get("retry")),
        "--dequeue-retry": retry_as_text(working.get("dequeue_retry")),
        "--job-log": working["job_log"],
        **more,
    }
    command = [sys.executable, "-m", "pulsed", "worker", "--supervised"]
    command += [f"{name}={value}" for name, value in options.items() if value is not None]
    command += [] if working["schedules"] else ["--no-schedules"]
    command += {True: ["--fence"], False: ["--no-fence"], None: []}[working["fence"]]
    return Supervisor([*command, *([app] if app else [])], processes).run()


def _queues_as_text(queues: Sequence[str] | Mapping[str, float] | None) -> str | None:
    if queues is None:
        return None
    if isinstance(queues, Mapping):
        return ",".join(f"{name}={weight:g}" for name, weight in queues.items())
    return ",".join(queues)
