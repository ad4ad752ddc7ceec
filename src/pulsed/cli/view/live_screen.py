"""A terminal that a command draws on again and again, and gives back as it was."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pulsed.engine.forever import Alarm

try:
    import termios
    import tty
except ImportError:  # Windows: keys are not read there
    termios = tty = None  # type: ignore[assignment]

LONGEST_INPUT = 64


class LiveScreen:
    """The whole terminal: frames, keys and resizes. Use it with ``with`` in an event loop."""

    def __init__(self, to: Console) -> None:
        self._console = to
        self._live = Live(console=to, screen=True, auto_refresh=False)
        self._keys: deque[str] = deque(maxlen=LONGEST_INPUT)
        self._given_back = contextlib.ExitStack()
        self.changed = Alarm()
        """Rings when a key was pressed or the size has changed."""

    @property
    def size(self) -> tuple[int, int]:
        """The columns and lines of the terminal."""
        return self._console.size

    def draw(self, lines: Sequence[Text]) -> None:
        """Draw a frame."""
        self._live.update(Group(*lines), refresh=True)

    def pressed(self) -> Iterator[str]:
        """Yield the keys that were pressed since the last call."""
        while self._keys:
            yield self._keys.popleft()

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._take()
        for name, react in (("SIGWINCH", self.changed.ring), ("SIGTSTP", self._suspend)):
            number: Any = getattr(signal, name, None)
            if number is not None:
                loop.add_signal_handler(number, react)
                self._given_back.callback(loop.remove_signal_handler, number)
        return self

    def __exit__(self, *_: object) -> None:
        self._given_back.close()
        self._release()

    def _take(self) -> None:
        """Switch to a screen of its own, without a cursor, and read keys as they are pressed."""
        self._restore_keyboard = _unbuffered_keyboard(self._on_keys)
        self._live.start(refresh=False)

    def _release(self) -> None:
        self._live.stop()
        self._restore_keyboard()

    def _suspend(self) -> None:
        """Stop as Ctrl-Z asks, with the terminal as it was, and go on when the shell says so."""
        self._release()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self.changed.ring()

    def _on_keys(self, keys: str) -> None:
        self._keys.extend(keys)
        self.changed.ring()


def _unbuffered_keyboard(on_keys: Callable[[str], None]) -> Callable[[], None]:
    """Pass keys on as they are pressed, without an echo; returns what restores the terminal."""
    if termios is None or not sys.stdin.isatty():
        return lambda: None
    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def read() -> None:
        pressed = os.read(keyboard, LONGEST_INPUT)
        if not pressed:
            loop.remove_reader(keyboard)
        on_keys(pressed.decode(errors="ignore"))

    def restore() -> None:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)

    tty.setcbreak(keyboard)  # Ctrl-C is still a signal
    loop.add_reader(keyboard, read)
    return restore
