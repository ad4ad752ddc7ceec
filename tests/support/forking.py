"""A program that forks while it uses an app: ``python -m tests.support.forking URL MOMENT...``.

For every moment and everything that a parent may do after a fork, a process of its own ("parent")
enqueues, forks, and enqueues on both sides. Each id that ``enqueue`` returned is written to a pipe.
Prints one JSON object: what became of each scenario.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from typing import Any, NoReturn
from uuid import UUID

from pulsed import Pulse

MOMENTS = ("idle", "writing", "first use")
ENDS = ("lives", "closes", "ends")
CHILDREN = 3
SECONDS = 45.0
"""Until a scenario is taken for hung."""
DONE = bytes(16)
"""Written by each process that comes to its end."""


class Scenario:
    """One parent and its children."""

    def __init__(self, url: str, moment: str, end: str, acks: int) -> None:
        self.app = Pulse(url)
        self.moment = moment
        self.end = end
        self.acks = acks

    def enqueue(self, number: int = 1) -> None:
        for _ in range(number):
            os.write(self.acks, self.app.enqueue("greet", {"name": "x"}).id.bytes)

    def run(self) -> None:
        """Be the parent; ends when it has done so."""
        stop = self.use()
        ready, ready_in_child = os.pipe()
        gone_in_child, gone = os.pipe()

        def child() -> None:
            os.close(gone)
            self.enqueue(3)
            os.write(ready_in_child, b"x")
            os.read(gone_in_child, 1)  # until every copy of the parent's end is closed
            self.enqueue(3)
            os.write(self.acks, DONE)

        wait = [self.fork(child) for _ in range(CHILDREN)]
        os.close(ready_in_child)
        self.enqueue(2)
        for _ in range(CHILDREN):
            os.read(ready, 1)
        stop()
        if self.end == "closes":
            self.app.close()
        if self.end != "ends":
            os.close(gone)
            for each in wait:
                each()
        if self.end == "lives":
            self.enqueue(2)
        os.write(self.acks, DONE)

    def use(self) -> Callable[[], object]:
        """Bring the app into the state that the fork meets; returns what ends it."""
        if self.moment == "idle":
            self.enqueue(3)
            self.app.jobs.counts()
            return lambda: None
        stopped, begun = threading.Event(), threading.Event()

        def enqueue_on() -> None:
            if self.moment == "first use":
                begun.set()
            while not stopped.is_set():
                self.enqueue()
                begun.set()

        thread = threading.Thread(target=enqueue_on)
        thread.start()
        begun.wait()

        def stop() -> None:
            stopped.set()
            thread.join()

        return stop

    def fork(self, child: Callable[[], None]) -> Callable[[], object]:
        """Start a child; returns what waits for it."""
        if self.end == "lives":
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
            return process.join
        pid = os.fork()
        if pid == 0:
            _do(child, os._exit)
        return lambda: os.waitpid(pid, 0)


def _do(task: Callable[[], None], leave: Callable[[int], Any]) -> NoReturn:
    status = 1
    try:
        task()
        status = 0
    except BaseException:  # noqa: BLE001 - shown by the test
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        leave(status)
    raise AssertionError


def _played(url: str, moment: str, end: str) -> dict[str, Any]:
    """Play a scenario in processes of its own; returns what was acknowledged in it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.close(reading)
        _do(Scenario(url, moment, end, writing).run, sys.exit)
    os.close(writing)
    written, hung = _read(reading)
    if hung:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    os.close(reading)
    os.waitpid(pid, 0)
    parts = [written[n : n + 16] for n in range(0, len(written), 16)]
    ids = [str(UUID(bytes=part)) for part in parts if part != DONE]
    return {"ids": ids, "ended": parts.count(DONE), "hung": hung}


def _read(reading: int) -> tuple[bytes, bool]:
    written, give_up_at = b"", time.monotonic() + SECONDS
    while (left := give_up_at - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            if not (data := os.read(reading, 65_536)):
                return written, False
            written += data
    return written, True


def main(url: str, *moments: str) -> None:
    """Play every scenario of some moments, and print what became of them."""
    played = {}
    for moment, end in product(moments, ENDS):
        played[f"{moment}, {end}"] = _played(url, moment, end)
    print(json.dumps(played))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
