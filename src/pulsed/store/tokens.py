"""The tokens of a server's callers, kept in the database that it serves.

A token is 256 random bits, so its plain SHA-256 cannot be brute-forced. A slow hash protects
passwords that people choose; here it would only cost the server time on every call.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime

import msgspec

from pulsed.model.audit import Operator
from pulsed.store.sql.dialect import Dialect
from pulsed.store.sql.statement import Row, Statement
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.verbs.audit import ActResult
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Script, VerbKind, verb

PREFIX = "pulsed_"


@dataclass(frozen=True, slots=True)
class Token:
    """A caller of the server, with its credentials and permissions."""

    name: str
    digest: str | None
    """None if the caller authenticates with a client certificate of this name."""
    roles: tuple[str, ...]
    topics: tuple[str, ...] | None
    queues: tuple[str, ...] | None
    created_at: datetime | None = None

    def is_proven_by(self, secret: str) -> bool:
        """Whether this is the secret, compared in constant time."""
        return self.digest is not None and hmac.compare_digest(self.digest, digest_of(secret))


def new_secret() -> str:
    """Return a new random token."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """Return the digest of a token, which is all that is stored."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


async def add(store: SqlStore, token: Token, *, by: Operator | None = None) -> bool:
    """Store a token; False if the name is taken."""
    verb = _add(store.engine, token)
    detail = " ".join((token.name, *token.roles))
    return await store.act(verb, by, "new token", lambda added: ActResult(int(added), detail))


async def read(store: SqlStore) -> list[Token]:
    """Read all tokens, by name."""
    return await store.run(_read(store.engine))


async def find(store: SqlStore, secret: str) -> Token | None:
    """Read the token with this secret; None if there is none."""
    found = await store.run(_find(store.engine, digest_of(secret)))
    return next((token for token in found if token.is_proven_by(secret)), None)


async def remove(store: SqlStore, name: str, *, by: Operator | None = None) -> bool:
    """Revoke a token; False if there is none of that name."""
    verb = _remove(store.engine, name)
    return await store.act(verb, by, "revoke token", lambda gone: ActResult(int(gone), name))


@verb(VerbKind.TRANSACTION, name="add_token")
def _add(engine: Engine, token: Token) -> Script[bool]:
    values = {
        "name": token.name,
        "digest": token.digest,
        "roles": _json(token.roles),
        "topics": _json(token.topics),
        "queues": _json(token.queues),
    }
    if (yield Statement(engine.tokens.add_token, values)):
        return True
    # A retry after a lost answer finds its own row: the digest is the same.
    there = yield Statement(engine.tokens.read_digest, {"name": token.name})
    return token.digest is not None and bool(there) and there[0][0] == token.digest


@verb(VerbKind.READ, name="read_tokens", urgent=True)
def _read(engine: Engine) -> Script[list[Token]]:
    found = yield Statement(engine.tokens.read_tokens, {})
    return [_token(engine.dialect, row) for row in found]


@verb(VerbKind.READ, name="find_token")
def _find(engine: Engine, digest: str) -> Script[list[Token]]:
    found = yield Statement(engine.tokens.find_token, {"digest": digest})
    return [_token(engine.dialect, row) for row in found]


@verb(VerbKind.TRANSACTION, name="remove_token")
def _remove(engine: Engine, name: str) -> Script[bool]:
    return bool((yield Statement(engine.tokens.remove_token, {"name": name})))


def _token(d: Dialect, row: Row) -> Token:
    name, digest, roles, topics, queues, created_at = row
    return Token(name, digest, _list(roles) or (), _list(topics), _list(queues), d.time(created_at))


def _json(names: tuple[str, ...] | None) -> str | None:
    return None if names is None else msgspec.json.encode(names).decode()


def _list(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else msgspec.json.decode(text, type=tuple[str, ...])
