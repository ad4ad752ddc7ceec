"""Running ``pulsed``: inside the test for what only asks a database, as a process otherwise."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import UUID

import msgspec
import pytest
from click.testing import CliRunner, Result

from pulsed.cli.root import root
from pulsed.model.job import Status, WorkerInfo
from pulsed.model.outcome import Failed
from pulsed.store.base import Store
from pulsed.store.blocking import run_blocking
from tests.support.jobs import running, settle, submitted
from tests.support.waiting import pauses

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds after which a wait is a failure, also on a slow machine."""

CLEAN: Mapping[str, str | None] = {
    "PULSED_APP": None,
    "PULSED_URL": None,
    "DATABASE_URL": None,
    "PULSED_KEEP": None,
    "PULSED_DEBUG": None,
}

# Click before 8.2 mixes stderr into stdout unless it is asked not to.
APART: dict[str, Any] = (
    {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
)

CONTROLS = "\x07\x1b\x7f\x85\x9b\u202e"
"""Some of what a terminal would obey."""


def run(*args: str, stdin: str = "", **environment: str) -> Result:
    """Run a command in this process, with nothing in the environment but what is given."""
    return Runner(**APART).invoke(root, list(args), input=stdin, env={**CLEAN, **environment})


def supervised_commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let ``pulsed worker --processes`` start nothing; returns the first that each would start."""
    commands: list[list[str]] = []

    class Parent:
        def __init__(self, command: Callable[[int], list[str]], _processes: int) -> None:
            commands.append(command(1))

        def run(self) -> int:
            return 0

    monkeypatch.setattr("pulsed.cli.commands.worker.Supervisor", Parent)
    return commands


class Runner(CliRunner):
    """Click's runner, with a stderr that is not buffered: click before 8.2.1 does not flush it."""

    @contextmanager
    def isolation(self, *args: Any, **options: Any) -> Iterator[Any]:
        with super().isolation(*args, **options) as streams:
            assert isinstance(sys.stderr, TextIOWrapper)
            sys.stderr.reconfigure(line_buffering=True)  # as the real one is
            yield streams


def lines_of(result: Result) -> list[Any]:
    """Read JSON lines, each of which must be JSON."""
    assert result.exit_code == 0, result.output
    return [msgspec.json.decode(line) for line in result.stdout.splitlines()]


class Command:
    """A ``pulsed`` process, with what it writes to stderr in a file."""

    def __init__(self, folder: Path, *args: str, **environment: str) -> None:
        self._log = folder / "stderr.txt"
        kept = {name: value for name, value in os.environ.items() if name not in CLEAN}
        with self._log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pulsed", *args],
                cwd=folder,
                env={**kept, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text("utf-8")

    def said(self, text: str, times: int = 1) -> None:
        """Wait until the log has ``text`` so many times."""
        until(lambda: self.log.count(text) >= times, lambda: f"never said {text!r}: {self.log}")

    def signal(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        return self.process.wait(PATIENCE)


def until(condition: Callable[[], T], complaint: Callable[[], str] = lambda: "") -> T:
    """Poll until ``condition`` is true."""
    give_up_at = time.monotonic() + PATIENCE
    pause = pauses()
    while not (answer := condition()):
        assert time.monotonic() < give_up_at, complaint() or "it never became true"
        time.sleep(next(pause))
    return answer


# -- helpers that fill a database for commands to read ------------------------------------------


def a_dead_job(store: Store, error: str = "boom", **options: Any) -> UUID:
    assignment = run_blocking(running(store, **options))
    failed = Failed(error, "Traceback …\nRuntimeError: boom", final=True)
    assert run_blocking(settle(store, assignment, failed))
    return assignment.job_id


def a_waiting_job(store: Store, **options: Any) -> UUID:
    return run_blocking(submitted(store, **options))


def status_of(store: Store, job_id: UUID) -> Status:
    return run_blocking(store.get([job_id]))[job_id].status


def present(
    store: Store,
    *,
    queue: str = "default",
    topics: tuple[str, ...] = ("email",),
    state: str = "running",
) -> None:
    """Let a worker be at work, as far as others can see."""
    info = WorkerInfo(
        id=UUID(int=7), host="here", pid=1, queues=(queue,), topics=topics, slots=5, state=state
    )
    run_blocking(store.announce(info))
