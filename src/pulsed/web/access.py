"""Who may see and change what: roles, and the ways in which a visitor is authenticated."""

from __future__ import annotations

import base64
import binascii
import hmac
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from starlette.requests import HTTPConnection

from pulsed.errors import ConfigError
from pulsed.listen_address import is_loopback
from pulsed.store import tokens
from pulsed.store.base import Store
from pulsed.store.encoded import bare
from pulsed.store.sql_store.store import SqlStore

TOKEN_COOKIE = "pulsed_token"  # noqa: S105 - its name
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


class Role(IntEnum):
    """What a visitor may do; each role includes the ones below it."""

    VIEWER = 1
    """See everything but payloads, results, headers, and the keys that are made from payloads."""
    OPERATOR = 2
    """See those, too; retry, cancel and signal jobs, pause schedules and run them now; drain and
    stop workers."""
    ADMIN = 3
    """Enqueue, edit and delete."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """An authenticated visitor. The audit log names it for everything it does."""

    name: str
    role: Role
    sees_payloads: bool | None = None
    """None: if its role is OPERATOR or higher."""

    @property
    def may_see_payloads(self) -> bool:
        """Whether payloads, results, headers and keys are shown."""
        return self.role >= Role.OPERATOR if self.sees_payloads is None else self.sees_payloads

    def may(self, role: Role) -> bool:
        """Whether it has this role or a higher one."""
        return self.role >= role


class Access(ABC):
    """Authenticates visitors."""

    has_login = False
    """Whether the login page can help a visitor without credentials."""
    challenge: str | None = None
    """The value of WWW-Authenticate for a visitor without credentials."""

    @abstractmethod
    async def visitor(self, connection: HTTPConnection, store: Store) -> Visitor | None:
        """Return the visitor behind a request; None if it is not authenticated."""

    def accepts_host(self, host: str) -> bool:  # noqa: ARG002
        """Whether the request's Host header names this site: protects against DNS rebinding."""
        return True


@dataclass(frozen=True, slots=True)
class Local(Access):
    """Admits every visitor from this machine, and none from elsewhere."""

    role: Role = Role.VIEWER

    async def visitor(self, connection: HTTPConnection, store: Store) -> Visitor | None:
        """Return the visitor if its address is a loopback one."""
        del store
        client = connection.client
        if client is None or not is_loopback(client.host):
            return None
        return Visitor("local", self.role, sees_payloads=True)

    def accepts_host(self, host: str) -> bool:
        """Whether it is a name of this machine: a foreign page cannot pretend to be this site."""
        return host in LOOPBACK_NAMES


class Tokens(Access):
    """Admits holders of a token of the database, as ``pulsed token new`` makes them.

    The token comes as a bearer token, as the password of basic authentication, or from the login
    page. ``read`` is a viewer, ``operate`` an operator and ``admin`` an administrator.
    """

    has_login = True
    challenge = "Bearer"

    async def visitor(self, connection: HTTPConnection, store: Store) -> Visitor | None:
        """Return the visitor whose token the request carries."""
        secret = _bearer(connection) or connection.cookies.get(TOKEN_COOKIE)
        return await self.known(secret, store) if secret else None

    async def known(self, secret: str, store: Store) -> Visitor | None:
        """Return the visitor with this token; None if it is unknown or gives no role here."""
        store = bare(store)
        if not isinstance(store, SqlStore):
            raise ConfigError("Tokens are in the database: the dashboard needs its URL for them.")
        token = await tokens.find(store, secret)
        if token is None or token.topics is not None or token.queues is not None:
            return None
        roles = [_TOKEN_ROLES[role] for role in token.roles if role in _TOKEN_ROLES]
        return Visitor(token.name, max(roles)) if roles else None


_TOKEN_ROLES = {"read": Role.VIEWER, "operate": Role.OPERATOR, "admin": Role.ADMIN}


class Basic(Access):
    """Admits users by name and password.

    Args:
        users: For each name, the password and the role.
    """

    challenge = 'Basic realm="pulsed", charset="UTF-8"'

    def __init__(self, users: Mapping[str, tuple[str, Role]]) -> None:
        if not users or any(not password for password, _ in users.values()):
            raise ConfigError("Give at least one user, and every user a password.")
        self._users = dict(users)

    async def visitor(self, connection: HTTPConnection, store: Store) -> Visitor | None:
        """Return the user whose name and password the request carries."""
        del store
        given = _basic(connection)
        if given is None:
            return None
        name, password = given
        wanted, role = self._users.get(name, ("", Role.VIEWER))
        is_right = hmac.compare_digest(password.encode(), wanted.encode())
        return Visitor(name, role) if is_right and name in self._users else None


@dataclass(frozen=True, slots=True)
class Delegated(Access):
    """Lets the application that mounts the dashboard decide.

    Args:
        decide: Gets the request, and returns a ``Visitor``, or None for a stranger. May be async.
    """

    decide: Callable[[HTTPConnection], Visitor | Awaitable[Visitor | None] | None]

    async def visitor(self, connection: HTTPConnection, store: Store) -> Visitor | None:
        """Return what the application decides."""
        del store
        found = self.decide(connection)
        return await found if inspect.isawaitable(found) else found


def _bearer(connection: HTTPConnection) -> str | None:
    scheme, _, rest = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip() or None
    given = _basic(connection)
    return given[1] if given else None


def _basic(connection: HTTPConnection) -> tuple[str, str] | None:
    scheme, _, rest = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(rest, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (name, password) if colon else None
