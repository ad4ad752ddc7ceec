"""Which database a command is about, and the store on it."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from pulsed.cli.exits import Code, CommandError
from pulsed.cli.variables import APP_VARIABLE, FALLBACK_VARIABLE
from pulsed.errors import ConfigError
from pulsed.model.backoff import RetryPolicy
from pulsed.rpc.open import open_store
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.store.open import URL_VARIABLE, StoreSettings

if TYPE_CHECKING:
    from pulsed.app import Pulse

F = TypeVar("F", bound=Callable[..., Any])

ENVIRONMENT = """

\b
environment:
  PULSED_URL, DATABASE_URL, PULSED_APP   the database, when --url and --app are not given"""
"""The end of the help of a command that has ``database_options``."""

IMPATIENT = RetryPolicy(max_attempts=3)
"""Fewer retries than a worker's: a user is waiting for the command."""


@dataclasses.dataclass(frozen=True, slots=True)
class Database:
    """The database that the options and the environment name."""

    url: str | None = None
    app: str | None = None

    def loaded_app(self) -> Pulse | None:
        """Return the app that the options or the environment name, if they name one."""
        # With --url there is no need to load an app that only the environment names.
        name = self.app or (None if self.url else os.environ.get(APP_VARIABLE))
        if not name:
            return None
        from pulsed.cli.options.loading import load_app  # noqa: PLC0415 - only with an app

        return load_app(name)

    def resolved(self) -> tuple[str, StoreSettings]:
        """Return the URL and how to open it, from the option, the app, or the environment."""
        if app := self.loaded_app():
            return self.url or url_of(app), app.settings
        if url := self.url or url_of_environment():
            return url, StoreSettings()
        raise CommandError(
            f"which database? Give --url, --app, or set ${URL_VARIABLE}, for example to "
            "sqlite:///jobs.db.",
            Code.USAGE,
        )

    @contextmanager
    def store(self, *, create: bool = False) -> Iterator[Store]:
        """Open the store; unless told to ``create``, a missing database or table is an error."""
        store = self._opened(create=create)
        try:
            yield store
        finally:
            run_blocking(store.aclose())

    @asynccontextmanager
    async def astore(self) -> AsyncIterator[Store]:
        """Open the store for a command with an event loop."""
        store = self._opened(create=False)
        try:
            yield store
        finally:
            await store.aclose()

    def _opened(self, *, create: bool) -> Store:
        url, settings = self.resolved()
        changes: dict[str, Any] = {"retry": IMPATIENT}
        if not create:
            changes |= {"migrate": False, "create": False}
        return open_store(url, msgspec.structs.replace(settings, **changes))


def database_options(command: F) -> F:
    """Give a command ``--url`` and ``--app``, and pass them on as ``database``."""

    @click.option(
        "--url",
        metavar="URL",
        help=f"The database [default: the app's, ${URL_VARIABLE}, ${FALLBACK_VARIABLE}].",
    )
    @click.option(
        "--app", metavar="MODULE:APP", help=f"Use this app's database [default: ${APP_VARIABLE}]."
    )
    @functools.wraps(command)
    def with_database(url: str | None, app: str | None, **options: Any) -> Any:
        return command(database=Database(url, app), **options)

    return with_database  # type: ignore[return-value]


max_connections_option = click.option(
    "--max-connections",
    type=click.IntRange(9),
    metavar="N",
    help="PostgreSQL: all connections of one process together [default: the app's setting].",
)


def limited(settings: StoreSettings, max_connections: int | None) -> StoreSettings:
    """Return the settings, with the option's limit if one is given."""
    if max_connections is None:
        return settings
    return msgspec.structs.replace(settings, max_connections=max_connections)


def url_of_environment() -> str | None:
    """Return the URL that the environment names."""
    return os.environ.get(URL_VARIABLE) or os.environ.get(FALLBACK_VARIABLE) or None


def url_of(app: Pulse) -> str:
    """Return an app's URL, or that of the environment if it has none."""
    try:
        return app.url
    except ConfigError:
        if url := os.environ.get(FALLBACK_VARIABLE):
            return url
        raise


def point(app: Pulse, url: str | None) -> None:
    """Make an app use the database of the command line, its own, or else the environment's."""
    wanted = url or url_of(app)
    if url or _has_none(app):
        app.url = wanted


def _has_none(app: Pulse) -> bool:
    try:
        return not app.url
    except ConfigError:
        return True
