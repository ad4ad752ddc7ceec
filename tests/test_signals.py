"""SIGTERM, SIGINT, SIGHUP: what a worker makes of them, and what its forked children must not."""

import asyncio
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pulsed import Pulse
from pulsed.engine.process import stop_signals as signals
from pulsed.engine.process.stop_signals import ECHO, SignalDebouncer, on_stop_signals
from pulsed.store.blocking import run_blocking
from tests.support.commands import Command, until
from tests.support.waiting import until as eventually

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals")

APP = """
import asyncio, multiprocessing, os, pathlib, time
from pulsed import Pulse
from pulsed.engine.process import stop_signals as signals

app = Pulse()
here = pathlib.Path(__file__).parent
fork = multiprocessing.get_context("fork")

def sleep(ready):
    ready.set()
    time.sleep(600)

def ended_by(end, *, after_start):
    ready = fork.Event()
    child = fork.Process(target=sleep, args=(ready,))
    child.start()
    if after_start:
        ready.wait()
    end(child)
    child.join(60)
    alive, code = child.is_alive(), child.exitcode
    child.kill()
    return [alive, code]

def interrupt(child):
    os.kill(child.pid, 2)

@app.job(max_attempts=1)
def in_a_thread() -> list:
    return [ended_by(lambda child: child.terminate(), after_start=True) for _ in range(2)]

@app.job(max_attempts=1)
async def on_the_loop() -> list:
    return [ended_by(lambda child: child.terminate(), after_start=True)]

@app.job(max_attempts=1)
def at_once() -> list:
    return [ended_by(lambda child: child.terminate(), after_start=False) for _ in range(30)]

@app.job(max_attempts=1)
def interrupted() -> list:
    return [ended_by(interrupt, after_start=True)]

@app.job
async def wait() -> str:
    (here / "started").touch()
    while not (here / "go").exists():
        await asyncio.sleep(0.01)
    return "gone"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Pulse]:
    with Pulse(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


def a_worker(folder: Path, app: Pulse, *args: str) -> Command:
    return Command(folder, "worker", "shop:app", "--poll", "50ms", *args, PULSED_URL=app.url)


class TestForkedChildren:
    @pytest.mark.parametrize(
        "topic, code",
        [
            ("in_a_thread", -signal.SIGTERM),
            ("on_the_loop", -signal.SIGTERM),
            ("at_once", -signal.SIGTERM),
            ("interrupted", 1),
        ],
    )
    def test_a_signal_to_a_child_of_a_handler_ends_the_child_only(self, folder, app, topic, code):
        with a_worker(folder, app) as worker:
            ends = app.enqueue(topic).result(60)
            assert ends == [[False, code]] * len(ends)
            assert "SIG" not in worker.log
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0
        assert worker.log.count("SIGTERM: draining") == 1


@contextmanager
def hang_ups(disposition: Any) -> Iterator[None]:
    """Let processes that are started here begin with hang-ups ignored, or not."""
    before = signal.signal(signal.SIGHUP, disposition)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


ON_A_TERMINAL = """
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "pulsed", *sys.argv[1:]])
"""


def states(app: Pulse) -> list[str]:
    return [worker.state for worker in run_blocking(app.store.workers())]


class TestHangUp:
    @pytest.mark.parametrize("processes", ["1", "2"])
    def test_it_drains(self, folder, app, processes):
        job = app.enqueue("wait")
        with (
            hang_ups(signal.SIG_DFL),
            a_worker(folder, app, "--processes", processes) as worker,
        ):
            until((folder / "started").exists)
            worker.said("slots; topics", times=int(processes))
            worker.signal(signal.SIGHUP)
            worker.said("draining 1 running job")
            (folder / "go").touch()
            assert worker.ended() == 0
        assert job.result(60) == "gone"

    def test_a_server_drains(self, folder, app):
        with (
            hang_ups(signal.SIG_DFL),
            Command(folder, "server", "--listen", "127.0.0.1:0", PULSED_URL=app.url) as server,
        ):
            server.said("serves")
            server.signal(signal.SIGHUP)
            assert server.ended() == 0
        assert "SIGHUP: draining" in server.log

    @pytest.mark.parametrize("processes", ["1", "2"])
    def test_under_nohup_it_stays_ignored(self, folder, app, processes):
        with (
            hang_ups(signal.SIG_IGN),
            a_worker(folder, app, "--processes", processes) as worker,
        ):
            worker.said("slots; topics", times=int(processes))
            worker.signal(signal.SIGHUP)
            (folder / "go").touch()
            assert app.enqueue("wait").result(60) == "gone"
            worker.signal(signal.SIGTERM)
            assert worker.ended() == 0
        assert "SIGHUP" not in worker.log

    def test_a_worker_whose_terminal_is_closed_finishes_what_it_runs(self, folder, app):
        job = app.enqueue("wait")
        ours, its = os.openpty()
        command = [sys.executable, "-c", ON_A_TERMINAL, "worker", "shop:app", "--tick", "100ms"]
        environment = {**os.environ, "PULSED_URL": app.url}
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its
        ) as worker:
            try:
                os.close(its)
                until((folder / "started").exists)
                os.close(ours)
                until(lambda: states(app) == ["draining"])
                (folder / "go").touch()
                assert worker.wait(60) == 0
            finally:
                worker.kill()
        assert job.refresh().result(0) == "gone"

    async def test_a_programs_own_handler_is_left_to_it(self):
        heard: list[int] = []
        with hang_ups(lambda number, _: heard.append(number)):
            with on_stop_signals(asyncio.get_running_loop(), lambda *, abort: heard.append(-1)):
                signal.raise_signal(signal.SIGHUP)
            await asyncio.sleep(0)
        assert heard == [signal.SIGHUP]


class TestRepeats:
    def test_an_echo_of_the_first_signal_is_no_impatience(self, folder, app):
        with (folder / "shop.py").open("a") as source:
            source.write("\nsignals.ECHO = 60.0\n")
        job = app.enqueue("wait")
        with a_worker(folder, app) as worker:
            until((folder / "started").exists)
            worker.signal(signal.SIGTERM)
            worker.said("draining 1 running job")
            worker.signal(signal.SIGINT)
            worker.said("SIGINT: counted as the same request")
            (folder / "go").touch()
            assert worker.ended() == 0
        assert job.result(60) == "gone"

    def test_about_a_second_tells_them_apart(self):
        asked = SignalDebouncer()
        assert ECHO == 1.0
        assert [asked.again(now) for now in (5.0, 5.0, 5.9, 6.0, 6.1, 6.9, 7.1)] == [
            *(True, False, False, True, False, False, True)
        ]

    async def test_only_signals_count_as_impatience(self, monkeypatch):
        """A drain by the supervisor and a signal to the whole group are one request."""
        monkeypatch.setattr(signals, "ECHO", 0.0)
        heard: list[bool] = []
        with on_stop_signals(asyncio.get_running_loop(), lambda *, abort: heard.append(abort)):
            for times in (1, 2, 3):
                signal.raise_signal(signal.SIGTERM)
                await eventually(functools.partial(lambda times: len(heard) == times, times))
        assert heard == [False, True, True]


class TestHandlers:
    @pytest.fixture(params=["loop", "none"])
    def loop_kind(self, request, monkeypatch) -> None:
        def refuse(*_: Any) -> None:
            raise NotImplementedError

        if request.param == "none":  # as on Windows
            loop = asyncio.SelectorEventLoop
            monkeypatch.setattr(loop, "add_signal_handler", refuse)
            monkeypatch.setattr(loop, "remove_signal_handler", refuse)

    def test_they_work_and_what_was_there_before_comes_back(self, loop_kind):
        def mine(*_: Any) -> None: ...

        async def main() -> list[bool]:
            heard: list[bool] = []
            with on_stop_signals(asyncio.get_running_loop(), lambda *, abort: heard.append(abort)):
                signal.raise_signal(signal.SIGTERM)
                await eventually(lambda: heard)
            assert signal.getsignal(signal.SIGTERM) is mine
            return heard

        before = signal.signal(signal.SIGTERM, mine)
        try:
            assert asyncio.run(main()) == [False]
        finally:
            signal.signal(signal.SIGTERM, before)


EARLY_INTERRUPT = """
import os, signal

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)  # blocked as yet

os.register_at_fork(after_in_child=interrupt)  # before the worker's own hook

import asyncio
from pulsed.engine.process.stop_signals import on_stop_signals

async def main():
    with on_stop_signals(asyncio.get_running_loop(), lambda **_: None):
        child = os.fork()
        if not child:
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

asyncio.run(main())
"""


def test_an_interrupt_in_the_middle_of_a_fork_ends_the_child():
    command = [sys.executable, "-c", EARLY_INTERRUPT]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (ran.stdout, ran.stderr) == (f"{-signal.SIGINT}\n", "")
