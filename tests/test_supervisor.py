"""Several worker processes under one parent: tick by tick, and once for real."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsed import Pulse
from pulsed.engine.process.supervisor import (
    DISMISSED,
    HEALTHY_AFTER,
    LONGEST_DELAY,
    Stage,
    Supervisor,
)
from tests.support.commands import Command, until

APP = """
from pulsed import Pulse
app = Pulse("sqlite:///jobs.db")

@app.job
def nothing() -> None: ...
"""


class FakeTime:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def supervise(time) -> Iterator[object]:
    made: list[Any] = []

    def make(code: str, processes: int = 1) -> Supervisor:
        command = [sys.executable, "-I", "-S", "-c", code]
        supervisor = Supervisor(lambda _: command, processes, clock=time)
        made.append(supervisor)
        return supervisor

    yield make
    for supervisor in made:
        children = supervisor.alive
        supervisor._kill()
        for child in children:
            child.process.stdin.close()


WAIT = "import os; os.read(0, 1)"
CODE = "import os; raise SystemExit({{b'd': {}, b'a': 130}}.get(os.read(0, 1), 9))"


def ended(supervisor: Supervisor) -> None:
    """Wait for the end of every child, which a tick then notices."""
    for child in supervisor.alive:
        assert child.process is not None
        child.process.wait(60)


def test_it_starts_as_many_as_asked_for(supervise):
    supervisor = supervise(WAIT, processes=3)
    assert not supervisor.tick()
    pids = {child.process.pid for child in supervisor.alive}
    assert len(pids) == 3
    supervisor.tick()
    assert {child.process.pid for child in supervisor.alive} == pids


def test_a_child_that_dies_quickly_is_replaced_later_and_later(supervise, time):
    supervisor = supervise("raise SystemExit(1)")
    delays = []
    for _ in range(10):
        supervisor.tick()
        ended(supervisor)
        supervisor.tick()
        (child,) = supervisor.children
        assert child.process is None
        delays.append(child.start_at - time.now)
        time.now = child.start_at
    assert 0.4 <= delays[0] <= 0.6
    assert delays[0] < delays[2] < delays[4]
    assert LONGEST_DELAY * 0.8 <= delays[-1] <= LONGEST_DELAY * 1.2


def test_a_healthy_minute_forgives_earlier_deaths(supervise, time):
    supervisor = supervise(WAIT)
    (child,) = supervisor.children
    child.quick_deaths = 7
    supervisor.tick()
    time.now += HEALTHY_AFTER
    child.process.kill()
    ended(supervisor)
    supervisor.tick()
    assert child.quick_deaths == 0
    assert child.process is not None


def test_children_that_were_called_wrongly_are_not_started_again(supervise):
    supervisor = supervise("raise SystemExit(2)")
    supervisor.tick()
    ended(supervisor)
    assert supervisor.tick()
    assert supervisor.exit_code == 2


def test_once_one_has_worked_a_wrong_call_is_only_a_death(supervise, time):
    supervisor = supervise("import os; os.read(0, 1); raise SystemExit(2)")
    supervisor.tick()
    (child,) = supervisor.children
    time.now += HEALTHY_AFTER
    child.process.stdin.write(b"x")
    child.process.stdin.flush()
    ended(supervisor)
    assert not supervisor.tick()
    assert supervisor.stage is Stage.WORKING


@pytest.mark.parametrize("code, expected", [(0, 0), (1, 1)])
def test_stopping_drains_and_the_worst_code_wins(supervise, code, expected):
    supervisor = supervise(CODE.format(code), processes=2)
    supervisor.tick()
    supervisor.stop()
    assert not supervisor.tick()
    ended(supervisor)
    assert supervisor.tick()
    assert supervisor.exit_code == expected


def test_a_child_that_was_asked_to_end_is_not_replaced(supervise):
    code = f"import os; raise SystemExit({DISMISSED} if os.read(0, 1) == b'x' else 0)"
    supervisor = supervise(code, processes=2)
    assert not supervisor.tick()
    one, other = supervisor.children
    for child, is_last in ((one, False), (other, True)):
        child.process.stdin.write(b"x")
        child.process.stdin.flush()
        child.process.wait(60)
        assert supervisor.tick() is is_last
        assert child.process is None
        assert supervisor._until_next_start() > 0
    assert supervisor.exit_code == 0


def test_stopping_again_aborts_and_a_third_time_kills(supervise):
    stubborn = "import os\nheard = b''\nwhile heard != b'da': heard += os.read(0, 1)\n"
    supervisor = supervise(stubborn + "print(heard, flush=True)\nwhile True: os.read(0, 1)")
    supervisor.tick()
    supervisor.stop()
    supervisor.tick()
    supervisor.stop()
    supervisor.tick()
    assert supervisor.alive
    supervisor.stop()
    supervisor.tick()
    ended(supervisor)
    assert supervisor.tick()
    assert supervisor.exit_code == 128 + signal.SIGKILL


def test_signals_of_one_moment_are_one_request(supervise, time):
    supervisor = supervise(WAIT)
    for later, stage in [
        (0.0, Stage.DRAINING),
        (0.0, Stage.DRAINING),
        (0.9, Stage.DRAINING),
        (0.2, Stage.ABORTING),
        (0.5, Stage.ABORTING),
        (0.6, Stage.KILLING),
    ]:
        time.now += later
        supervisor._on_signal()
        supervisor.tick()
        assert supervisor.stage is stage


def test_a_child_told_twice_hears_it_once(supervise):
    supervisor = supervise("import os; os.read(0, 1); raise SystemExit(len(os.read(0, 9)))")
    supervisor.tick()
    supervisor.stop()
    supervisor.tick()
    supervisor.tick()
    (child,) = supervisor.children
    child.process.stdin.close()
    ended(supervisor)
    supervisor.tick()
    assert supervisor.exit_code == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def pids_in(log: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"started: pid (\d+)", log)]


def test_a_killed_child_is_replaced_and_sigterm_drains_all(folder):
    with Command(folder, "worker", "shop", "--processes", "2") as command:
        command.said("slots; topics nothing", times=2)
        first, second = pids_in(command.log)

        os.kill(first, signal.SIGKILL)
        command.said("ended with SIGKILL; starting another")
        command.said("slots; topics nothing", times=3)
        assert second in pids_in(command.log)
        command.signal(signal.SIGTERM)
        assert command.ended() == 0
        assert command.log.count("ended: drained") == 2


def test_a_command_is_not_swallowed_by_a_program_that_reads_its_stdin(folder):
    reading = """
