"""Makes the standard streams usable, even if they are closed, full, or not UTF-8."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

ESCAPE = "pulsed-escape"
"""Writes characters that a stream's encoding lacks as JSON escapes, so JSON stays valid."""


class StdoutError(OSError):
    """Stdout cannot be written: the disk is full, or the reader has closed the pipe.

    It has no ``errno``, because click handles every EPIPE itself: it would end the process with
    output in a buffer, and Python would report that it cannot flush it.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"cannot write to stdout: {error.strerror}")
        self.has_no_reader = isinstance(error, BrokenPipeError)


def prepare_streams() -> None:
    """Make all three streams usable.

    Python has None for a closed one, and the next file to be opened would get its descriptor. So a
    program that a handler starts could write its output into a database.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor: this one
    sys.stdin = sys.stdin or Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    codecs.register_error(ESCAPE, _escaped)
    if sys.stdout is None:
        sys.stdout = _Closed()
    elif sys.stdout is sys.__stdout__:  # and not replaced by a test
        sys.stdout = _telling(sys.stdout)


def give_up_stdout() -> None:
    """Discard what is left in the buffer, so that the interpreter does not report it at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # a test's stdout has no descriptor
        sys.stdout = io.StringIO()


def _telling(stdout: Any) -> io.TextIOWrapper:
    """Return a stdout like this one whose write errors are ``StdoutError``."""
    is_ascii = codecs.lookup(stdout.encoding).name == "ascii"  # the POSIX locale
    return io.TextIOWrapper(
        io.BufferedWriter(_Stdout(stdout.fileno(), "w", closefd=False)),
        encoding="utf-8" if is_ascii else stdout.encoding,
        errors=ESCAPE,
        line_buffering=stdout.line_buffering,
    )


class _Stdout(io.FileIO):
    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            raise StdoutError(error) from error


class _Closed(io.TextIOBase):
    """A stdout that was closed before the command started."""

    def write(self, text: str) -> NoReturn:  # noqa: ARG002
        raise StdoutError(OSError(errno.EBADF, os.strerror(errno.EBADF)))


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    pairs = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    units = (pairs[at : at + 2].hex() for at in range(0, len(pairs), 2))
    return "".join(f"\\u{unit}" for unit in units), error.end
