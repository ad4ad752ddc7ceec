"""Schemas for tests: one for each process, lent without jobs, dropped when the process ends.

Creating the tables takes a tenth of a second, removing what a test left a millisecond. A session
holds an advisory lock for each schema, so that the schema of a process which was killed is found
and dropped by the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql

PREFIX = "pulsed_test_"

LOCKS = 0x70756C73
"""The first half of the advisory locks; the second is a hash of the schema's name."""

KEPT = ("pulse_meta", "pulse_migrations")
"""Tables that describe the schema and hold no jobs."""

_TAKE = "SELECT pg_advisory_lock(%s, hashtext(%s))"
_TRY = "SELECT pg_try_advisory_lock(%s, hashtext(%s))"
_RELEASE = "SELECT pg_advisory_unlock(%s, hashtext(%s))"
_SCHEMAS = "SELECT nspname::text FROM pg_namespace WHERE starts_with(nspname::text, %s)"
_TABLES = (
    "SELECT tablename::text FROM pg_tables "
    "WHERE schemaname = %s AND starts_with(tablename::text, 'pulse_') ORDER BY tablename"
)


class ScratchSchema:
    """A schema of this process's own, and the session that guards it."""

    def __init__(self, url: str) -> None:
        self.name = f"{PREFIX}{uuid.uuid4().hex[:16]}"
        self._process = os.getpid()
        self._session: psycopg.Connection[Any] = psycopg.connect(
            url, autocommit=True, prepare_threshold=None
        )
        self._session.execute(_TAKE, (LOCKS, self.name))
        self._drop_leftovers()

    @property
    def is_usable(self) -> bool:
        """Whether its session is there, and not that of a parent before a fork."""
        return self._process == os.getpid() and not self._session.closed

    def empty(self) -> None:
        """Remove what a test left."""
        rows = self._session.execute(_TABLES, (self.name,)).fetchall()
        tables = [sql.Identifier(self.name, table) for (table,) in rows if table not in KEPT]
        if tables:
            meta = sql.Identifier(self.name, "pulse_meta")
            deletes = [sql.SQL("DELETE FROM {}").format(table) for table in tables]
            no_turn = sql.SQL("UPDATE {} SET prune_after = NULL").format(meta)
            with self._session.transaction():
                self._session.execute(sql.SQL("; ").join([*deletes, no_turn]))

    def drop(self) -> None:
        """Remove the schema."""
        if self.is_usable:
            with contextlib.suppress(psycopg.Error):
                self._drop(self.name)
            self._session.close()

    def _drop(self, name: str) -> None:
        quoted = sql.Identifier(name)
        self._session.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(quoted))

    def _drop_leftovers(self) -> None:
        """Drop the schemas of processes that were killed: nothing holds their locks."""
        for (name,) in self._session.execute(_SCHEMAS, (PREFIX,)).fetchall():
            [(is_free,)] = self._session.execute(_TRY, (LOCKS, name)).fetchall()
            if is_free:
                self._drop(name)
                self._session.execute(_RELEASE, (LOCKS, name))


_idle: dict[str, list[ScratchSchema]] = {}
_all: list[ScratchSchema] = []


@contextlib.contextmanager
def scratch_schema(url: str) -> Iterator[str]:
    """Lend the name of a schema that has no jobs."""
    idle = _idle.setdefault(url, [])
    schema = _taken_from(idle)
    if schema is None:
        schema = ScratchSchema(url)
        _all.append(schema)
    try:
        yield schema.name
    finally:
        idle.append(schema)


def _taken_from(idle: list[ScratchSchema]) -> ScratchSchema | None:
    while idle:
        schema = idle.pop()
        # A session that was cut off, as by a restart of the server, says so when it is used.
        with contextlib.suppress(psycopg.OperationalError):
            if schema.is_usable:
                schema.empty()
                return schema
    return None


@atexit.register
def _at_exit() -> None:
    for schema in _all:
        schema.drop()
