"""pulsed's tables in a database of Django: made by ``migrate``, emptied by ``flush``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import router

from pulsed.contrib.django.store import ProjectStore
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.verbs.flush import flush

if TYPE_CHECKING:
    from pulsed.contrib.django.project import ProjectPulse

LABEL = "pulsed"


def make_tables(app: ProjectPulse, alias: str, verbosity: int = 0) -> None:
    """Create or update the tables, if they belong into this database of Django."""
    if (store := store_in(app, alias)) is None:
        return
    own = store.own
    # pulsed's own connection, because it switches a file to write-ahead logging, which workers
    # need beside web processes. A database in memory is only to be found through Django's.
    through = own if isinstance(own, SqliteStore) and own.path is not None else store
    try:
        applied = run_blocking(through.migrate())
    finally:
        if through is own:
            run_blocking(own.aclose())
    if verbosity >= 1:
        for migration in applied:
            print(f"  Applying {LABEL}.{migration.version:04d}_{migration.name}... OK")  # noqa: T201


def store_in(app: ProjectPulse, alias: str) -> ProjectStore | None:
    """Return the project's store if its tables belong into this database of Django."""
    if app.database != alias or not router.allow_migrate(alias, LABEL):
        return None
    store = app.store
    return store if isinstance(store, ProjectStore) else None


def empty_tables(app: ProjectPulse, alias: str) -> None:
    """Delete every row, as ``manage.py flush`` does with the tables of models."""
    store = store_in(app, alias)
    if store is not None and run_blocking(store.applied_migrations()):
        run_blocking(store.perform(flush(store.dialect)))
