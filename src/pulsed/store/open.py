"""Opens the store that a URL names. An engine is imported only when a URL names it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pulsed.errors import ConfigError, InvalidURL, MissingDriver
from pulsed.model.backoff import RetryPolicy

if TYPE_CHECKING:
    from pulsed.store.base import Store

URL_VARIABLE = "PULSED_URL"
"""The variable with the default database URL of apps and commands."""

FORMS = (
    "sqlite:///relative/path.db, sqlite:////absolute/path.db, sqlite:// (in memory) or "
    "postgresql://user:password@host/database"
)

_ENDS_A_HOST = "[/?#]"
_BEHIND_THE_PATH = "(?s)[?#].*"
_CREDENTIAL = r"(?i)password\s*=\s*('(\\.|[^'\\])*'?|\S+)"


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The store options of an app, for every engine."""

    retry: RetryPolicy = msgspec.field(default_factory=RetryPolicy)
    dequeue_retry: RetryPolicy = msgspec.field(default_factory=RetryPolicy.dequeue)
    migrate: bool = True
    create: bool = True
    """SQLite: whether to create a file that does not exist."""
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    schema: str | None = None
    pool_size: int | None = None
    max_connections: int | None = None
    statement_timeout: float | None = None
    prepared_statements: bool = True
    listen_url: str | None = None
    clock: Callable[[], datetime] | None = None
    """A test's clock, in place of the database's."""


def open_store(url: str, settings: StoreSettings | None = None) -> Store:
    """Return the store that a URL names; it opens no connection before its first use."""
    settings = settings or StoreSettings()
    scheme = url.partition(":")[0].lower()
    if scheme == "sqlite":
        return _sqlite(url, settings)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url, settings)
    if scheme in ("pulse", "pulses"):
        raise ConfigError(f"pulse:// names a server; what is needed here is a database: {FORMS}.")
    raise InvalidURL(
        f"{redacted(url)!r} is not a database URL.{_hint(url)} It can be {FORMS}; or "
        "pulse://host:50051, for a pulsed server."
    )


@contextmanager
def scratch_settings(url: str, settings: StoreSettings) -> Iterator[StoreSettings]:
    """Lend a database without jobs for a test; yields how to open it.

    On PostgreSQL that is a schema of this process's own. An SQLite file must not exist: a test
    would run the jobs in it.
    """
    if url.partition(":")[0].lower() != "sqlite":
        require(url, "postgres", "asyncpg", "psycopg")
        from pulsed.store.postgres.scratch import scratch_schema  # noqa: PLC0415 - heavy

        with scratch_schema(url) as schema:
            yield msgspec.structs.replace(settings, schema=schema)
        return
    from pathlib import Path  # noqa: PLC0415 - for tests

    path = sqlite_path(url)
    if path is not None and Path(path).exists():
        raise ConfigError(f"{path} exists, and a test would run its jobs: name a new file.")
    yield settings


def redacted(url: str) -> str:
    """Return a URL without its password, for messages and logs.

    A password may be unescaped, with characters that end a host name. So it is taken to end at
    the last @, and where the parts are ambiguous nothing is shown.
    """
    scheme, slashes, rest = url.partition("://")
    if not slashes or rest.startswith("/"):  # keywords, or a file
        return re.sub(_CREDENTIAL, "password=…", url.partition("?")[0])
    named, at, where = rest.rpartition("@")
    user = named.partition(":")[0]
    if at and re.search(_ENDS_A_HOST, user):
        return f"{scheme}://…"
    return f"{scheme}://{user}{at}{re.sub(_BEHIND_THE_PATH, '', where)}"


def where(url: str) -> str:
    """Return a URL for display: without its password, and with the absolute path of a file.

    Two processes in two directories read ``sqlite:///jobs.db`` as two databases.
    """
    from pathlib import Path  # noqa: PLC0415 - for display

    if url.partition(":")[0].lower() == "sqlite" and (path := sqlite_path(url)) is not None:
        return f"sqlite:///{Path(path).absolute()}"
    return redacted(url)


def sqlite_path(url: str) -> str | None:
    """Return the file that an ``sqlite:`` URL names; None for a database in memory."""
    rest = url.partition(":")[2]
    if rest in ("//", "", "///:memory:"):
        return None
    if not rest.startswith("///"):
        name = rest.lstrip("/")
        raise InvalidURL(
            f"{url!r} has {_slashes(len(rest) - len(name))}: write sqlite:///{name} for a file in "
            f"the current directory, sqlite:////{name} for one in the root directory."
        )
    from urllib.parse import unquote  # noqa: PLC0415 - at the first use of an app

    path = unquote(rest.removeprefix("///"))
    if "?" in path or "\0" in path or path in ("", "/") or path.endswith("/"):
        raise InvalidURL(
            f"{url!r} does not name a file. Options are arguments of Pulse(...), not part of the "
            f"URL, and a path looks like this: {FORMS}."
        )
    return path


def _slashes(number: int) -> str:
    return "1 slash" if number == 1 else f"{number} slashes"


def _sqlite(url: str, settings: StoreSettings) -> Store:
    from pulsed.store.sqlite.connections import SqliteOptions  # noqa: PLC0415 - only if asked for
    from pulsed.store.sqlite.store import SqliteStore  # noqa: PLC0415 - only if asked for

    options = SqliteOptions(
        retry=settings.retry,
        dequeue_retry=settings.dequeue_retry,
        migrate=settings.migrate,
        create=settings.create,
        synchronous=settings.synchronous,
    )
    return SqliteStore(sqlite_path(url), options, clock=settings.clock)


def _postgres(url: str, settings: StoreSettings) -> Store:
    require(url, "postgres", "asyncpg", "psycopg")
    from pulsed.store.postgres.store import PostgresOptions, PostgresStore  # noqa: PLC0415 - heavy

    given: dict[str, Any] = {}
    if settings.pool_size is not None:
        given["pool_size"] = settings.pool_size
    if settings.statement_timeout is not None:
        given["statement_timeout"] = settings.statement_timeout
    options = PostgresOptions(
        retry=settings.retry,
        dequeue_retry=settings.dequeue_retry,
        migrate=settings.migrate,
        schema=settings.schema,
        max_connections=settings.max_connections,
        prepared_statements=settings.prepared_statements,
        listen_url=settings.listen_url,
        **given,
    )
    return PostgresStore(url, options, clock=settings.clock)


def _hint(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if scheme.startswith(("postgresql+", "postgres+", "sqlite+")):
        return f" Leave out {scheme[scheme.index('+') :]!r}: pulsed brings its own drivers."
    if not separator and url and "=" not in url:  # libpq's keywords are not a file name
        return f" For a file, write sqlite:///{url}."
    return ""


def require(url: str, extra: str, *modules: str) -> None:
    """Raise MissingDriver if a package that the URL needs is not installed."""
    require_for(repr(redacted(url)), extra, *modules)


def require_for(what: str, extra: str, *modules: str) -> None:
    """Raise MissingDriver if a package that something needs is not installed."""
    import importlib.util  # noqa: PLC0415 - for drivers

    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        from pulsed.extras import install_command  # noqa: PLC0415 - only to say so

        raise MissingDriver(
            f"{what} needs {' and '.join(missing)}, which "
            f"{'is' if len(missing) == 1 else 'are'} not installed: "
            f"{install_command(extra)}"
        )
