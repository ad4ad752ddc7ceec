"""SIGTERM, SIGINT, SIGHUP: the first drains, the next aborts; none of it in a forked child."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, Protocol

log = logging.getLogger("pulsed.worker")

ALWAYS = (signal.SIGTERM, signal.SIGINT)
HANG_UP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""Sent when the terminal closes; None on Windows."""

ECHO = 1.0
"""Seconds in which another signal counts as the same request: ``timeout`` and some service managers
signal a process and its group, and a terminal signals all its processes at once."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this process to stop.

    A closed terminal sends SIGHUP. It is left alone where it is already ignored or handled: by
    ``nohup``, or by a program that reloads its configuration.
    """
    if HANG_UP is None or signal.getsignal(HANG_UP) is not signal.SIG_DFL:
        return ALWAYS
    return (*ALWAYS, HANG_UP)


class SignalDebouncer:
    """Debounces stop signals: tells a second request from an echo of the first."""

    def __init__(self) -> None:
        self._heard_at = -math.inf

    def again(self, now: float) -> bool:
        """Whether a signal at ``now`` is a new request."""
        if now - self._heard_at < ECHO:
            return False
        self._heard_at = now
        return True


class StopCallback(Protocol):
    """The signature of ``Worker.stop``."""

    def __call__(self, *, abort: bool) -> None:
        """Drain or abort."""


@contextlib.contextmanager
def on_stop_signals(loop: asyncio.AbstractEventLoop, stop: StopCallback) -> Iterator[None]:
    """Call ``stop`` when a signal arrives, with ``abort`` from the second request on."""
    asked = SignalDebouncer()
    abort = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal abort
        if not asked.again(loop.time()):
            log.info("%s: counted as the same request; send it again to abort", number.name)
            return
        log.info("%s: %s", number.name, "aborting" if abort else "draining; send it again to abort")
        stop(abort=abort)
        abort = True

    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in stop_signals()}
    _outside.update(before)
    for number in before:
        _listen(loop, number, on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(NotImplementedError):
                loop.remove_signal_handler(number)
            signal.signal(number, handler)
        _outside.clear()


def _listen(loop: asyncio.AbstractEventLoop, number: signal.Signals, on_signal: Any) -> None:
    try:
        loop.add_signal_handler(number, on_signal, number)
    except NotImplementedError:  # Windows
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(on_signal, number))


# -- forks ----------------------------------------------------------------------------------------
# A forked child inherits its parent's handlers, and asyncio's wakeup descriptor is the same socket
# in both: a signal to the child would reach the parent, and not the child.

_outside: dict[signal.Signals, Any] = {}
"""The signal handlers from before the worker installed its own; empty if it has not."""
_masks = threading.local()


def _before_fork() -> None:
    """Block signals, so that the child gets none before its handlers are restored."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _outside) if _outside else None


def _in_child() -> None:
    """Restore the handlers; allowed, since the thread that forked is the child's main thread."""
    if _outside:
        signal.set_wakeup_fd(-1)
        for number, handler in _outside.items():
            signal.signal(number, _without_runner(handler))
        _end_by_an_early_interrupt()
        _outside.clear()
    _unblock()


def _end_by_an_early_interrupt() -> None:
    """Let an interrupt that came before the handlers were restored end the child by itself.

    Python ignores what is raised during a fork, and ``default_int_handler`` would raise there.
    """
    early = signal.sigpending()
    for number in early.intersection(_outside):
        if signal.getsignal(number) is signal.default_int_handler:
            signal.signal(number, signal.SIG_DFL)


def _unblock() -> None:
    if _masks.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _without_runner(handler: Any) -> Any:
    """Return the default in place of ``asyncio.run``'s handler, which is for the parent's task."""
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    return signal.default_int_handler if isinstance(owner, asyncio.Runner) else handler


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_unblock, after_in_child=_in_child)
