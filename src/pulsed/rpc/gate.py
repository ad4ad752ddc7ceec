"""The gate of a server: who is calling, by a token or by a client's certificate.

Tokens are read from the database and believed for a moment, so that a call costs no query; one
that was revoked is refused a moment later.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from pulsed.rpc.access import Caller, Role, unauthenticated
from pulsed.rpc.wire import TOKEN_KEY
from pulsed.store import tokens
from pulsed.store.sqlstore import SqlStore
from pulsed.store.tokens import Token

BELIEVED_FOR = 2.0
SCHEME = "bearer "


class TokenGate:
    """Lets those in whom the database knows."""

    def __init__(self, store: SqlStore, *, believed_for: float = BELIEVED_FOR) -> None:
        self._store = store
        self._believed_for = believed_for
        self._by_digest: dict[str, Token] = {}
        self._by_certificate: dict[str, Token] = {}
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def __call__(self, context: Any) -> Caller:
        """Return the caller, or refuse."""
        await self._know()
        secret = _secret(context)
        if secret is not None:
            return _caller(self._proven(secret))
        names = context.auth_context().get("x509_common_name", ())
        for name in names:
            token = self._by_certificate.get(name.decode("utf-8", "replace"))
            if token is not None:
                return _caller(token)
        if names:
            raise unauthenticated("This certificate's name is not known; see `pulsed token new`.")
        raise unauthenticated(
            "This server wants a token: pulses://name:token@host, or $PULSED_TOKEN. "
            "`pulsed token new` makes one."
        )

    def _proven(self, secret: str) -> Token:
        # Found by its digest, which says nothing about the secret, and compared once more in a
        # time that does not depend on where they differ.
        token = self._by_digest.get(tokens.digest_of(secret))
        if token is None or not token.is_proven_by(secret):
            raise unauthenticated("This token is not known, or was revoked.")
        return token

    async def _know(self) -> None:
        async with self._reading:
            if time.monotonic() - self._read_at < self._believed_for:
                return
            found = await tokens.read(self._store)
            self._by_digest = {token.digest: token for token in found if token.digest is not None}
            self._by_certificate = {token.name: token for token in found if token.digest is None}
            self._read_at = time.monotonic()


def _secret(context: Any) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == TOKEN_KEY and value[: len(SCHEME)].lower() == SCHEME:
            return str(value[len(SCHEME) :])
    return None


def _caller(token: Token) -> Caller:
    return Caller(
        token.name,
        frozenset(Role(role) for role in token.roles),
        None if token.topics is None else frozenset(token.topics),
        None if token.queues is None else frozenset(token.queues),
    )
