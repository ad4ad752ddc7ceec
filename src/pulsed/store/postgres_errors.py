"""What PostgreSQL or its driver refused, in our words, and whether it is worth asking again."""

from __future__ import annotations

import re
from typing import Final

import asyncpg
import psycopg

from pulsed.errors import (
    SchemaError,
    StorageError,
    StorageFull,
    TransientStorageError,
)

DRIVER_ERRORS: Final = (
    psycopg.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # and with it TimeoutError: a connection that could not be made, or was lost
)
"""Everything that a call into a driver may raise, but for cancellation."""

_DISCONNECTED = {"57P01", "57P02", "57P03", "57P05", "25P03", "25006"}
_TRANSIENT = _DISCONNECTED | {
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "53300",  # too_many_connections
    "55P03",  # lock_not_available
    "57014",  # query_canceled: the statement timeout
}
_NO_SUCH_TABLE = {"42P01", "42703", "3F000"}
_PLAN_IS_STALE = "0A000"  # among other things that are "not supported"
_CACHED_PLAN = re.compile("cached (statement )?plan")
_SESSION_LOST_ITS_STATEMENT = {"26000", "42P05"}
_KEPT_OUT = {"28000", "28P01", "3D000", "42501"}

# libpq does not tell the SQLSTATE of a refused connection, only the server's words.
_KEPT_OUT_WORDS = (
    "authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "does not exist",
    "permission denied",
    "is not permitted to log in",
)


def translate(error: BaseException, verb: str, where: str) -> StorageError:
    """Turn a driver's error into one of ours."""
    state = _state(error)
    text = f"{verb} failed on the {where}: {_message(error)}"
    if _is_transient(error, state):
        return TransientStorageError(f"{text}.")
    if state == "53100":
        return StorageFull(f"{text}. Nothing was stored; free some space and go on.")
    if state in _NO_SUCH_TABLE:
        return SchemaError(
            f"{text}. Its pulsed tables are missing or too old; run `pulsed migrate up` there."
        )
    if state in _KEPT_OUT or _is_kept_out(error):
        return StorageError(f"{text}. Check the user, the password and the database's name.")
    if state in _SESSION_LOST_ITS_STATEMENT:
        return StorageError(
            f"{text}. If a pooler such as PgBouncer stands before the server, set "
            "prepared_statements=False."
        )
    return StorageError(f"{text}.")


def lost_the_server(error: BaseException) -> bool:
    """Whether the server went away or lost its role: then other idle connections did as well."""
    state = _state(error)
    if state is not None:
        return state.startswith("08") or state in _DISCONNECTED
    return isinstance(error, OSError | psycopg.OperationalError | asyncpg.InterfaceError)


def _is_transient(error: BaseException, state: str | None) -> bool:
    if state is not None:
        stale = state == _PLAN_IS_STALE and _CACHED_PLAN.search(str(error)) is not None
        return state.startswith("08") or state in _TRANSIENT or stale
    if isinstance(error, asyncpg.InternalClientError):
        # "cannot switch to state …": the server ended the session while the driver was idle, or
        # the schema cache is outdated. The connection is dropped either way.
        return True
    if isinstance(error, asyncpg.InterfaceError):  # a misuse of the driver, or a lost connection
        return not isinstance(error, ValueError) and "closed" in str(error)
    if isinstance(error, psycopg.OperationalError):
        return not _is_kept_out(error)
    return isinstance(error, OSError | asyncpg.TargetServerAttributeNotMatched)


def _is_kept_out(error: BaseException) -> bool:
    return isinstance(error, psycopg.OperationalError) and any(
        words in str(error) for words in _KEPT_OUT_WORDS
    )


def _state(error: BaseException) -> str | None:
    state: str | None = getattr(error, "sqlstate", None)
    return state


def _message(error: BaseException) -> str:
    """Return what went wrong in one line; a server's DETAIL may hold a job's payload."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return error.diag.message_primary
    if isinstance(error, asyncpg.PostgresError) and error.args:
        return str(error.args[0])
    text = " ".join(str(error).split())
    return text.rstrip(".") or type(error).__name__
