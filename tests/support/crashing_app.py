"""An app whose worker dies in many ways; tests run it as a process of its own and also import it.

    python -m tests.support.crashing_app URL JOURNAL [POINT [SLOTS]]

POINT is where the process kills itself, once: ``claimed``, ``running``, ``finished``, ``settling``.
Handlers write what they do into the file JOURNAL, a line at a time, so that it outlives them.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from msgspec import structs

from pulsed import Backoff, Context, Pulse, Router
from pulsed.engine.process import stop_signals as signals
from pulsed.engine.worker import runs as runner
from pulsed.store.base import Store
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs.script import Script, Verb

LEASE = 1.2
TICK = 0.3
PATIENT_LEASE = 6.0

router = Router()
options: Any = {"lease": LEASE, "backoff": Backoff.fixed(0), "max_attempts": 3}


class Journal:
    """A file that several processes append lines to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, *words: object) -> None:
        line = " ".join(map(str, words)) + "\n"
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line)

    @property
    def may_go(self) -> bool:
        """Whether the test has let the process go on."""
        return Path(f"{self.path}.go").exists()

    def let_go(self) -> None:
        Path(f"{self.path}.go").touch()

    @property
    def pipe(self) -> Path:
        """Opening it for reading blocks in the kernel until a writer opens it."""
        return Path(f"{self.path}.pipe")

    @property
    def deaths(self) -> int:
        """How many processes the poison has killed."""
        return sum(line.startswith("poison") for line in self.lines())

    def lines(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []


journal = Journal(Path(os.devnull))
kill_at = ""


def die_at(point: str) -> None:
    """Kill this process, if it is to die at this point."""
    if point == kill_at:
        journal.note("dying", point)
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()  # the signal takes a moment


# -- handlers -------------------------------------------------------------------------------------


@router.job(**options)
async def work(ctx: Context) -> int:
    journal.note("started", ctx.attempt)
    die_at("running")
    return ctx.attempt


@router.job(**options)
async def slow_at_first(ctx: Context) -> int:
    """Wait for ever in the first attempt."""
    journal.note("started", ctx.attempt)
    if ctx.attempt == 1:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            journal.note("cancelled")
            raise
    return ctx.attempt


@router.job(**options)
async def late_report(ctx: Context) -> int:
    """Report as soon as the process runs again after it was stopped."""
    journal.note("started", ctx.attempt)
    if ctx.attempt == 1:
        while not journal.may_go:  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
    return ctx.attempt


@router.job(**{**options, "lease": PATIENT_LEASE})
async def patient(ctx: Context) -> int:
    """Go on until the test lets it go, in every attempt."""
    journal.note("started", ctx.attempt)
    while not journal.may_go:  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(0.05)
    return ctx.attempt


@router.job(**{**options, "max_attempts": 2})
def poison(kind: str) -> None:
    """End the process, together with its siblings."""
    siblings = [line for line in journal.lines() if line == "sibling waits"]
    if not siblings:
        while "sibling waits" not in journal.lines():
            threading.Event().wait(0.01)
    journal.note("poison", kind)
    if kind == "exit":
        os._exit(3)
    elif kind == "segfault":
        ctypes.string_at(0)
    else:  # as the kernel does it, but for this process only
        resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
        with contextlib.suppress(MemoryError):
            hoard = bytearray(1 << 30)
            del hoard
        os.abort()  # what allocators and runtimes do when they get no memory


@router.job(**options)
async def sibling(ctx: Context) -> int:
    """Wait, in the first run, for the poison to take it along."""
    if not journal.deaths:
        journal.note("sibling waits")
        await asyncio.Event().wait()
    return ctx.attempt


@router.job(**{**options, "max_attempts": 1})
async def neighbour() -> None:
    """Wait for the poison to take it along, twice."""
    if journal.deaths < 2:
        journal.note("sibling waits")
        await asyncio.Event().wait()


@router.job(**options)
async def hold_interpreter(ctx: Context, seconds: float | None = None) -> int:
    """Let no other thread run, the heartbeat's included; in the first attempt only.

    Without ``seconds``, until a process opens the pipe beside the journal.
    """
    journal.note("holding", ctx.attempt)
    if ctx.attempt == 1:
        holding_it = ctypes.PyDLL(None)
        if seconds is None:
            holding_it.open(os.fsencode(journal.pipe), os.O_RDONLY)
        else:
            holding_it.usleep(int(seconds * 1_000_000))
    return ctx.attempt


@router.job(**{**options, "timeout": 0.05, "max_attempts": 1})
async def deaf() -> None:
    """Ignore every cancellation."""
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


# -- the process ----------------------------------------------------------------------------------


def break_store(store: Store) -> None:
    """Let the store die at the points between a claim and the end of a settle."""
    claim, settle, perform = store.claim, store.settle, getattr(store, "perform", None)

    async def dying_claim(*args: Any) -> Any:
        claimed = await claim(*args)
        if claimed:
            die_at("claimed")
        return claimed

    async def dying_settle(*args: Any, **kwargs: Any) -> Any:
        die_at("finished")
        return await settle(*args, **kwargs)

    async def dying_perform(verb: Verb[Any]) -> Any:
        if verb.name == "settle":
            script = verb.script
            verb = structs.replace(verb, script=lambda: halfway(script()))
        assert perform is not None
        return await perform(verb)

    def halfway(script: Script[Any]) -> Script[Any]:
        statement: Statement = next(script)
        while True:
            rows = yield statement
            die_at("settling")
            try:
                statement = script.send(rows)
            except StopIteration as finished:
                return finished.value

    for name, broken in (
        ("claim", dying_claim),
        ("settle", dying_settle),
        ("perform", dying_perform),
    ):
        setattr(store, name, broken)


def main(url: str, path: str, point: str = "", slots: str = "2") -> int:
    global journal, kill_at
    journal, kill_at = Journal(Path(path)), point
    logging.basicConfig(
        level=logging.INFO, filename=f"{path}.log", format="%(levelname)s %(message)s"
    )
    runner.UNSTOPPABLE_AFTER = 0.2
    signals.ECHO = 0.1
    app = Pulse(url)
    app.include(router)
    break_store(app.store)
    return app.run(concurrency=int(slots), poll=0.05, tick=TICK).value


if __name__ == "__main__":
    # Handlers belong to the imported module, not to __main__.
    from tests.support import crashing_app  # noqa: PLW0406

    sys.exit(crashing_app.main(*sys.argv[1:]))
