"""The project's app: a ``Pulse`` on a database of ``settings.DATABASES``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.connection import ConnectionDoesNotExist

from pulsed.app import Pulse
from pulsed.contrib.django.connection_hygiene import surround
from pulsed.contrib.django.database_url import engine_of, url_of
from pulsed.contrib.django.store import ProjectStore
from pulsed.engine.submissions import SubmissionRecorder
from pulsed.errors import ConfigError, StorageError
from pulsed.handler import Handler
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from pulsed.store.encoded import bare
from pulsed.store.sql_store.store import SqlStore

if TYPE_CHECKING:
    from pulsed.engine.worker.options import WorkerSettings
    from pulsed.engine.worker.worker import WorkerParts

DISCOVERY = "pulsed.contrib.django.discovery"
"""The module that imports the project's jobs and tasks."""


class ProjectPulse(Pulse):
    """A ``Pulse`` whose blocking methods use Django's connections, and join its transactions.

    Args:
        database: The alias of the database that has pulsed's tables.
        url: Another place for the jobs than a database of Django: a server, for example.
        **options: As for ``Pulse``. Tables are made by ``manage.py migrate``, not at first use.
    """

    def __init__(
        self, *, database: str = DEFAULT_DB_ALIAS, url: str | None = None, **options: Any
    ) -> None:
        imports = [DISCOVERY, *options.pop("imports", ())]
        options.setdefault("migrate", url is not None)
        super().__init__(url, imports=imports, **options)
        self._database = database
        self._configured: str | None = None
        """The URL at the start, before a test runner named another database…"""
        self._opened: str | None = None
        """…and the one that the store was opened with."""

    @property
    def database(self) -> str | None:
        """The alias of Django's database that has the jobs; None if a URL names their place."""
        return self._database if self._url is None else None

    @property
    def is_sandboxed(self) -> bool:
        """Whether a test has redirected it, with ``pulsed.testing.override``."""
        return self._settings.clock is not None

    @property
    def url(self) -> str:
        """The URL in use: the one given, or that of Django's database as it is now."""
        if self._url is not None:
            return self._url
        connection = connections[self._database]
        engine_of(self._database, connection.vendor)
        return url_of(connection.vendor, connection.settings_dict)

    @url.setter
    def url(self, url: str) -> None:
        Pulse.url.fset(self, url)  # type: ignore[attr-defined]

    @property
    def store(self) -> Store:
        """The store of producers and of ``app.jobs``; opened again when the database changes."""
        if self._store is not None and self._url is None and self._opened != self.url:
            self.leave()
        return super().store

    def leave(self) -> None:
        """Close the store, and forget it: the next use opens one on the database of that moment."""
        with contextlib.suppress(StorageError):
            run_blocking(self.aclose())
        if self._submissions is not None:
            self._submissions.stop()
        self._store = self._submissions = None

    def worker_parts(self, options: WorkerSettings) -> WorkerParts:
        """Return what a worker is made of; refused in a transaction, which a worker cannot see."""
        alias = self.database
        if alias is not None and not self.is_sandboxed and connections[alias].in_atomic_block:
            raise ConfigError(
                f"A transaction is open on the database {alias!r}, and no worker sees its jobs "
                "before the commit. In a TestCase, run them with `with override(app) as sandbox: "
                "…; sandbox.drain()`; or use a TransactionTestCase."
            )
        return super().worker_parts(options)

    def handle(self, handler: Handler[Any]) -> None:
        """Run the jobs of a topic with a handler that was made elsewhere."""
        self._declarations.handlers.add(handler)

    def _open_store(self) -> Store:
        own = super()._open_store()
        if self._url is not None:
            return own
        self._opened = self.url
        own.events = self._events  # workers publish there
        return ProjectStore(cast("SqlStore", own), self._database)

    def _store_of_workers(self) -> Store:
        store = bare(self.store)
        return self._with_codec(store.own) if isinstance(store, ProjectStore) else self.store

    def _recorder_of(self, store: Store) -> SubmissionRecorder | None:
        is_for_tests = self._url is None and self._opened != self._configured
        return None if is_for_tests else super()._recorder_of(store)

    def note_configured(self) -> None:
        """Note the database that the settings name; another one later is a test's."""
        self._configured = self.url


def from_settings() -> ProjectPulse:
    """Return the app that the setting ``PULSED`` describes."""
    given = getattr(settings, "PULSED", {})
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ImproperlyConfigured(
            f"The setting PULSED must be a dict of options, not {given!r:.100}."
        )
    if "url" in given and "database" in given:
        raise ImproperlyConfigured(
            "PULSED has both 'database' and 'url'; each says where the jobs are. Give one of them."
        )
    try:
        made = ProjectPulse(**given)
        made.note_configured()
    except ConnectionDoesNotExist as error:
        raise ImproperlyConfigured(f"PULSED = {{'database': …}}: {error}") from error
    except TypeError as error:
        raise ImproperlyConfigured(f"The setting PULSED has a wrong option: {error}") from error
    surround(made)
    return made


app = from_settings()
