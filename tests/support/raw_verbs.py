"""Verbs made of any SQL, and both ways to run one: for tests of what is around a verb."""

import asyncio

import pytest

from pulsed.store.blocking import run_blocking
from pulsed.store.sql.statement import Sql, Statement
from pulsed.store.verbs.script import Verb, VerbKind

both_drivers = pytest.mark.parametrize("mode", ["async", "blocking"])


def run(sql):
    """Return a statement without parameters."""
    return Statement(Sql(sql, ()), {})


def a_verb(sql, kind=VerbKind.SINGLE):
    """Return a verb of one statement, whose value is the rows."""

    def script():
        return (yield run(sql))

    return Verb("test", kind, script)


async def perform(store, mode, verb):
    """Run a verb in this event loop, or as a blocking caller in a thread without one."""
    if mode == "async":
        return await store.perform(verb)
    return await asyncio.to_thread(lambda: run_blocking(store.perform(verb)))
