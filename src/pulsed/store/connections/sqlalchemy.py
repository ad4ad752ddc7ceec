"""SQLAlchemy's sessions and connections, sync and async.

SQLAlchemy is not imported for others: its objects are known by the names of their classes. A
session begins its transaction with its first statement, and so does a connection; here, that is
the job. asyncpg has to be told by a statement of SQLAlchemy's own, which then ends what it began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pulsed.errors import ConfigError
from pulsed.store.blocking import is_blocking
from pulsed.store.connections.caller import CallerConnection

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session, SessionTransaction

_PENDING = "pulsed.after_commit"
"""Where a session's own dictionary has the functions to call after its commit."""


class SqlAlchemy:
    """Sessions, scoped sessions and connections of SQLAlchemy 2."""

    def accepts(self, given: object) -> bool:
        return any(_is_ours(kind) for kind in type(given).__mro__)

    async def resolve(self, given: Any) -> CallerConnection:
        kind = _kind_of(given)
        if kind in _ASYNC and is_blocking():
            raise ConfigError(
                f"A blocking method cannot use a SQLAlchemy {kind}. Use its a… twin: "
                "`await job.using(conn=session).aenqueue(...)`. Nothing was stored."
            )
        match kind:
            case "scoped_session":
                return _of_session(given())
            case "Session":
                return _of_session(given)
            case "Connection":
                return CallerConnection(_begun(given).connection.driver_connection)
            case "async_scoped_session":
                return await _of_async_session(given())
            case "AsyncSession":
                return await _of_async_session(given)
            case "AsyncConnection":
                return CallerConnection(await _driver_of(given))
        raise ConfigError(
            f"using(conn=...) cannot use SQLAlchemy's {type(given).__qualname__}, which is in no "
            "transaction. Pass a Session, an AsyncSession, or a connection of the engine: "
            "`with engine.begin() as connection:`."
        )


_ASYNC = {"AsyncSession", "async_scoped_session", "AsyncConnection"}
_KINDS = {"Session", "scoped_session", "Connection", *_ASYNC}


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "sqlalchemy"


def _kind_of(given: object) -> str | None:
    """Return which of SQLAlchemy's classes this is, or inherits from."""
    names = (kind.__name__ for kind in type(given).__mro__ if _is_ours(kind))
    return next((name for name in names if name in _KINDS), None)


def _of_session(session: Session) -> CallerConnection:
    with _refused_without_connection():
        connection = session.connection()
    driver = connection.connection.driver_connection
    return CallerConnection(driver, partial(_after_commit, session))


async def _of_async_session(session: AsyncSession) -> CallerConnection:
    with _refused_without_connection():
        connection = await session.connection()
    driver = await _driver_of(connection)
    return CallerConnection(driver, partial(_after_commit, session.sync_session))


@contextmanager
def _refused_without_connection() -> Iterator[None]:
    """Say what a session lacks that is bound to no database or to several, or must not begin."""
    from sqlalchemy.exc import InvalidRequestError  # noqa: PLC0415 - not for those without it

    try:
        yield
    except InvalidRequestError as error:
        raise ConfigError(
            f"using(conn=...) got a session that has no connection to use: {error} If it has "
            "several databases, pass its connection to pulsed's: "
            "`session.connection(bind_arguments={'bind': engine})`. Nothing was stored."
        ) from error


def _begun(connection: Connection) -> Connection:
    if not connection.in_transaction():
        connection.begin()
    return connection


async def _driver_of(connection: AsyncConnection) -> Any:
    if not connection.in_transaction():
        await connection.begin()
    driver: Any = (await connection.get_raw_connection()).driver_connection
    if hasattr(driver, "is_in_transaction") and not driver.is_in_transaction():
        await connection.exec_driver_sql("SELECT 1")  # asyncpg begins with the first statement
    return driver


# -- after the commit -----------------------------------------------------------------------------


class _Pending(NamedTuple):
    """A function to call after the commit, and the transactions that must not be rolled back."""

    inside: Sequence[SessionTransaction]
    """The savepoint that is open, those around it, and the transaction itself."""
    call: Callable[[], None]


def _after_commit(session: Session, call: Callable[[], None]) -> None:
    """Call a function when the outermost transaction of a session has committed.

    It is not called if a savepoint that is open now is rolled back.
    """
    if _PENDING not in session.info:
        from sqlalchemy import event  # noqa: PLC0415 - not for those without it

        session.info[_PENDING] = []
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_soft_rollback", _rolled_back)
        event.listen(session, "after_transaction_end", _ended)
    session.info[_PENDING].append(_Pending(_open_transactions(session), call))


def _open_transactions(session: Session) -> Sequence[SessionTransaction]:
    found = []
    transaction = session.get_nested_transaction() or session.get_transaction()
    while transaction is not None:
        found.append(transaction)
        transaction = transaction.parent
    return found


def _committed(session: Session) -> None:
    if session.in_nested_transaction():  # a savepoint was released
        return
    pending, session.info[_PENDING] = session.info[_PENDING], []
    for each in pending:
        each.call()


def _rolled_back(session: Session, transaction: SessionTransaction) -> None:
    """Forget what was to follow the commit of a transaction, or the release of a savepoint."""
    pending = session.info[_PENDING]
    session.info[_PENDING] = [each for each in pending if transaction not in each.inside]


def _ended(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None:  # if it has committed, the functions are called already
        session.info[_PENDING].clear()
