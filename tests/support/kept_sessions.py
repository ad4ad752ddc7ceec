"""A session of the tests' own on PostgreSQL that outlives a test: a new one costs 3 to 9 ms.

Tests may cut it off, with all the others of their server; then the next to ask gets a new one.
"""

import select
from typing import Any

import psycopg

_sessions: dict[str, psycopg.Connection[Any]] = {}


def kept_session(url: str) -> psycopg.Connection[Any]:
    """Return this process's session on a database, in autocommit mode; leave it as it was."""
    session = _sessions.get(url)
    if session is None or is_cut(session):
        forget(session)
        # Unprepared: a statement must not remember tables that a test has changed since.
        session = psycopg.connect(url, autocommit=True, prepare_threshold=None)
        _sessions[url] = session
    return session


def is_cut(session: psycopg.Connection[Any]) -> bool:
    """Whether it is closed, or the server has something to say though it was not asked."""
    return session.closed or bool(select.select([session.fileno()], [], [], 0)[0])


def forget_sessions() -> None:
    """Close all, at the end."""
    while _sessions:
        forget(_sessions.popitem()[1])


def forget(session: psycopg.Connection[Any] | None) -> None:
    if session is not None:
        session.close()
