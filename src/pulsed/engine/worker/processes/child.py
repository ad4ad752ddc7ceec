"""A job process as its worker sees it: started, given a run, told to stop, killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pulsed.engine.worker.processes import logs
from pulsed.engine.worker.processes.messages import (
    LARGEST_FRAME,
    LENGTH,
    Emit,
    Hello,
    Leave,
    LogLine,
    Origin,
    Ready,
    Reply,
    ReportProgress,
    RunJob,
    RunOver,
    Stop,
    Unusable,
    frame,
    read_from_process,
)
from pulsed.engine.worker.run import Run, StopReason
from pulsed.errors import LeaseLost, ProcessDied, PulsedError
from pulsed.store.base import Store

log = logging.getLogger("pulsed.worker")

LAST_WORDS = 0.1
"""Seconds to read what a process sent before it died, if its socket stays open: a handler may have
forked, and the copy has the socket, too."""

COMMAND = (
    "import sys; sys.path.insert(0, sys.argv[3]); "
    "from pulsed.engine.worker.processes.main import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
OURS = str(Path(__file__).parents[4])
"""The folder that has pulsed in it."""


class ChildProcess:
    """One job process. For use in the event loop's thread only."""

    def __init__(self, store: Store, on_death: Callable[[ChildProcess], None]) -> None:
        self._store = store
        self._on_death = on_death
        self._run: Run | None = None
        self._answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _spawned(theirs.fileno())
            except OSError:  # out of memory or processes
                self._ours.close()
                raise
        self.jobs = 0
        """How many runs it has been given."""
        self.is_killed = False
        """Whether it was killed. It is dead when ``died`` is set."""
        self.died = asyncio.Event()

    async def load(self, origin: Origin) -> None:
        """Wait until the process has loaded the app; raises ``ProcessDied`` if it cannot."""
        loop = asyncio.get_running_loop()
        reader, self._writer = await asyncio.open_unix_connection(sock=self._ours)
        self._reading = asyncio.create_task(self._read(reader))
        threading.Thread(target=self._wait, args=[loop], name="pulsed-wait", daemon=True).start()
        self._send(Hello(origin, logs.lowest_level()))
        try:
            await self._answer
        except ProcessDied:
            self.kill()
            raise

    def begin(self, run: Run, memory_limit: int | None) -> asyncio.Future[RunOver]:
        """Run a job; the future has its end, or ``ProcessDied``."""
        self.jobs += 1
        self._run = run
        self._answer = asyncio.get_running_loop().create_future()
        if self.died.is_set():
            self._answer.set_exception(ProcessDied(self._how_it_died()))
        self._send(RunJob(run.assignment, memory_limit))
        return self._answer

    def end(self) -> None:
        """Forget the run that is over."""
        self._run = None

    def stop(self, why: StopReason) -> None:
        """Tell the run to stop."""
        self._send(Stop(why.name))

    def leave(self) -> None:
        """Let the process end by itself."""
        self._send(Leave())
        self._writer.close()

    def kill(self) -> None:
        """Kill the process, and the programs that its handlers have started."""
        self.is_killed = True
        if self._process.returncode is None:  # or another process may have its id by now
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(OSError):  # there is nothing left of it
            os.killpg(self._process.pid, signal.SIGKILL)

    # -- what it sends ----------------------------------------------------------------------------

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                while True:
                    self._heard(await _next_message(reader))
        except Exception:
            log.exception("job process %d sent an invalid message; killing it", self.pid)
            self.kill()

    def _heard(self, message: Any) -> None:
        match message:
            case Ready() | RunOver():
                if not self._answer.done():
                    self._answer.set_result(message)
            case Unusable(error):
                if not self._answer.done():
                    self._answer.set_exception(ProcessDied(error))
            case LogLine():
                logs.write(message, {} if self._run is None else self._run.log_fields())
            case ReportProgress() | Emit() if self._run is not None:
                task = asyncio.create_task(self._answered(self._run, message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case _:
                pass

    async def _answered(self, run: Run, message: ReportProgress | Emit) -> None:
        """Store what a handler reports, and tell it whether its run still holds the lease."""
        try:
            is_held = await self._stored(run, message)
        except PulsedError as error:
            self._send(Reply(message.number, is_held=True, error=str(error)))
        else:
            self._send(Reply(message.number, is_held))

    async def _stored(self, run: Run, message: ReportProgress | Emit) -> bool:
        if isinstance(message, ReportProgress):
            return await self._store.set_progress(run.lease, message.text)
        try:
            await run.context._put_item(message.text)  # noqa: SLF001 - the context is the run's own
        except LeaseLost:
            return False
        return True

    def _send(self, message: Any) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame(message))

    # -- its death --------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reap the process, in a thread: none stays behind as a zombie.

        Programs that it has started end with it. Its id is its own until it is reaped.
        """
        if hasattr(os, "waitid"):  # not on every macOS
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self._kill_group()
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._reaped)

    def _reaped(self) -> None:
        task = asyncio.create_task(self._end_after_last_words())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_after_last_words(self) -> None:
        await asyncio.wait([self._reading], timeout=LAST_WORDS)
        self._reading.cancel()
        self._writer.close()
        self.died.set()
        self._on_death(self)
        if not self._answer.done():
            self._answer.set_exception(ProcessDied(self._how_it_died()))

    def _how_it_died(self) -> str:
        code = self._process.returncode
        if code >= 0:
            return f"its process exited with code {code}"
        why = "; the system may have run out of memory" if -code == signal.SIGKILL else ""
        return f"its process was killed by signal {-code} ({_signal_name(-code)}){why}"


async def _next_message(reader: asyncio.StreamReader) -> Any:
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    if size > LARGEST_FRAME:
        raise ValueError(f"a message of {size:,} bytes; at most {LARGEST_FRAME:,} are read")
    return read_from_process(await reader.readexactly(size))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _spawned(descriptor: int) -> subprocess.Popen[bytes]:
    """Start the process, in a session of its own: the terminal's Ctrl-C is for the worker."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(descriptor), str(os.getpid()), OURS],
        stdin=subprocess.DEVNULL,
        pass_fds=[descriptor],
        start_new_session=True,
    )
