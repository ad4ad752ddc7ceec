"""Where a PostgreSQL database is, said so that both drivers understand the same.

libpq's reading of the URL is the truth. asyncpg takes the keywords it knows and sends all others to
the server as settings, which then refuses the connection; so those are left out for it.
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
"""Seconds that one of several hosts may take to answer, before the next is tried."""
LONGEST_SCHEMA = 48
"""PostgreSQL cuts names at 63 bytes; the schema's is part of the notification channel's."""

POOLS = 4
"""Pools of ``pool_size``: an event loop's work, its reports, its steps; blocking callers."""
RESERVED = 4
"""Connections beside them: for claims 2, for wake-ups and heartbeats 1 each."""
FEWEST_CONNECTIONS = 9
"""One of each pool; a server has none for steps, but 4 for the heartbeats of remote workers."""

_ASYNCPG_READS = (
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslnegotiation", "sslcrl", "sslpassword"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs"),
    *("passfile", "service", "krbsrvname", "gsslib", "options"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions(StoreOptions):
    """How to use the database."""

    schema: str | None = None
    """The schema of pulsed's tables; without one, the first of the role's search path."""
    pool_size: int = 10
    """Connections for each event loop, and as many for blocking callers; opened when needed.

    As many again are for a loop's reports, and for transactions of its steps. Claims (2),
    heartbeats through a server (4) and a listener (1) have their own beside a loop's, a worker's
    heartbeats (1) beside the blocking ones.
    """
    max_connections: int | None = None
    """The most connections of this process, with all that are named above; pool_size follows."""
    prepared_statements: bool = True
    """False behind a PgBouncer in transaction mode: nothing is then kept in a session."""
    listen_url: str | None = None
    """A direct URL for wake-ups when the main one leads to a pooler; else workers only poll."""
    connect_timeout: float = 10.0
    statement_timeout: float = 30.0
    idle_in_transaction_timeout: float = 60.0
    """Seconds after which the server ends a session of ours that stopped inside a transaction."""
    application_name: str = "pulsed"
    """What ``pg_stat_activity`` shows, followed by what the session is for: ``pulsed/claim``."""

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
        """How many connections each of the pools may have."""
        if self.max_connections is None:
            return self.pool_size
        return min(self.pool_size, (self.max_connections - RESERVED) // POOLS)


def _is_identifier(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None and len(name) <= LONGEST_SCHEMA


@dataclass(frozen=True)
class Address:
    """One database, as libpq's keywords."""

    keywords: dict[str, str] = field(repr=False)  # has the password in it

    @classmethod
    def parse(cls, url: str) -> Address:
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
        if len(address.hosts) > 1:  # all but one of them are standbys
            keywords.setdefault("target_session_attrs", "read-write")
        return address

    @property
    def hosts(self) -> list[str]:
        """The servers to try, in this order."""
        return (self.keywords.get("host") or self.keywords.get("hostaddr") or "").split(",")

    def alternatives(self) -> list[Address]:
        """Return the address of each host by itself."""
        if len(self.hosts) == 1:
            return [self]
        name = "host" if self.keywords.get("host") else "hostaddr"
        ports = self.keywords.get("port", "").split(",")
        return [
            Address(self.keywords | {name: host, "port": port})
            for host, port in zip_longest_last(self.hosts, ports)
        ]

    def reordered(self, order: list[int]) -> Address:
        """Return the same hosts in another order."""
        lists = {
            name: self.keywords[name].split(",")
            for name in ("host", "hostaddr", "port")
            if self.keywords.get(name, "").count(",") == len(order) - 1
        }
        moved = {name: ",".join(each[place] for place in order) for name, each in lists.items()}
        return Address(self.keywords | moved)

    def place_of(self, host: str, port: int) -> int:
        """Return which of the hosts this one is, by what libpq says of a connection."""
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
        """Return how long one host may take: what the URL says, if it says so."""
        said = self.keywords.get("connect_timeout", "")
        if said.isdecimal() and int(said) > 0:
            return float(said)
        return default if len(self.hosts) == 1 else min(default, HOST_WITHIN)

    def for_psycopg(
        self, settings: dict[str, str], timeout: float, *, most: float = math.inf
    ) -> dict[str, Any]:
        """Return the arguments of ``psycopg.connect``, with settings for the session.

        ``most`` bounds the time to connect, whatever the URL says; libpq knows only whole seconds,
        and takes 1 for 2.
        """
        arguments: dict[str, Any] = dict(self.keywords)
        arguments["application_name"] = settings["application_name"]
        arguments["connect_timeout"] = max(2, round(min(self.connect_timeout(timeout), most)))
        said = [arguments["options"]] if arguments.get("options") else []
        ours = [
            f"-c {name}={_escaped(value)}"
            for name, value in settings.items()
            if name != "application_name"
        ]
        if said or ours:
            arguments["options"] = " ".join(said + ours)
        # A server that vanished without a word is noticed within a minute, not in two hours; and
        # one that does not acknowledge what it was sent, in half a minute, not in fifteen.
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
    """Pair hosts with ports; a single port is for all of them, as libpq has it."""
    return list(
        zip(hosts, ports if len(ports) == len(hosts) else ports[:1] * len(hosts), strict=True)
    )


def _is_plausible(keywords: dict[str, str]) -> bool:
    """Whether the parts look right; an unescaped password ends up in any of them."""
    ports = keywords.get("port", "").split(",")
    return (
        all(port == "" or (port.isdecimal() and int(port) < 65_536) for port in ports)
        and "@" not in keywords.get("host", "")
        and not re.search(r"[@/:]", keywords.get("dbname", ""))
    )


def _not_understood(reason: str = "") -> InvalidURL:
    """Say what a URL should look like, without repeating any of it: it may be a password."""
    parameter = re.search(r'invalid URI query parameter: "(\w+)"', reason)
    if parameter:
        return InvalidURL(f"PostgreSQL URLs have no parameter {parameter[1]!r}; remove it.")
    return InvalidURL(
        "The PostgreSQL URL cannot be read. Write postgresql://user:password@host:5432/database, "
        "and percent-encode special characters in the password (@ is %40, / is %2F, : is %3A)."
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
