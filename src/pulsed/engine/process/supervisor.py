"""Several worker processes under one parent, which replaces those that die.

Children are spawned, never forked: a fork would share connections and locks. Each has the read end
of a pipe as its stdin. The supervisor sends ``drain`` and ``abort`` through it, and not as signals:
a service manager may have signalled every process already, and a worker takes a later signal as a
request to abort. A child also drains when the pipe closes, so none outlives the supervisor, however
that ends. Each child has its own process group: a terminal's Ctrl-C reaches only the supervisor.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

from pulsed.engine.process.service_manager import ServiceManager
from pulsed.engine.process.stop_signals import HANG_UP, SignalDebouncer, stop_signals
from pulsed.wording import counted

log = logging.getLogger("pulsed.supervisor")

HEALTHY_AFTER = 60.0
"""Seconds a child must live for its earlier deaths to be forgotten."""
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
UNUSABLE = 2
"""The exit code for wrong usage: if no child has been healthy yet, none will be."""
DISMISSED = 79
"""The exit code of a child that an operator has asked to end: it is not replaced."""
POLL_INTERVAL = 1.0
"""Seconds between two ticks at most."""


class Stage(Enum):
    """How far the shutdown has come."""

    WORKING = "working"
    DRAINING = "draining"
    ABORTING = "aborting"
    KILLING = "killing"


STAGES = list(Stage)

DRAIN, ABORT = b"d", b"a"
COMMANDS = {Stage.DRAINING: DRAIN, Stage.ABORTING: ABORT}
"""What a child reads from its stdin; end of file means drain."""


class WorkerProcess:
    """One place for a worker process, and its restart history."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.start_at = 0.0
        self.quick_deaths = 0
        self.told = Stage.WORKING
        self.is_dismissed = False

    def died(self, now: float) -> float:
        """Record a death; returns the backoff before the next start, in seconds."""
        lived = now - self.started_at
        self.quick_deaths = 0 if lived >= HEALTHY_AFTER else self.quick_deaths + 1
        delay = 0.0
        if self.quick_deaths:
            doubled = FIRST_DELAY * 2.0 ** min(self.quick_deaths - 1, 16)
            delay = min(LONGEST_DELAY, doubled) * random.uniform(0.8, 1.2)  # noqa: S311
        self.start_at = now + delay
        return delay


