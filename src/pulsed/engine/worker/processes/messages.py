"""What a worker and its job processes send one another, over a socket.

A frame is its length in four bytes and a MessagePack value. Arguments and results travel as the
JSON text that is stored. Nothing is pickled, so a process can make its worker run nothing.
"""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

import msgspec

from pulsed.handler import MAX_PAYLOAD
from pulsed.model.job import Assignment
from pulsed.model.outcome import Cancelled, Failed, Released, Snoozed, Succeeded

LENGTH = struct.Struct("!I")
LARGEST_FRAME = 4 * MAX_PAYLOAD
"""Bytes that a process may send at once: the largest result, or an error with its traceback."""
LONGEST_LINE = 65_536
"""Characters of a log line or of its traceback."""

Ending: TypeAlias = Succeeded | Failed | Snoozed | Cancelled | Released
"""How a run in a process can end; it cannot wait, since it cannot be a workflow."""


class Origin(msgspec.Struct, frozen=True):
    """Where a new process finds the app."""

    module: str
    attribute: str
    script: str | None
    """The file to run as ``__mp_main__``, if the app is in the script that was started."""
    path: list[str]
    """``sys.path``."""
    url: str
    """The database, which may not be the one that the app's code names."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    """The worker's first message."""

    origin: Origin
    log_level: int
    """Log records below it are not sent."""


class RunJob(msgspec.Struct, tag=True, frozen=True):
    """Run this job now."""

    assignment: Assignment
    memory_limit: int | None


class Stop(msgspec.Struct, tag=True, frozen=True):
    """The run in progress should stop; ``reason`` is the name of a ``StopReason``."""

    reason: str


class Reply(msgspec.Struct, tag=True, frozen=True):
    """The answer to ``ReportProgress`` or ``Emit``."""

    number: int
    is_held: bool
    error: str = ""


class Leave(msgspec.Struct, tag=True, frozen=True):
    """Close what is open, and exit."""


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The process has loaded the app."""


class Unusable(msgspec.Struct, tag=True, frozen=True):
    """The process could not load the app, and exits."""

    error: str


class RunOver(msgspec.Struct, tag=True, frozen=True):
    """The run is over; ``outcome`` None: its lease was lost."""

    outcome: Ending | None
    error_type: str = ""
    """The full name of the error's class, and…"""
    line: str = ""
    """…the handler's line that raised it, for the log."""


class ReportProgress(msgspec.Struct, tag=True, frozen=True):
    """Store the run's progress, a JSON text."""

    number: int
    text: str


class Emit(msgspec.Struct, tag=True, frozen=True):
    """Append an item, a JSON text, to the job's stream."""

    number: int
    text: str


class LogLine(msgspec.Struct, tag=True, frozen=True):
    """A log record."""

    name: str
    level: int
    message: str
    created: float
    file: str
    line: int
    function: str
    trace: str | None
    extra: dict[str, str | int | float | bool | None]


FromWorker: TypeAlias = Hello | RunJob | Stop | Reply | Leave
FromProcess: TypeAlias = Ready | Unusable | RunOver | ReportProgress | Emit | LogLine

_encoder = msgspec.msgpack.Encoder()
read_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
read_from_process = msgspec.msgpack.Decoder(FromProcess).decode


def frame(message: Any) -> bytes:
    """Return a message as the bytes to send."""
    data = _encoder.encode(message)
    return LENGTH.pack(len(data)) + data
