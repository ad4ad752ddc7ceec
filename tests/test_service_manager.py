"""What systemd hears of workers, supervisors and servers, over a real socket."""

import contextlib
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsed import Pulse
from pulsed.engine.process.service_manager import LONGEST_STATUS, ServiceManager
from tests.support.commands import PATIENCE, Command

APP = """
import asyncio, pathlib
from pulsed import Pulse

app = Pulse("sqlite:///jobs.db")

@app.job
async def wait() -> None:
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.01)
"""


class Manager:
    """The manager's side: a datagram socket, and what has arrived at it.

    It is read all the time, as by systemd: the kernel may keep no more than ten messages, and what
    is sent then is lost.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while message := self._socket.recv(4096):
            self._messages.put(message.decode())

    def heard(self, word: str) -> list[str]:
        """Wait for a message with this line; returns its lines."""
        while word not in (lines := self._messages.get(timeout=PATIENCE).split("\n")):
            pass
        return lines

    def rest(self) -> list[str]:
        """Return what has arrived and was not looked at; nothing else is read."""
        self.close()
        return [self._messages.get() for _ in range(self._messages.qsize())]

    def close(self) -> None:
        if not self._reader.is_alive():
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", self._socket.getsockname())
        self._reader.join()
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    (tmp_path / "shop.py").write_text(APP)
    with contextlib.closing(Manager(str(tmp_path / "notify"))) as listening:
        yield listening


WATCHED = {"NOTIFY_SOCKET": "notify", "WATCHDOG_USEC": "200000"}
"""The socket is in the working directory. A watchdog of 0.2 seconds."""


def test_a_worker_says_that_it_is_ready_alive_and_stopping(manager, tmp_path):
    with Command(tmp_path, "worker", "shop:app", **WATCHED) as worker:
        assert manager.heard("READY=1") == ["READY=1", "STATUS=running: 0 of 100 slots in use"]
        Pulse(f"sqlite:///{tmp_path / 'jobs.db'}").enqueue("wait")
        manager.heard("STATUS=running: 1 of 100 slots in use")
        worker.signal(signal.SIGTERM)
        draining = "STATUS=draining: 1 of 100 slots in use"
        assert manager.heard("STOPPING=1") == ["STOPPING=1", draining]
        assert manager.heard(draining) == ["WATCHDOG=1", draining]  # a drain may take long
        (tmp_path / "go").touch()
        assert worker.ended() == 0


def test_a_supervisor_reports_and_its_workers_do_not(manager, tmp_path):
    options = ("--processes", "2", "--url", "sqlite:///jobs.db")
    with Command(tmp_path, "worker", "shop:app", *options, **WATCHED) as parent:
        assert manager.heard("READY=1")[1] == "STATUS=2 processes of 2"
        manager.heard("WATCHDOG=1")
        parent.said("slots; topics wait", times=2)
        parent.signal(signal.SIGTERM)
        assert manager.heard("STOPPING=1")[1].startswith("STATUS=draining")
        assert parent.ended() == 0
    assert not [message for message in manager.rest() if "slots in use" in message]


def test_a_server_says_that_it_is_ready_alive_and_stopping(manager, tmp_path):
    options = ("--url", "sqlite:///jobs.db", "--listen", "127.0.0.1:0", "--drain-timeout", "100ms")
    with Command(tmp_path, "server", *options, **WATCHED) as server:
        assert manager.heard("READY=1")[1] == "STATUS=serving: 0 workers connected"
        manager.heard("WATCHDOG=1")
        server.signal(signal.SIGTERM)
        manager.heard("STOPPING=1")
        assert server.ended() == 0


class TestTheEnvironment:
    @pytest.fixture(autouse=True)
    def _without_a_manager(self, monkeypatch):
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            monkeypatch.delenv(name, raising=False)

    def test_it_is_taken_so_that_no_program_inherits_it(self, monkeypatch):
        monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
        assert ServiceManager.take().listens
        assert "NOTIFY_SOCKET" not in os.environ
        assert not ServiceManager.take().listens

    def test_the_watchdog_hears_two_reports_in_each_of_its_periods(self, monkeypatch):
        monkeypatch.setenv("WATCHDOG_USEC", "3000000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        assert ServiceManager.take().interval == 1.5

    @pytest.mark.parametrize("pid, usec", [("1", "3000000"), ("", "3000000"), (None, "soon")])
    def test_a_watchdog_of_another_process_is_ignored(self, monkeypatch, pid, usec):
        monkeypatch.setenv("WATCHDOG_USEC", usec)
        if pid is not None:
            monkeypatch.setenv("WATCHDOG_PID", pid)
        assert ServiceManager.take().interval == ServiceManager().interval


def test_an_abstract_address_works():
    name = f"pulsed-test-{os.getpid()}"
    with contextlib.closing(Manager("\0" + name)) as manager:
        ServiceManager("@" + name).ready("here\nREADY=0" + "x" * 10_000)
        first, status = manager.heard("READY=1")
    assert (first, status[:19]) == ("READY=1", "STATUS=here READY=0")
    assert len(status) == len("STATUS=") + LONGEST_STATUS


def test_a_manager_that_has_gone_stops_nothing(tmp_path):
    ServiceManager(str(tmp_path / "gone")).ready("here")
    ServiceManager("x" * 200).alive()
    ServiceManager().stopping("there is none")
