"""Translates SQLite's errors into pulsed's, transient ones apart from the others."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from pulsed.errors import (
    NotADatabase,
    SchemaError,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageRefused,
    TransientStorageError,
)

REFUSED = {"SQLITE_CONSTRAINT", "SQLITE_MISMATCH", "SQLITE_TOOBIG"}
TRANSIENT = {"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL", "SQLITE_SCHEMA"}


def translate(
    error: sqlite3.Error,
    verb: str,
    where: str,
    holder: Callable[[], str] = lambda: "Another process",
) -> StorageError:
    """Return the StorageError for an SQLite error; a transient one if a retry may succeed."""
    name: str = getattr(error, "sqlite_errorname", None) or ""
    kind = "_".join(name.split("_")[:2])  # SQLITE_BUSY_SNAPSHOT is a kind of SQLITE_BUSY
    text = f"{verb} failed on {where}: {error}"
    if kind in TRANSIENT:
        return TransientStorageError(f"{text}. {holder()} holds its write lock.")
    if kind == "SQLITE_FULL":
        return StorageFull(f"{text}. Nothing was stored; free some space and try again.")
    if kind == "SQLITE_READONLY":
        return StorageReadOnly(f"{text}. Check the permissions of the file and of its folder.")
    if kind == "SQLITE_NOTADB":
        return NotADatabase(f"{where} is not an SQLite database. Point pulsed at another file.")
    if kind == "SQLITE_CANTOPEN":
        return StorageError(
            f"{where} cannot be opened: check that its folder exists and is writable."
        )
    # Python before 3.12 does not know the name of a value of the wrong type.
    if kind in REFUSED or isinstance(error, sqlite3.IntegrityError):
        return StorageRefused(f"{text}.")
    if "no such table: pulse_" in str(error) or "has no column named" in str(error):
        return SchemaError(
            f"{text}. Its pulsed tables are missing or too old; run `pulsed migrate up` there."
        )
    return StorageError(f"{text}.")
