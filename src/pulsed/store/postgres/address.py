"""The address of a PostgreSQL database, with the same meaning for both drivers.

libpq parses the URL. asyncpg takes the keywords it knows and sends all others to the server as
settings, which then refuses the connection; so those are left out for asyncpg.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - else the first connection imports it, as in rpc/channels
import math
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pulsed.errors import ConfigError, InvalidURL
from pulsed.store.sql_store.store import StoreOptions

SCHEMES = ("postgresql://", "postgres://")
DEFAULT_PORT = 5432
HOST_WITHIN = 3.0
"""Connect timeout in seconds for one of several hosts, before the next is tried."""
LONGEST_SCHEMA = 48
"""PostgreSQL truncates names at 63 bytes, and the channel's name contains the schema's."""

POOLS = 4
"""Pools of ``pool_size``: an event loop's work, its reports, its steps; blocking callers."""
RESERVED = 4
"""Connections outside these pools: 2 for claims, 1 for notifications, 1 for heartbeats."""
FEWEST_CONNECTIONS = 9
"""One for each pool; a server has none for steps, but 4 for the heartbeats of remote workers."""

_ASYNCPG_READS = (
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslnegotiation", "sslcrl", "sslpassword"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs"),
    *("passfile", "service", "krbsrvname", "gsslib", "options"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions(StoreOptions):
    """The options of a PostgreSQL store."""

    schema: str | None = None
    """The schema of pulsed's tables; without one, the first of the role's search path."""
    pool_size: int = 10
    """Connections for each event loop, and as many for blocking callers; opened on demand.

    A loop has as many again for its reports, and for the transactions of its steps. Added to a
    loop's are those for claims (2), heartbeats through a server (4) and a listener (1); added to
    the blocking ones, that for a worker's heartbeats (1).
    """
    max_connections: int | None = None
    """The limit on this process's connections, all of the above included; it lowers pool_size."""
    prepared_statements: bool = True
    """False behind a PgBouncer in transaction mode: sessions then keep no state."""
    listen_url: str | None = None
    """A direct URL for LISTEN when the main one leads to a pooler; without it, workers poll."""
    connect_timeout: float = 10.0
    statement_timeout: float = 30.0
    idle_in_transaction_timeout: float = 60.0
    """Seconds after which the server ends a pulsed session that is idle in a transaction."""
    application_name: str = "pulsed"
    """The name in ``pg_stat_activity``, followed by the session's lane: ``pulsed/claim``."""

    def __post_init__(self) -> None:
        if self.pool_size < 1:
            raise ConfigError(f"pool_size must be 1 or more, not {self.pool_size!r}.")
        if self.statement_timeout <= 0:
            raise ConfigError(
                f"statement_timeout must be positive, not {self.statement_timeout!r}."
            )
        if self.max_connections is not None and self.max_connections < FEWEST_CONNECTIONS:
            raise ConfigError(
                f"max_connections must be {FEWEST_CONNECTIONS} or more, not "
                f"{self.max_connections!r}."
            )
        if self.schema is not None and not _is_identifier(self.schema):
            raise ConfigError(
                f"schema={self.schema!r} is not a plain identifier: use letters, digits and "
                f"underscores, {LONGEST_SCHEMA} at the most, and no digit first."
            )

    @property
    def size(self) -> int:
        """The connection limit of each pool."""
        if self.max_connections is None:
            return self.pool_size
        return min(self.pool_size, (self.max_connections - RESERVED) // POOLS)


def _is_identifier(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None and len(name) <= LONGEST_SCHEMA


@dataclass(frozen=True)
class PostgresAddress:
    """One database, as libpq's keywords."""

    keywords: dict[str, str] = field(repr=False)  # has the password in it

    @classmethod
    def parse(cls, url: str) -> PostgresAddress:
        """Read a URL, without connecting."""
        if not url.startswith(SCHEMES):
            scheme = url.partition("://")[0] if "://" in url else ""
            raise InvalidURL(
                "A PostgreSQL URL begins with postgresql:// or postgres://"
                + (f", not {scheme}://." if re.fullmatch(r"[a-z0-9+.-]+", scheme) else ".")
            )
        try:
            keywords = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        except (psycopg.Error, UnicodeEncodeError) as error:
            raise _not_understood(str(error)) from None
        if not _is_plausible(keywords):
            raise _not_understood()
        address = cls(keywords)
        if len(address.hosts) > 1:  # all but one are standbys
            keywords.setdefault("target_session_attrs", "read-write")
        return address

    @property
    def hosts(self) -> list[str]:
        """The hosts, in the order to try them."""
        return (self.keywords.get("host") or self.keywords.get("hostaddr") or "").split(",")

    def alternatives(self) -> list[PostgresAddress]:
        """Return a separate address for each host."""
        if len(self.hosts) == 1:
            return [self]
        name = "host" if self.keywords.get("host") else "hostaddr"
        ports = self.keywords.get("port", "").split(",")
        return [
            PostgresAddress(self.keywords | {name: host, "port": port})
            for host, port in zip_longest_last(self.hosts, ports)
        ]

    def reordered(self, order: list[int]) -> PostgresAddress:
        """Return the same hosts in another order."""
        lists = {
            name: self.keywords[name].split(",")
            for name in ("host", "hostaddr", "port")
            if self.keywords.get(name, "").count(",") == len(order) - 1
        }
        moved = {name: ",".join(each[place] for place in order) for name, each in lists.items()}
        return PostgresAddress(self.keywords | moved)

    def place_of(self, host: str, port: int) -> int:
        """Return the index of a host, given the host and port that libpq reports."""
        ports = self.keywords.get("port", "").split(",")
        known = [(h, int(p or DEFAULT_PORT)) for h, p in zip_longest_last(self.hosts, ports)]
        return known.index((host, port)) if (host, port) in known else 0

    @property
    def at(self) -> str:
        """Name the hosts for a message."""
        hosts = self.keywords.get("host") or self.keywords.get("hostaddr") or "the default host"
        ports = self.keywords.get("port", "").split(",")
        named = [f"{h}:{p}" if p else h for h, p in zip_longest_last(hosts.split(","), ports)]
        return ",".join(named)

    @property
    def where(self) -> str:
        """Name the database for a message: everything but the credentials."""
        database = self.keywords.get("dbname") or self.keywords.get("user") or "(default)"
        return f"PostgreSQL database {database!r} at {self.at}"

    def connect_timeout(self, default: float) -> float:
        """Return the timeout in seconds for one host: the URL's, if it has one."""
        given = self.keywords.get("connect_timeout", "")
        if given.isdecimal() and int(given) > 0:
            return float(given)
        return default if len(self.hosts) == 1 else min(default, HOST_WITHIN)

    def for_psycopg(
        self, settings: dict[str, str], timeout: float, *, most: float = math.inf
    ) -> dict[str, Any]:
        """Return the arguments of ``psycopg.connect``, with settings for the session.

        ``most`` bounds the connect timeout, whatever the URL says. libpq takes only whole seconds,
        and treats 1 as 2.
        """
        arguments: dict[str, Any] = dict(self.keywords)
        arguments["application_name"] = settings["application_name"]
        arguments["connect_timeout"] = max(2, round(min(self.connect_timeout(timeout), most)))
        given = [arguments["options"]] if arguments.get("options") else []
        own = [
            f"-c {name}={_escaped(value)}"
            for name, value in settings.items()
            if name != "application_name"
        ]
        if given or own:
            arguments["options"] = " ".join(given + own)
        # Keepalives detect a server that vanished within a minute instead of two hours. The user
        # timeout detects unacknowledged data in half a minute instead of fifteen.
        for name, value in (("keepalives_idle", 20), ("keepalives_interval", 10)):
            arguments.setdefault(name, value)
        arguments.setdefault("keepalives_count", 4)
        arguments.setdefault("tcp_user_timeout", 30_000)
        return arguments

    def for_asyncpg(self, settings: dict[str, str], timeout: float) -> dict[str, Any]:
        """Return the arguments of ``asyncpg.connect``, with settings for the session."""
        known = {name: self.keywords[name] for name in _ASYNCPG_READS if name in self.keywords}
        options = known.pop("options", None)
        hosts = self.keywords.get("host") or self.keywords.get("hostaddr")
        ports = self.keywords.get("port")
        return {
            "dsn": "postgresql://" + (f"?{urlencode(known)}" if known else ""),
            "host": hosts.split(",") if hosts else None,
            "port": [int(port or DEFAULT_PORT) for port in ports.split(",")] if ports else None,
            "user": self.keywords.get("user"),
            "password": self.keywords.get("password"),
            "database": self.keywords.get("dbname"),
            "timeout": self.connect_timeout(timeout),
            "server_settings": settings | ({"options": options} if options else {}),
        }


def zip_longest_last(hosts: list[str], ports: list[str]) -> list[tuple[str, str]]:
    """Pair hosts with ports; as in libpq, a single port is for all hosts."""
    return list(
        zip(hosts, ports if len(ports) == len(hosts) else ports[:1] * len(hosts), strict=True)
    )


def _is_plausible(keywords: dict[str, str]) -> bool:
    """Whether the parts are plausible; parts of an unescaped password may be in any of them."""
    ports = keywords.get("port", "").split(",")
    return (
        all(port == "" or (port.isdecimal() and int(port) < 65_536) for port in ports)
        and "@" not in keywords.get("host", "")
        and not re.search(r"[@/:]", keywords.get("dbname", ""))
    )


def _not_understood(reason: str = "") -> InvalidURL:
    """Return the error for an invalid URL, without quoting it: any part may be a password."""
    parameter = re.search(r'invalid URI query parameter: "(\w+)"', reason)
    if parameter:
        return InvalidURL(f"PostgreSQL URLs have no parameter {parameter[1]!r}; remove it.")
    return InvalidURL(
        "The PostgreSQL URL cannot be read. Write postgresql://user:password@host:5432/database, "
        "and percent-encode special characters in the password (@ is %40, / is %2F, : is %3A)."
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
