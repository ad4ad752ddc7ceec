"""The gate of a server: who is calling, by a token or by a client's certificate.

A call costs no query: tokens are read from the database every two seconds, beside the calls. While
the database is away, those that were known go on being known for a while; a caller that proves
nothing learns nothing, neither where the database is nor that it is away.
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
from pulsed.rpc.server.access import ANYBODY, Caller, Role, unauthenticated
from pulsed.store import tokens
from pulsed.store.sql_store import SqlStore
from pulsed.store.tokens import Token

log = logging.getLogger("pulsed.server")

READ_EVERY = 2.0
"""Seconds after which a token that was revoked is refused, and its streams are ended."""
KNOWN_FOR = 300.0
"""Seconds for which tokens are believed while the database is away."""
NEW_AFTER = 0.5
"""A token that is not known may have been made since the last read, if that is so long ago."""
PATIENCE = 1.0
"""Seconds that a caller waits for the database to say whether its token is a new one."""
SCHEME = "bearer "


class Gate(ABC):
    """Decides who may call."""

    @abstractmethod
    async def admit(self, context: Any) -> Caller:
        """Return who is calling, from the call's context, or refuse."""

    def knows(self, caller: Caller) -> bool:  # noqa: ARG002
        """Whether somebody that was admitted would be admitted again, with the same rights."""
        return True

    async def run(self, checked: Callable[[], None]) -> None:  # noqa: ARG002
        """Keep up with the database, for ever; call ``checked`` when rights may have changed."""
        await asyncio.Event().wait()


class OpenGate(Gate):
    """Lets anybody in: for a server on a loopback address."""

    async def admit(self, context: Any) -> Caller:  # noqa: ARG002
        """Return a caller that may do everything."""
        return ANYBODY


class TokenGate(Gate):
    """Lets those in whom the database knows."""

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

    async def admit(self, context: Any) -> Caller:
        """Return the caller, or refuse."""
        secret, names = _secret(context), _common_names(context)
        if secret is None and not names:
            raise unauthenticated(
                "This server wants a token: pulses://name:token@host, or $PULSED_TOKEN. "
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
        """Whether the caller's token is there, unchanged."""
        return self._callers.get(caller.name) == caller

    async def run(self, checked: Callable[[], None]) -> None:
        """Read the tokens for ever. While that fails, those known stay valid for a while."""

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
        """Read the tokens now, or wait for a read that is under way."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(_look_at)
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        began = self._clock()
        found = await tokens.read(self._store)
        self._by_digest = {token.digest: token for token in found if token.digest is not None}
        self._by_certificate = {token.name: token for token in found if token.digest is None}
        self._callers = {token.name: _caller(token) for token in found}
        self._read_at = began

    async def _read_again(self) -> None:
        """Read again for a token that is not known; tell its caller nothing about the database."""
        if self._is_fresh(NEW_AFTER):
            return
        try:
            async with asyncio.timeout(PATIENCE):
                await self.refresh()
        except (StorageError, TimeoutError):
            # From None: a caller that has proven nothing is not told where the database is.
            raise Refusal(
                grpc.StatusCode.UNAVAILABLE,
                "This server cannot find out just now who is calling; try again.",
            ) from None

    def _is_fresh(self, seconds: float) -> bool:
        return self._clock() - self._read_at < seconds

    def _find(self, secret: str | None, names: tuple[str, ...]) -> Token | None:
        if secret is not None:
            # Found by its digest, which says nothing about the secret, and compared once more in
            # a time that does not depend on where they differ.
            token = self._by_digest.get(tokens.digest_of(secret))
            return token if token is not None and token.is_proven_by(secret) else None
        found = (self._by_certificate.get(name) for name in names)
        return next((token for token in found if token is not None), None)


def _look_at(reading: asyncio.Task[None]) -> None:
    """Take note of how a read ended which nobody may be waiting for any more."""
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
        frozenset(role for role in Role if role in token.roles),  # others are of later versions
        None if token.topics is None else frozenset(token.topics),
        None if token.queues is None else frozenset(token.queues),
        token.digest,
    )
