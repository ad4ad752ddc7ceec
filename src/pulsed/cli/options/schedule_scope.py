"""Which app's schedules a command is about, and in which database."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from pulsed.cli.exits import say
from pulsed.cli.options.database import Database, database_options
from pulsed.cli.variables import APP_VARIABLE
from pulsed.cli.view.output import joined
from pulsed.client.job import Client
from pulsed.client.schedules import Schedules
from pulsed.engine.around import Arounds
from pulsed.errors import ScheduleNotFound
from pulsed.handler import Registry
from pulsed.handler.options import checked_name
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_APP = "default"


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """The app and the database that the options select."""

    database: Database
    app_name: str | None = None

    @contextmanager
    def schedules(self, *, create: bool = False) -> Iterator[Schedules]:
        """Open the schedules of one app; a named module is loaded, to check arguments."""
        with self.opened(create=create) as (schedules, _):
            yield schedules

    @contextmanager
    def opened(self, *, create: bool = False) -> Iterator[tuple[Schedules, Store]]:
        """Open the schedules of one app, and the store they are in."""
        # With a URL and a name there is no need for an app that only the environment names.
        is_complete = self.database.url and self.app_name
        module = self.database.app or (None if is_complete else os.environ.get(APP_VARIABLE))
        name = checked_name("name of the app", self.app_name or DEFAULT_APP)
        registry: Callable[[], Registry] = Registry
        if module:
            from pulsed.cli.options.loading import load_app  # noqa: PLC0415 - only with an app

            app = load_app(module)
            name, registry = self.app_name or app.name, lambda: app.registry
        database = dataclasses.replace(self.database, app=module)
        with database.store(create=create) as store:
            schedules = Schedules(Client(lambda: store, registry, Arounds()), name, dict)
            try:
                yield schedules, store
            except ScheduleNotFound:
                _point_elsewhere(store, name)
                raise


def _point_elsewhere(store: Store, name: str) -> None:
    """Print the other apps: a schedule that is not found is often another app's."""
    others = {row.app for row in run_blocking(store.schedules.list_page())} - {name}
    if others:
        say(f"there are schedules of other apps (--app-name): {joined(sorted(others))}")


def scope_options(command: F) -> F:
    """Give a command ``--app-name`` and the options of a database, and pass them as ``scope``."""

    @click.option(
        "--app-name",
        metavar="NAME",
        help=f"Whose schedules: Pulse(name=…) [default: that of --app, else {DEFAULT_APP!r}].",
    )
    @database_options
    @functools.wraps(command)
    def with_scope(database: Database, app_name: str | None, **options: Any) -> Any:
        return command(scope=Scope(database, app_name), **options)

    return with_scope  # type: ignore[return-value]