class Supervisor:
    """Keeps ``processes`` children running until it is stopped.

    ``command`` is called with a child's number, from 1; one that replaces it has the same.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        processes: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = command
        self._clock = clock
        self._signalled_at: list[float] = []
        self._asked = SignalDebouncer()
        self._proven = False
        self._codes: list[int] = []
        self.children = [WorkerProcess(number) for number in range(1, processes + 1)]
        self.stage = Stage.WORKING

    # -- life -----------------------------------------------------------------------------------

    def run(self) -> int:
        """Supervise until the last child has ended; returns the exit code for this process."""
        log.info(
            "supervisor %d: %s", os.getpid(), counted(len(self.children), "process", "processes")
        )
        manager = ServiceManager.take()  # before a child inherits it
        with self._woken_by_signals() as wait:
            try:
                while not self.tick():
                    self._report(manager)
                    wait(min(self._until_next_start(), manager.interval))
            finally:
                self._kill()
        log.info("supervisor ended with code %d", self.exit_code)
        return self.exit_code

    def stop(self) -> None:
        """Drain; when called again, abort; when called once more, kill."""
        self.stage = STAGES[min(STAGES.index(self.stage) + 1, len(STAGES) - 1)]
        log.info("%s %s", self.stage.value, counted(len(self.alive), "process", "processes"))

    def tick(self) -> bool:
        """Reap dead children, start those due, pass on the stage; True when all have ended."""
        while self._signalled_at:
            if self._asked.again(self._signalled_at.pop(0)):
                self.stop()
        for child in self.children:
            self._notice_death(child)
        if self.stage is Stage.WORKING:
            for child in self.wanted:
                if child.process is None and child.start_at <= self._clock():
                    self._start(child)
            return not self.wanted
        for child in self.alive:
            self._tell(child)
        return not self.alive

    @property
    def alive(self) -> list[WorkerProcess]:
        """The children whose process runs."""
        return [child for child in self.children if child.process is not None]

    @property
    def wanted(self) -> list[WorkerProcess]:
        """The children that run, or will be started: all that no operator has dismissed."""
        return [child for child in self.children if not child.is_dismissed]

    @property
    def exit_code(self) -> int:
        """0 if every child ended normally when asked to, else the highest code."""
        return max(self._codes, default=0)

    # -- children -------------------------------------------------------------------------------

    def _start(self, child: WorkerProcess) -> None:
        own_group: dict[str, Any] = {"process_group": 0} if os.name == "posix" else {}
        child.started_at, child.told = self._clock(), Stage.WORKING
        try:
            command = list(self._command(child.number))
            child.process = subprocess.Popen(command, stdin=subprocess.PIPE, **own_group)
        except OSError as error:  # out of memory or processes: retry later
            log.error("process %d cannot be started: %s", child.number, error)  # noqa: TRY400
            child.died(child.started_at)
            return
        log.info("process %d started: pid %d", child.number, child.process.pid)

    def _notice_death(self, child: WorkerProcess) -> None:
        if child.process is None or (code := child.process.poll()) is None:
            return
        pid = child.process.pid
        assert child.process.stdin is not None
        with contextlib.suppress(OSError):
            child.process.stdin.close()
        child.process = None
        if code == DISMISSED:
            child.is_dismissed = True
            log.info("process %d (pid %d) was asked to end; starting no other", child.number, pid)
            return
        if self.stage is not Stage.WORKING:
            self._codes.append(_exit_code(code))
            return
        self._proven |= self._clock() - child.started_at >= HEALTHY_AFTER
        if code == UNUSABLE and not self._proven:
            log.error("process %d (pid %d) cannot start; giving up", child.number, pid)
            self._codes.append(code)
            self.stop()
            return
        delay = child.died(self._clock())
        log.warning(
            "process %d (pid %d) ended with %s; starting another in %.1f s",
            child.number,
            pid,
            _describe(code),
            delay,
        )

    def _tell(self, child: WorkerProcess) -> None:
        """Send the current stage to a child, once; at the last stage, kill it."""
        assert child.process is not None
        assert child.process.stdin is not None
        if self.stage is Stage.KILLING:
            child.process.kill()
        elif child.told is not self.stage:
            child.told = self.stage
            with contextlib.suppress(OSError):  # it has just died
                child.process.stdin.write(COMMANDS[self.stage])
                child.process.stdin.flush()

    def _kill(self) -> None:
        """Kill the remaining children: an error in the supervisor must leave none behind."""
        for child in self.alive:
            assert child.process is not None
            child.process.kill()
            child.process.wait()

    def _report(self, manager: ServiceManager) -> None:
        """Tell the service manager the stage, with every tick."""
        running = counted(len(self.alive), "process", "processes")
        if self.stage is Stage.WORKING:
            manager.ready(f"{running} of {len(self.wanted)}")
        else:
            manager.stopping(f"{self.stage.value} {running}")
        manager.alive()

    # -- waiting --------------------------------------------------------------------------------

    def _on_signal(self, *_: object) -> None:
        # Nothing else: a signal may interrupt any code, even a log call.
        self._signalled_at.append(self._clock())

    def _until_next_start(self) -> float:
        waits = [child.start_at - self._clock() for child in self.wanted if not child.process]
        return max(0.0, min([POLL_INTERVAL, *waits]))

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Iterator[Callable[[float], None]]:
        """Yield a wait that ends early at a stop signal and at the death of a child."""
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        handlers: dict[int, Any] = dict.fromkeys(stop_signals(), self._on_signal)
        if hasattr(signal, "SIGCHLD"):
            handlers[signal.SIGCHLD] = lambda *_: None
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        wakeup = signal.set_wakeup_fd(writer.fileno())

        def wait(seconds: float) -> None:
            select.select([reader], [], [], seconds)
            with contextlib.suppress(BlockingIOError):
                reader.recv(4096)

        try:
            yield wait
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            reader.close()
            writer.close()


def _exit_code(code: int) -> int:
    """Return the exit code of a child that was asked to stop, as a shell would show it.

    A worker that handles a signal never dies of it: one that did had not begun to work.
    """
    if -code in (signal.SIGTERM, HANG_UP):
        return 0
    return 128 - code if code < 0 else code


def _describe(code: int) -> str:
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
