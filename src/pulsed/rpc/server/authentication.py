"""Authentication of callers, by a token or by a client's certificate.

A call costs no query: a loop reads the tokens from the database every two seconds. While the
database is unreachable, cached tokens stay valid for ``KNOWN_FOR`` seconds. An unauthenticated
caller learns neither where the database is nor that it is unreachable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import grpc

from pulsed.engine.forever import forever
from pulsed.errors import StorageError
from pulsed.rpc.messages.contract import TOKEN_KEY
from pulsed.rpc.messages.errors import Refusal
from pulsed.rpc.server.access import ANONYMOUS, Caller, TokenRole, unauthenticated
from pulsed.store import tokens
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.tokens import Token

log = logging.getLogger("pulsed.server")

READ_EVERY = 2.0
"""Seconds between two reads: after that, a revoked token is refused and its streams are ended."""
KNOWN_FOR = 300.0
"""Seconds for which cached tokens stay valid while the database is unreachable."""
NEW_AFTER = 0.5
"""Seconds after a read from which on an unknown token may be a new one, and causes another read."""
READ_TIMEOUT = 1.0
"""Seconds that a caller with an unknown token waits for that read."""
SCHEME = "bearer "


class Authenticator(ABC):
    """Authenticates callers."""

    @abstractmethod
    async def authenticate(self, context: Any) -> Caller:
        """Return the caller, from the call's context, or refuse."""

    def knows(self, caller: Caller) -> bool:  # noqa: ARG002
        """Whether an admitted caller would be admitted again, with the same permissions."""
        return True

    async def run(self, checked: Callable[[], None]) -> None:  # noqa: ARG002
        """Refresh from the database, forever; call ``checked`` when permissions may differ."""
        await asyncio.Event().wait()


class NoAuthentication(Authenticator):
    """Admits every caller: for a server on a loopback address."""

    async def authenticate(self, context: Any) -> Caller:  # noqa: ARG002
        """Return a caller that may do everything."""
        return ANONYMOUS


class TokenAuthenticator(Authenticator):
    """Admits callers whose token or certificate name is in the database."""

    def __init__(
        self,
        store: SqlStore,
        *,
        every: float = READ_EVERY,
        known_for: float = KNOWN_FOR,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._every = every
        self._known_for = known_for
        self._clock = clock
        self._by_digest: dict[str, Token] = {}
        self._by_certificate: dict[str, Token] = {}
        self._callers: dict[str, Caller] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def authenticate(self, context: Any) -> Caller:
        """Return the caller, or refuse."""
        secret, names = _secret(context), _common_names(context)
        if secret is None and not names:
            raise unauthenticated(
                "This server requires a token: pulses://name:token@host, or $PULSED_TOKEN. "
                "`pulsed token new` makes one."
            )
        token = self._find(secret, names)
        if token is None or not self._is_fresh(self._known_for):
            await self._read_again()
            token = self._find(secret, names)
        if token is not None:
            return self._callers[token.name]
        if secret is not None:
            raise unauthenticated("This token is not known, or was revoked.")
        raise unauthenticated("This certificate's name is not known; see `pulsed token new`.")

    def knows(self, caller: Caller) -> bool:
        """Whether the caller's token still exists, unchanged."""
        return self._callers.get(caller.name) == caller

    async def run(self, checked: Callable[[], None]) -> None:
        """Poll the tokens, forever. While that fails, cached ones stay valid for a limited time."""

        async def tick() -> float:
            await self.refresh()
            checked()
            return self._every

        await forever(
            tick,
            "reading tokens",
            log=log,
            after_failure=lambda _: self._every,
            level=lambda _, failures: logging.WARNING if failures == 1 else logging.DEBUG,
        )

    async def refresh(self) -> None:
        """Read the tokens now, or wait for a read that is in flight."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(_mark_retrieved)
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        began = self._clock()
        found = await tokens.read(self._store)
        self._by_digest = {token.digest: token for token in found if token.digest is not None}
        self._by_certificate = {token.name: token for token in found if token.digest is None}
        self._callers = {token.name: _caller(token) for token in found}
        self._read_at = began

    async def _read_again(self) -> None:
        """Read again for an unknown token; its caller learns nothing about the database."""
        if self._is_fresh(NEW_AFTER):
            return
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                await self.refresh()
        except (StorageError, TimeoutError):
            # From None: an unauthenticated caller must not learn where the database is.
            raise Refusal(
                grpc.StatusCode.UNAVAILABLE,
                "This server cannot authenticate callers at the moment; try again.",
            ) from None

    def _is_fresh(self, seconds: float) -> bool:
        return self._clock() - self._read_at < seconds

    def _find(self, secret: str | None, names: tuple[str, ...]) -> Token | None:
        if secret is not None:
            # Looked up by its digest, which reveals nothing about the secret, then compared in
            # constant time.
            token = self._by_digest.get(tokens.digest_of(secret))
            return token if token is not None and token.is_proven_by(secret) else None
        found = (self._by_certificate.get(name) for name in names)
        return next((token for token in found if token is not None), None)


def _mark_retrieved(reading: asyncio.Task[None]) -> None:
    """Retrieve the exception of a read, which no caller may be awaiting any more."""
    if not reading.cancelled():
        reading.exception()


def _secret(context: Any) -> str | None:
    for key, value in context.invocation_metadata() or ():
        if key == TOKEN_KEY and value[: len(SCHEME)].lower() == SCHEME:
            return str(value[len(SCHEME) :])
    return None


def _common_names(context: Any) -> tuple[str, ...]:
    names = context.auth_context().get("x509_common_name", ())
    return tuple(name.decode("utf-8", "replace") for name in names)


def _caller(token: Token) -> Caller:
    return Caller(
        token.name,
        frozenset(role for role in TokenRole if role in token.roles),  # others: later versions
        None if token.topics is None else frozenset(token.topics),
        None if token.queues is None else frozenset(token.queues),
        token.digest,
    )
