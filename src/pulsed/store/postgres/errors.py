"""Translates the errors of PostgreSQL and its drivers, transient ones apart from the others."""

from __future__ import annotations

import re
from typing import Final

import asyncpg
import psycopg

from pulsed.errors import (
    PulsedError,
    SchemaError,
    StorageBusy,
    StorageError,
    StorageFull,
    StorageRefused,
    TooManyConnections,
    TransientStorageError,
)

DRIVER_ERRORS: Final = (
    psycopg.Error,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # includes TimeoutError: a connection that could not be opened, or was lost
)
"""Everything that a call into a driver may raise, except cancellation."""

_DISCONNECTED = {"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04", "25006"}
_TRANSIENT = _DISCONNECTED | {
    "40001",  # serialization_failure
    "40003",  # statement_completion_unknown
    "40P01",  # deadlock_detected
    "53000",  # insufficient_resources
    "53200",  # out_of_memory
    "53300",  # too_many_connections
    "57000",  # operator_intervention
    "58000",  # system_error
    "58030",  # io_error
}
_BUSY = {
    "57014",  # query_canceled: the statement timeout
    "55P03",  # lock_not_available: the lock timeout
}
_NOT_UNIQUE = "23505"  # unique_violation
_KEY_INDEX = "pulse_jobs_holders"
"""A job that was to take back its key has lost a race for it."""
_TOOK_ITS_TIME = {"25P03", "25P04"}  # idle-in-transaction timeout, transaction timeout
_ABOUT_THE_ROW = ("22", "23")  # data_exception, integrity_constraint_violation
_NO_SUCH_TABLE = {"42P01", "42703", "3F000"}
_PLAN_IS_STALE = "0A000"  # feature_not_supported, which has other causes, too
_CACHED_PLAN = re.compile("cached (statement )?plan")
_SESSION_LOST_ITS_STATEMENT = {"26000", "42P05"}
_KEPT_OUT = {"28000", "28P01", "3D000"}
_MAY_NOT = "42501"  # insufficient_privilege

# libpq does not report the SQLSTATE of a refused connection, only the server's message.
_KEPT_OUT_WORDS = (
    "authentication failed",
    "no password supplied",
    "pg_hba.conf",
    "does not exist",
    "is not permitted to log in",
)
_MAY_NOT_WORDS = "permission denied"
_TOO_MANY_CONNECTIONS = "53300"
_CROWDED_WORDS = (
    "too many clients already",
    "remaining connection slots are reserved",
    "too many connections for",
)

# What libpq writes around the reason: the address, which pulsed's errors name, and a question.
_BEFORE_THE_REASON = re.compile(
    r'^connection failed: connection to server at "[^"]*"( \([^)]*\))?, port \d+ failed: (FATAL: )?'
)
_BEHIND_THE_REASON = re.compile(r" Is the server running .*\?$")


def translate(error: BaseException, verb: str, where: str) -> StorageError:
    """Return the StorageError for a driver's error; a transient one if a retry may succeed."""
    state = _state(error)
    text = f"{verb} failed on the {where}: {_message(error)}"
    if is_crowded(error):
        return TooManyConnections(f"{text}.")
    if state in _BUSY or (state == _NOT_UNIQUE and _KEY_INDEX in str(error)):
        return StorageBusy(f"{text}.")
    if _is_transient(error, state):
        return TransientStorageError(f"{text}.")
    if state == "53100":
        return StorageFull(f"{text}. Nothing was stored; free some space and try again.")
    if state in _NO_SUCH_TABLE:
        return SchemaError(
            f"{text}. Its pulsed tables are missing or too old; run `pulsed migrate up` there."
        )
    if state == _MAY_NOT or (state is None and _MAY_NOT_WORDS in str(error)):
        return StorageError(
            f"{text}. The role lacks a privilege: grant it what the message names. pulsed reads "
            "and writes its tables, and creates them unless migrate=False."
        )
    if _is_about_the_row(error, state):
        return StorageRefused(f"{text}.")
    if state in _KEPT_OUT or _is_kept_out(error):
        return StorageError(f"{text}. Check the user, the password and the database's name.")
    if state in _SESSION_LOST_ITS_STATEMENT:
        return StorageError(
            f"{text}. If a pooler such as PgBouncer stands before the server, set "
            "prepared_statements=False."
        )
    return StorageError(f"{text}.")


def is_crowded(error: BaseException | None) -> bool:
    """Whether the server refused a connection because it has no slot left."""
    if isinstance(error, TooManyConnections):
        return True
    if (state := getattr(error, "sqlstate", None)) is not None:
        return bool(state == _TOO_MANY_CONNECTIONS)
    # libpq does not report the SQLSTATE of a refused connection.
    refused = isinstance(error, psycopg.OperationalError)
    return refused and any(words in str(error) for words in _CROWDED_WORDS)


def lost_the_server(error: BaseException) -> bool:
    """Whether the server is gone or was demoted: then idle connections are useless, too."""
    state = _state(error)
    if state is not None:
        return state.startswith("08") or state in _DISCONNECTED
    return isinstance(error, OSError | psycopg.OperationalError | asyncpg.InterfaceError)


def is_refusal(error: BaseException) -> bool:
    """Whether a verb has refused what it was asked for; it does so between two statements."""
    return isinstance(error, PulsedError) and not isinstance(error, StorageError)


def may_have_lost_its_session(error: BaseException) -> bool:
    """Whether a lost session caused an error in a user's code; not if its transaction timed out."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, TimeoutError):
        if isinstance(cause, DRIVER_ERRORS) and lost_the_server(cause):
            return _state(cause) not in _TOOK_ITS_TIME
        cause = cause.__cause__ or cause.__context__
    return False


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
        words in str(error) for words in (*_KEPT_OUT_WORDS, _MAY_NOT_WORDS)
    )


def _is_about_the_row(error: BaseException, state: str | None) -> bool:
    if state is not None:
        return state.startswith(_ABOUT_THE_ROW)
    return isinstance(error, psycopg.DataError | psycopg.IntegrityError)  # raised by the driver


def with_type(error: BaseException) -> str:
    """Return an error's type and message for a log; only the type if it has no message."""
    message = _message(error)
    name = type(error).__name__
    return name if message == name else f"{name}: {message}"


def _state(error: BaseException) -> str | None:
    state: str | None = getattr(error, "sqlstate", None)
    return state


def _message(error: BaseException) -> str:
    """Return the message in one line, without DETAIL, which may hold a job's payload."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        return error.diag.message_primary
    if isinstance(error, asyncpg.PostgresError) and error.args:
        return str(error.args[0])
    text = " ".join(str(error).split())
    if text.count("connection to server at") == 1:  # with several hosts, each has its own reason
        text = _BEHIND_THE_REASON.sub("", _BEFORE_THE_REASON.sub("", text))
    return text.rstrip(".") or type(error).__name__
