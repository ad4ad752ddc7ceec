"""Authentication by tokens: cached, refreshed, and while the database is away."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from pulsed.errors import TransientStorageError
from pulsed.rpc.messages.errors import Refusal
from pulsed.rpc.server import authentication
from pulsed.rpc.server.access import Caller
from pulsed.rpc.server.authentication import TokenAuthenticator
from pulsed.store import tokens
from pulsed.store.sqlite.store import SqliteStore
from tests.support.tokens import given
from tests.support.waiting import until

Code = grpc.StatusCode


class Away(SqliteStore):
    """A database that is down temporarily."""

    away = False
    reads = 0

    async def run(self, verb: Any, **options: Any) -> Any:
        self.reads += 1
        if self.away:
            raise TransientStorageError("cannot connect to db.internal:5432")
        return await super().run(verb, **options)


class Context:
    """The part of a call that an authenticator reads."""

    def __init__(self, secret: str | None) -> None:
        self._secret = secret

    def invocation_metadata(self) -> Any:
        return (("authorization", f"Bearer {self._secret}"),) if self._secret else ()

    def auth_context(self) -> dict[str, Any]:
        return {}


class TestAuthenticator:
    @pytest.fixture
    def away(self, database):
        return Away(database)

    @pytest.fixture
    def now(self):
        return [1_000.0]

    @pytest.fixture
    def authenticator(self, away, now):
        return TokenAuthenticator(away, known_for=60.0, clock=lambda: now[0])

    async def test_those_who_are_known_need_no_database(self, away, authenticator, now):
        context: Any = Context(given(away, "me", "work"))
        await authenticator.refresh()
        away.away = True
        reads = away.reads
        now[0] += 59
        caller: Caller = await authenticator.authenticate(context)
        assert (caller.name, away.reads) == ("me", reads)

    async def test_but_not_for_ever(self, away, authenticator, now):
        context: Any = Context(given(away, "me", "work"))
        await authenticator.refresh()
        away.away = True
        now[0] += 61
        with pytest.raises(Refusal, match="cannot authenticate callers") as refused:
            await authenticator.authenticate(context)
        assert refused.value.code is Code.UNAVAILABLE

    @pytest.mark.parametrize("known_before", [True, False])
    async def test_a_stranger_learns_nothing_of_the_database(
        self, away, authenticator, now, known_before
    ):
        if known_before:
            given(away, "me", "work")
            await authenticator.refresh()
        now[0] += 10
        away.away = True
        for secret in (None, tokens.new_secret()):
            with pytest.raises(Refusal) as refused:
                await authenticator.authenticate(Context(secret))
            assert "5432" not in str(refused.value)
            assert "db.internal" not in str(refused.value)

    async def test_who_shows_nothing_costs_no_read(self, away, authenticator):
        with pytest.raises(Refusal, match="requires a token"):
            await authenticator.authenticate(Context(None))
        assert away.reads == 0

    async def test_wrong_tokens_cost_one_read_now_and_then(self, away, authenticator, now):
        await authenticator.refresh()
        reads = away.reads
        for _ in range(100):
            with pytest.raises(Refusal, match="not known"):
                await authenticator.authenticate(Context(tokens.new_secret()))
        assert away.reads == reads
        now[0] += authentication.NEW_AFTER
        for _ in range(100):
            with pytest.raises(Refusal, match="not known"):
                await authenticator.authenticate(Context(tokens.new_secret()))
        assert away.reads == reads + 1

    async def test_a_new_token_is_known_at_once(self, away, authenticator, now):
        await authenticator.refresh()
        now[0] += 1
        caller = await authenticator.authenticate(Context(given(away, "new", "work")))
        assert caller.name == "new"

    async def test_a_database_that_does_not_answer_is_not_waited_for(
        self, away, authenticator, now, monkeypatch
    ):
        monkeypatch.setattr(authentication, "READ_TIMEOUT", 0.02)
        context: Any = Context(given(away, "me", "work"))
        await authenticator.refresh()
        silent = asyncio.Event()

        async def silence(verb):
            await silent.wait()
            raise TransientStorageError("it never answered")

        monkeypatch.setattr(away, "run", silence)
        now[0] += 10
        assert (await authenticator.authenticate(context)).name == "me"
        with pytest.raises(Refusal, match="cannot authenticate callers"):
            await authenticator.authenticate(Context(tokens.new_secret()))
        silent.set()

    async def test_the_gate_reads_again_and_again(self, away, monkeypatch):
        authenticator = TokenAuthenticator(away, every=0.001)
        seen: list[int] = []
        running = asyncio.create_task(authenticator.run(lambda: seen.append(away.reads)))
        await until(lambda: len(seen) >= 3)
        away.away = True
        reads = away.reads
        await until(lambda: away.reads >= reads + 3)
        away.away = False
        told = len(seen)
        await until(lambda: len(seen) >= told + 2)
        running.cancel()
