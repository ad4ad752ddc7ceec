"""Tokens for the callers of a server under test."""

from __future__ import annotations

from typing import Any

from pulsed.store import tokens
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.tokens import Token


def given(store: SqliteStore, name: str, *roles: str, **limits: Any) -> str:
    """Make a token; returns its secret."""
    secret = tokens.new_secret()
    made = Token(name, tokens.digest_of(secret), roles, limits.get("topics"), limits.get("queues"))
    assert run_blocking(tokens.add(store, made))
    return secret
