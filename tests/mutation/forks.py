"""Processes that run tests: forks of an interpreter that has imported and collected everything."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

HANGS_AFTER = 30
"""Seconds; a test that takes so long, and much longer than without a mutant, has failed."""


class Fork(NamedTuple):
    """A process, the note that it leaves, and what happens at its end."""

    note: IO[bytes]
    done: Callable[[int, str], None]


class Note:
    """A short text that a process leaves for its parent, however it ends."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        """Leave this text instead of the last one."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(text.encode())
        self._file.flush()


class Forks:
    """Up to so many processes at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: dict[int, Fork] = {}

    def start(self, work: Callable[[Note], int], done: Callable[[int, str], None]) -> None:
        """Do some work in a process; ``done`` gets its exit code and its note."""
        while len(self._running) >= self._most:
            self._wait()
        note = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _wait
        child = os.fork()
        if child == 0:
            self._be_the_child(work, note)
        self._running[child] = Fork(note, done)

    def finish(self) -> None:
        """Wait for all processes."""
        while self._running:
            self._wait()

    def _wait(self) -> None:
        child, status = os.wait()
        if (fork := self._running.pop(child, None)) is None:
            return  # PostgreSQL's supervisor, or another child of a fixture
        fork.note.seek(0)
        note = fork.note.read().decode()
        fork.note.close()
        fork.done(os.waitstatus_to_exitcode(status), note)

    @staticmethod
    def _be_the_child(work: Callable[[Note], int], file: IO[bytes]) -> None:
        code = 1
        try:
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (1, 2):
                os.dup2(nowhere, stream)
            code = work(Note(file))
        finally:
            os._exit(code)


def failing(items: Sequence[pytest.Item], note: Note, limits: Sequence[float]) -> bool:
    """Run tests until one fails, which the note then names; returns whether one did."""
    has_failed = False
    for at, (item, limit) in enumerate(zip(items, limits, strict=True)):
        note.write(item.nodeid)
        signal.alarm(int(max(HANGS_AFTER, 20 * limit)))  # kills the process
        following = items[at + 1] if at + 1 < len(items) else None
        has_failed = fails(item, following)
        if has_failed:
            break
    signal.alarm(HANGS_AFTER)
    if items:
        with contextlib.suppress(Exception):
            items[0].session._setupstate.teardown_exact(None)  # it drops the database
    return has_failed


def fails(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run one test; returns whether it failed."""
    reports = runtestprotocol(item, log=False, nextitem=following)
    return any(report.failed for report in reports)
