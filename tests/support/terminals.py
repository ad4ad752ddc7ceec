"""Real terminals: a shell on a pseudo-terminal, typed into and read as a person would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

PROMPT = "$ "
ENTER, CONTROL_C = "\n", "\x03"
PATIENCE = 30.0
"""Seconds after which a wait is a failure, also on a slow machine."""

SIZE = (40, 100)
"""Lines and columns."""

FOREIGN = ("DATABASE_URL", "ENV", "COLUMNS", "LINES")
"""Variables that a new terminal does not have; pytest-xdist sets COLUMNS to 80."""

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])")

_START = """\
import fcntl, os, signal, termios
signal.signal(signal.SIGHUP, signal.SIG_DFL)
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp("sh", ["sh", "-i"])
"""
"""A shell whose terminal is its own, so that Ctrl-C reaches what runs in it, and so that closing it
ends what runs in it, even if ``nohup`` started the tests."""


class Terminal:
    """A shell in a folder, on a terminal of its own."""

    def __init__(self, folder: Path, **environment: str) -> None:
        own, shells = os.openpty()
        self._ended, lifeline = os.pipe()
        fcntl.ioctl(shells, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        self._keyboard = own
        self._shell = subprocess.Popen(
            [sys.executable, "-IS", "-c", _START],
            cwd=folder,
            env=_environment() | environment,
            stdin=shells,
            stdout=shells,
            stderr=shells,
            pass_fds=[lifeline],
            start_new_session=True,
        )
        os.close(shells)
        os.close(lifeline)
        self._output = b""
        self._typed_at = 0
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.wait(lambda: self.text == PROMPT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the terminal, and wait until what ran in it has ended.

        A worker that went on would take the jobs of the tests after this one.
        """
        self._shell.kill()  # its processes get SIGHUP
        self._shell.wait()
        self._reading.join(PATIENCE)
        os.close(self._keyboard)
        # Each process has inherited the other end of this pipe.
        ended, _, _ = select.select([self._ended], [], [], PATIENCE)
        os.close(self._ended)
        assert ended, "the terminal is closed, and something still runs in it"

    def resize(self, lines: int, columns: int) -> None:
        """Give it another size; what runs in it gets SIGWINCH."""
        fcntl.ioctl(self._keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def modes(self) -> list[Any]:
        """Whether it echoes, reads whole lines and so on."""
        return termios.tcgetattr(self._keyboard)

    @property
    def raw(self) -> str:
        """Everything that was written to it, with its escape sequences."""
        return self._output.decode(errors="replace")

    def type(self, keys: str) -> None:
        """Type something; from here on, ``text`` is what comes after it, echo and all."""
        self._typed_at = len(self._plain())
        os.write(self._keyboard, keys.encode())

    @property
    def text(self) -> str:
        """What it shows since something was last typed, without colours."""
        return self._plain()[self._typed_at :]

    @property
    def everything(self) -> str:
        """What it has shown since it was opened, without colours."""
        return self._plain()

    @property
    def is_ready(self) -> bool:
        """Whether the shell waits for a command."""
        return self.text.endswith(f"\n{PROMPT}")

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds."""
        give_up_at = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up_at, f"the terminal shows:\n{self.text}"
            time.sleep(0.01)

    def _plain(self) -> str:
        text = self._output.decode(errors="replace").replace("\r\n", "\n")
        return _ESCAPES.sub("", text)

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: nothing has the terminal open any more
            while read := os.read(self._keyboard, 65_536):
                self._output += read


def _environment() -> dict[str, str]:
    """Return an environment in which ``python`` and ``pulsed`` are those that run this."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PULSED_", "PYTEST_")) and name not in FOREIGN
    }
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return kept | {"PATH": programs, "PS1": PROMPT, "TERM": "xterm", "TZ": "UTC"}
