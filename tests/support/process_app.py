"""An app whose handlers run in processes of their own; tests import it, and so do the processes."""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pulsed import Context, Pulse, Snooze

app = Pulse("sqlite:///:memory:", name="processes")
log = logging.getLogger("shop")
surrounded: list[str] = []


@app.around
def plain_around(ctx: Context) -> Iterator[None]:
    surrounded.append(f"enter {ctx.topic}")
    yield
    surrounded.append("leave")


@app.job(executor="process")
def describe(ctx: Context, name: str) -> dict[str, Any]:
    log.warning("describing %s", name, extra={"shop": 7})
    log.debug("not written")
    ctx.progress({"half": name})
    ctx.emit({"describing": name})
    found = list(surrounded)
    surrounded.clear()
    return {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "job": str(ctx.job_id),
        "attempt": ctx.attempt,
        "headers": dict(ctx.headers),
        "surrounded": found,
    }


@app.job(executor="process")
async def describe_async(ctx: Context, name: str) -> str:
    await asyncio.sleep(0)
    await ctx.aprogress(name)
    await ctx.aemit(name)
    return f"{name} {os.getpid()}"


@app.job(executor="process", max_attempts=1)
def crash(how: str) -> None:
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise ValueError("wrong")
        case "snooze":
            raise Snooze(60)
        case "system-exit":
            raise SystemExit(4)


@app.job(executor="process", max_attempts=1, memory_limit=400 * 2**20)
def hoard(megabytes: int) -> int:
    return len(bytearray(megabytes * 2**20))


@app.job(executor="process")
def deaf(file: str) -> None:
    """Note its process and that of a program it has started, and hold the GIL as well as it can."""
    program = subprocess.Popen(["sleep", "600"])
    Path(file).write_text(f"{os.getpid()} {program.pid}", encoding="utf-8")
    while True:
        try:
            time.sleep(0.01)
        except BaseException:  # noqa: BLE001 - nothing stops it
            continue


@app.job(executor="process")
def babble(text: str) -> None:
    """Write into the socket to the worker, which no honest handler does."""
    os.write(int(sys.argv[1]), bytes.fromhex(text))
    time.sleep(60)


def note(file: str, text: str) -> None:
    Path(file).write_text(text, encoding="utf-8")


@app.job(executor="process")
def obedient(ctx: Context, file: str) -> None:
    note(file, str(os.getpid()))
    while True:
        ctx.check()
        time.sleep(0.001)


@app.job(executor="process")
async def obedient_async(file: str) -> None:
    note(file, str(os.getpid()))
    await asyncio.Event().wait()


@app.job(executor="process", max_attempts=1)
async def workflow(ctx: Context) -> None:
    await ctx.sleep(60)


@app.job
async def beside(name: str) -> str:
    return f"{name} {os.getpid()}"
