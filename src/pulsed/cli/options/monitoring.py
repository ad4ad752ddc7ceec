"""The options ``--metrics`` and ``--health``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pulsed.listen_address import ListenAddress
from pulsed.metrics.monitoring import Monitoring

F = TypeVar("F", bound=Callable[..., Any])


def monitoring_options(command: F) -> F:
    """Give a command the options to be monitored; it gets ``monitoring``."""

    @functools.wraps(command)
    def with_monitoring(*, metrics: str | None, health: str | None, **options: Any) -> Any:
        addresses = (
            None if each is None else ListenAddress.parse(each) for each in (metrics, health)
        )
        monitoring = Monitoring(*addresses)
        monitoring.check()
        return command(monitoring=monitoring, **options)

    wrapped: Any = with_monitoring
    for option in (
        click.option(
            "--health",
            metavar="HOST:PORT",
            help="Serve /healthz and /readyz there, without metrics.",
        ),
        click.option(
            "--metrics",
            metavar="HOST:PORT",
            help="Serve metrics for Prometheus there, as in 127.0.0.1:9464, with /healthz and "
            "/readyz.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]
