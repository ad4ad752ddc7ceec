"""A process that performs a bulk operation, and is killed by SIGKILL inside of its third batch.

    python -m tests.support.dying_bulk URL ID BATCH STATEMENT

``STATEMENT`` is the number of the batch's statement before which it dies; 0: after its commit.
"""

import os
import signal
import sys
from typing import Any
from uuid import UUID

from msgspec import structs

from pulsed.engine.upkeep import bulk
from pulsed.store.blocking import run_blocking
from pulsed.store.verbs import bulk as verbs
from pulsed.store.verbs.script import Script, Verb
from tests.support.processes import open_store

FATAL = 3
"""The batch in which it dies."""


def main(url: str, bulk_id: str, batch: str, fatal: str) -> None:
    verbs.BATCH = int(batch)
    bulk.REST = 0.0
    store: Any = open_store(url.removeprefix("sqlite:///"))
    perform, batches = store.perform, 0

    def dying(script: Script[Any]) -> Script[Any]:
        rows, count = None, 0
        while True:
            try:
                statement = next(script) if rows is None else script.send(rows)
            except StopIteration as finished:
                return finished.value
            count += 1
            if count == int(fatal):
                die()
            rows = yield statement

    async def performing(verb: Verb[Any]) -> Any:
        nonlocal batches
        is_batch = verb.name == "perform_bulk" and verb.short_lock_wait
        batches += is_batch
        if is_batch and batches == FATAL:
            script = verb.script
            result = await perform(structs.replace(verb, script=lambda: dying(script())))
            die()
            return result
        return await perform(verb)

    store.perform = performing
    run_blocking(bulk.perform_to_end(store, UUID(bulk_id)))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
