"""A workflow whose worker kills itself at a labelled point, once.

    python -m tests.support.crashing_workflow URL JOURNAL POINT

POINT is one of ``POINTS``. Steps write what they do into the file JOURNAL, which outlives them.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from msgspec import structs

from pulsed import Backoff, Context, Pulse, Router
from pulsed.store.sql.statement import Rows
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.verbs.script import Script, Verb
from tests.support import crashing_app
from tests.support.crashing_app import TICK, Journal, die_at

POINTS = {
    "effect": "after a step's effect, before its checkpoint",
    "recorded": "after the checkpoint",
    "tx": "in a transactional step, before its COMMIT",
    "committed": "after that COMMIT",
    "suspending": "inside the transaction that suspends it",
    "suspended": "after that",
    "children": "after its children were inserted",
}

router = Router()
options: Any = {"lease": 30.0, "backoff": Backoff.fixed(0), "max_attempts": 5}


def charge() -> int:
    crashing_app.journal.note("charge")
    die_at("effect")
    return 1


async def book(connection: Any) -> int:
    """Write a row: asyncpg's method is a coroutine, sqlite3's is not."""
    crashing_app.journal.note("book")
    done = connection.execute("INSERT INTO effects (n) VALUES (1)")
    if asyncio.iscoroutine(done):
        await done
    die_at("tx")
    return 2


@router.job(**options)
async def pack(n: int) -> int:
    crashing_app.journal.note("pack", n)
    return n


@router.job(**options)
async def shipment(ctx: Context) -> list[int]:
    charged = await ctx.step(charge)
    booked = await ctx.step(book, tx=True)
    await ctx.sleep(0.001)
    packed = await ctx.fan_out([pack.bind(n) for n in range(3)])
    return [charged, booked, *packed.values]


# -- the process ----------------------------------------------------------------------------------


def break_store(store: SqlStore) -> None:
    """Let the store die after, or in the middle of, the calls that a workflow makes."""
    perform, transaction = store.perform, store.step_transaction
    after = {"record": "recorded", "suspend": "suspended", "add_children": "children"}

    async def dying_perform(verb: Verb[Any]) -> Any:
        if verb.name == "suspend":
            script = verb.script
            verb = structs.replace(verb, script=lambda: halfway(script()))
        answer = await perform(verb)
        die_at(after.get(verb.name, ""))
        return answer

    def halfway(script: Script[Any]) -> Script[Any]:
        rows: Rows | None = None
        while True:
            try:
                statement = next(script) if rows is None else script.send(rows)
            except StopIteration as finished:
                return finished.value
            rows = yield statement
            die_at("suspending")

    def dying_transaction(*args: Any, **kwargs: Any) -> Any:
        return Dying(transaction(*args, **kwargs))

    setattr(store, "perform", dying_perform)  # noqa: B010 - an instance's own methods
    setattr(store, "step_transaction", dying_transaction)  # noqa: B010


class Dying:
    """A transaction whose process dies once it is committed."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        transaction = await self._manager.__aenter__()
        commit = transaction.commit

        async def committing(checkpoint: Any) -> None:
            await commit(checkpoint)
            die_at("committed")

        transaction.commit = committing
        return transaction

    async def __aexit__(self, *raised: object) -> Any:
        return await self._manager.__aexit__(*raised)


def main(url: str, path: str, point: str) -> int:
    crashing_app.journal, crashing_app.kill_at = Journal(Path(path)), point
    app = Pulse(url)
    app.include(router)
    break_store(app.store)  # type: ignore[arg-type]
    return app.run(concurrency=2, poll=0.05, tick=TICK).value


if __name__ == "__main__":
    # Handlers belong to the imported module, not to __main__.
    from tests.support import crashing_workflow  # noqa: PLW0406

    sys.exit(crashing_workflow.main(*sys.argv[1:]))
