"""What a job process does: it loads the app, and runs one job after the other for its worker.

The main thread runs the handlers. A thread beside it reads what the worker sends, and ends the
process when the worker has gone, however that died.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from pulsed.engine.around import RunArounds
from pulsed.engine.error_text import handler_line, type_name
from pulsed.engine.process.event_loop import new_runner
from pulsed.engine.worker.processes.context import ProcessContext
from pulsed.engine.worker.processes.logs import forward_logs
from pulsed.engine.worker.processes.messages import (
    LENGTH,
    Emit,
    Hello,
    Leave,
    Ready,
    Reply,
    ReportProgress,
    RunJob,
    RunOver,
    Stop,
    Unusable,
    frame,
    read_from_worker,
)
from pulsed.engine.worker.processes.origin import load
from pulsed.engine.worker.run import Run, StopReason, call, finish, start
from pulsed.errors import PulsedError, StorageError
from pulsed.handler import clean_text
from pulsed.model.job import Assignment
from pulsed.model.outcome import Failed, Outcome, Waiting

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

READER_FAILED = 70
"""The exit code of a process that cannot read what its worker sends."""
LONGEST_GOODBYE = 5.0
"""Seconds that a process may take to close what is open."""
PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int) -> None:
    """Serve the worker at the other end of a socket until it says so, or has gone."""
    _die_with(parent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The worker decides when to stop: a service manager signals all processes of a service.
        # A function and not SIG_IGN, which programs that handlers start would inherit.
        signal.signal(number, lambda *_: None)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    JobProcess(Channel(socket.socket(fileno=descriptor))).serve()


class Channel:
    """The socket to the worker."""

    def __init__(self, connection: socket.socket) -> None:
        connection.set_inheritable(False)
        self._socket = connection
        self._incoming = connection.makefile("rb")
        self._lock = threading.Lock()
        self._is_copy = False
        os.register_at_fork(after_in_child=self._forked)

    def send(self, message: Any) -> None:
        """Send a message; nothing, in a copy of the process that a handler has forked."""
        data = frame(message)
        if not self._is_copy:
            with self._lock, contextlib.suppress(OSError):  # the worker has gone: see `_read`
                self._socket.sendall(data)

    def receive(self) -> Any:
        """Return the next message; raises ``EOFError`` when the worker has gone."""
        (size,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return read_from_worker(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        try:
            data = self._incoming.read(size)
        except OSError:
            data = b""
        if len(data) < size:
            raise EOFError
        return data

    def _forked(self) -> None:
        self._is_copy = True


class JobProcess:
    """Runs jobs, one at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._jobs: SimpleQueue[RunJob | None] = SimpleQueue()
        self._run: Run | None = None
        self._asked: dict[int, Future[bool]] = {}
        self._leaving = threading.Event()

    def serve(self) -> None:
        """Run jobs until the worker lets go."""
        hello: Hello = self._channel.receive()
        forward_logs(self._channel.send, hello.log_level)
        threading.Thread(target=self._read, name="pulsed-read", daemon=True).start()
        try:
            self._app = app = load(hello.origin)
            app.registry.resolve_all()
            self._arounds = RunArounds(app._arounds.runs)  # noqa: SLF001 - a higher layer's
        except BaseException as error:  # noqa: BLE001 - also SystemExit: the user's module
            self._channel.send(Unusable(_why_unusable(hello.origin.module, error)))
            sys.exit(1)
        self._channel.send(Ready())
        with new_runner() as self._loop:
            while (job := self._jobs.get()) is not None:
                self._channel.send(self._ended(job))
        self._app.close()

    # -- runs -------------------------------------------------------------------------------------

    def _ended(self, job: RunJob) -> RunOver:
        """Run a job, and return how it ended."""
        try:
            run = self._made(job)
        except PulsedError as error:  # the code here has no such handler
            return RunOver(Failed(clean_text(str(error)), final=True))
        self._run = run
        try:
            with _limited_memory(job.memory_limit):
                outcome = self._outcome(run)
        finally:
            self._run = None
        assert not isinstance(outcome, Waiting)  # its context refuses to wait
        if run.error is None:
            return RunOver(outcome)
        line = handler_line(run.error, run.handler.fn)
        return RunOver(outcome, type_name(type(run.error)), line)

    def _made(self, job: RunJob) -> Run:
        handler = self._app.registry.get(job.assignment.topic)
        return Run(job.assignment, handler, self._context_of, self._arounds)

    def _context_of(self, assignment: Assignment) -> ProcessContext:
        return ProcessContext(assignment, self._ask)

    def _outcome(self, run: Run) -> Outcome | None:
        if run.starts_on_loop:
            return self._loop.run(_on_loop(run))
        return copy_context().run(call, run)

    def _ask(self, message: type[ReportProgress | Emit], text: str) -> Future[bool]:
        """Have the worker store a text; the future tells whether the run holds its lease."""
        future: Future[bool] = Future()
        number = id(future)
        self._asked[number] = future
        self._channel.send(message(number, text))
        return future

    # -- what the worker sends, in a thread -------------------------------------------------------

    def _read(self) -> None:
        try:
            while True:
                self._obey(self._channel.receive())
        except EOFError:
            if self._leaving.is_set():
                threading.Event().wait(LONGEST_GOODBYE)
            os.killpg(0, signal.SIGKILL)  # with the programs that its handlers have started
        except BaseException:  # noqa: BLE001 - such as MemoryError, in a run with a limit
            os._exit(READER_FAILED)

    def _obey(self, message: Any) -> None:
        match message:
            case RunJob():
                self._jobs.put(message)
            case Stop(reason):
                self._stop(StopReason[reason])
            case Reply():
                _answer(self._asked.pop(message.number), message)
            case Leave():
                self._leaving.set()
                self._jobs.put(None)
            case _:
                pass

    def _stop(self, why: StopReason) -> None:
        run = self._run
        if run is None:
            return
        if run.starts_on_loop:
            self._loop.get_loop().call_soon_threadsafe(run.tell_to_stop, why)
        else:
            run.tell_to_stop(why)


def _answer(future: Future[bool], message: Reply) -> None:
    if not future.set_running_or_notify_cancel():  # an async handler was cancelled meanwhile
        return
    if message.error:
        future.set_exception(StorageError(message.error))
    else:
        future.set_result(message.is_held)


async def _on_loop(run: Run) -> Outcome | None:
    """Run an async handler, or a plain one that is surrounded by async code."""
    run.began = time.monotonic()
    rest = start(run, _in_thread)
    if rest is not None:
        if run.handler.is_async:
            run.keep(asyncio.current_task())
        await finish(run, rest)
    return run.outcome


async def _in_thread(function: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(function)


# -- the process ----------------------------------------------------------------------------------


def _die_with(parent: int) -> None:
    """Have Linux kill this process when its worker dies, also while a handler holds the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before that
        os._exit(1)


@contextlib.contextmanager
def _limited_memory(limit: int | None) -> Iterator[None]:
    """Have allocations fail beyond a limit of this process's memory, during a run."""
    if limit is None or resource is None:
        yield
        return
    # Linux counts all private writable memory as data; elsewhere, only address space is limited.
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    soft, hard = resource.getrlimit(kind)
    allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (allowed, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def _why_unusable(module: str, error: BaseException) -> str:
    trace = "".join(traceback.format_exception(error))
    return clean_text(f"its process could not load {module}: {trace}".rstrip())