import pathlib, subprocess

@app.job(max_attempts=1)
def read() -> str:
    pathlib.Path("reading").touch()
    return subprocess.run(["head", "-c1"], capture_output=True, text=True, check=True).stdout

stdin_at_import = subprocess.run(["head", "-c1"], capture_output=True, check=True).stdout
"""
    with (folder / "shop.py").open("a") as source:
        source.write(reading)
    with Pulse(f"sqlite:///{folder}/jobs.db") as app:
        job = app.enqueue("read")
        with Command(folder, "worker", "shop", "--processes", "2") as command:
            command.said("slots; topics nothing, read", times=2)
            assert job.result(60) == ""
            command.signal(signal.SIGTERM)
            assert command.ended() == 0


def test_children_end_with_a_supervisor_that_was_killed(folder):
    with Command(folder, "worker", "shop", "--processes", "2") as command:
        command.said("slots; topics nothing", times=2)
        command.signal(signal.SIGKILL)
        command.said("the supervisor has exited; draining", times=2)
        command.said("ended: drained", times=2)


def test_an_app_that_is_not_there_ends_the_supervisor(folder):
    with Command(folder, "worker", "nowhere:app", "--processes", "2") as command:
        assert command.ended() == 2
        assert "there is no module 'nowhere'" in command.log
    until(lambda: "cannot start; giving up" in command.log)
