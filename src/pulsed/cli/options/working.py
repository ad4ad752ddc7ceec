"""The options of a worker that `pulsed worker` and `pulsed dev` share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args

import click

from pulsed.cli.options.database import max_connections_option
from pulsed.cli.options.durations import time_option
from pulsed.cli.options.keep import keep_option
from pulsed.cli.options.retry import retry_policy
from pulsed.engine.worker.options import JobLogging
from pulsed.model.backoff import RetryPolicy

F = TypeVar("F", bound=Callable[..., Any])


def queues(value: str | Sequence[str]) -> Sequence[str] | Mapping[str, float]:
    """Parse names of queues in order, or with weights: ``mail=3,default=1``."""
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
        "--job-processes",
        type=click.IntRange(1, 1_000),
        metavar="N",
        help='Processes for jobs with executor="process" [default: one for each processor].',
    ),
    click.option(
        "--jobs-per-process",
        type=click.IntRange(1, 1_000_000),
        metavar="N",
        default=100,
        show_default=True,
        help="Jobs after which such a process is replaced.",
    ),
    time_option(
        "--kill-after",
        "Time that a job in such a process has to stop; then the process is killed.",
        default="5s",
    ),
    time_option("--poll", "Polling interval when no notification arrives.", default="1s"),
    time_option("--tick", "Time between two scans for jobs of silent workers.", default="10s"),
    time_option("--drain-timeout", "How long a drain may take; then jobs are handed back."),
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
        "--no-stats",
        is_flag=True,
        help="Do not record the statistics that `pulsed stats` shows.",
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
        "[default: the app's setting].",
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
        no_stats: bool,
        retry: RetryPolicy | None,
        dequeue_retry: RetryPolicy | None,
        **options: Any,
    ) -> Any:
        given = {"retry": retry, "dequeue_retry": dequeue_retry}
        options |= {name: policy for name, policy in given.items() if policy is not None}
        if no_stats:
            options["stats"] = False
        return command(schedules=not no_schedules, **options)

    wrapped: Any = with_schedules
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


class Forwarding(click.Command):
    """A command that remembers its arguments, to pass them on to processes that it starts."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the arguments, and keep them as they were given."""
        given = list(args)
        context = super().make_context(info_name, args, parent, **extra)
        context.meta[GIVEN] = given
        return context


GIVEN = "pulsed.given_arguments"
