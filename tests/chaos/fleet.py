"""Processes that are killed, frozen and replaced."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

LAST_WORDS = 20.0
"""Seconds that a process has to end after SIGTERM."""


def run_module(
    arguments: Sequence[str], before: Sequence[str] = (), **environment: str
) -> subprocess.Popen[bytes]:
    """Start ``python -m`` with these arguments, quietly; ``before`` becomes it in the end."""
    command = [*before, sys.executable, "-m", *arguments]
    told = {"PULSED_LOG_LEVEL": "error", "PULSED_CHAOS_PARENT": str(os.getpid())}
    env = os.environ | told | environment
    return subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)


@dataclass
class Fleet:
    """So many processes of one kind; a dead one is replaced at its place."""

    start: Callable[[int], subprocess.Popen[bytes]]
    size: int
    rng: random.Random
    killed: int = 0
    frozen: list[tuple[int, float, float]] = field(default_factory=list)
    """Which process was frozen, from when until when."""
    died: dict[int, float] = field(default_factory=dict)
    """When each process that is gone was found dead."""
    start_takes: float = 0.0
    """Seconds until a process is at work; on a busy machine that may be many."""
    asleep: int = 0
    """How many are frozen now."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    _started: dict[int, float] = field(default_factory=dict)
    """When the process of each place was started."""

    def launch(self) -> None:
        self.processes = [self._start(place) for place in range(self.size)]

    def replace_the_dead(self) -> None:
        for place, process in enumerate(self.processes):
            if process.poll() is not None:
                self.died[process.pid] = time.monotonic()
                self.processes[place] = self._start(place)

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        self._started[place] = time.monotonic()
        return self.start(place)

    def is_at_work(self) -> bool:
        """Whether half of the processes, or more, have had the time to start."""
        now = time.monotonic()
        ready = sum(now - at > self.start_takes for at in self._started.values())
        return 2 * ready >= self.size

    def pick(self) -> subprocess.Popen[bytes] | None:
        """Choose one that lives."""
        living = [each for each in self.processes if each.poll() is None]
        return self.rng.choice(living) if living else None

    def kill(self, pid: int | None = None) -> None:
        """SIGKILL one."""
        victim = next((each for each in self.processes if each.pid == pid), None) or self.pick()
        if victim is not None:
            self.died[victim.pid] = time.monotonic()
            victim.kill()
            victim.wait()
            self.killed += 1

    @contextlib.contextmanager
    def freezing(self) -> Iterator[None]:
        """SIGSTOP one, and let it continue in the end."""
        victim = self.pick()
        since = time.monotonic()
        if victim is not None:
            victim.send_signal(signal.SIGSTOP)
        self.asleep += 1
        try:
            yield
        finally:
            self.asleep -= 1
            if victim is not None:
                victim.send_signal(signal.SIGCONT)
                self.frozen.append((victim.pid, since, time.monotonic()))

    def end(self) -> None:
        """Let all end, one way or another."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(LAST_WORDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self.died[process.pid] = time.monotonic()
        self.processes = []
