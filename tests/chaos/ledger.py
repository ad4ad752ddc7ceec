"""What handlers did, in a file that outlives them and that pulsed knows nothing of.

Each line is written by one `write` to the end of the file, so lines of many processes do not mix,
and a process that is killed leaves what it wrote. Times are those of the machine's monotonic clock,
which a wrong wall clock does not change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from pulsed import Context


@dataclass(frozen=True, slots=True)
class Entry:
    """One line."""

    event: str
    """begin, end, step (its function was called), past (its call has returned), slot (of a limit),
    all of one run."""
    topic: str
    n: int
    job: UUID
    token: int
    attempt: int
    pid: int
    at: float
    detail: str


class Ledger:
    """Writes entries; every process opens its own."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, event: str, ctx: Context, n: int, detail: str = "-") -> None:
        """Write one line at once."""
        run = f"{ctx.job_id} {ctx.lease_token} {ctx.attempt} {os.getpid()}"
        line = f"{event} {ctx.topic} {n} {run} {time.monotonic():.6f} {detail}\n"
        os.write(self._file, line.encode())

    @contextmanager
    def run(self, ctx: Context, n: int) -> Iterator[None]:
        """Note when a run begins, and how it leaves the handler."""
        self.note("begin", ctx, n)
        try:
            yield
        except BaseException as error:
            self.note("end", ctx, n, type(error).__name__)
            raise
        self.note("end", ctx, n, "ok")


def read(path: Path | str) -> list[Entry]:
    """Return all entries in the order in which they were written."""
    lines = Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []
    return [_entry(*line.split(" ", 8)) for line in lines]


def _entry(
    event: str,
    topic: str,
    n: str,
    job: str,
    token: str,
    attempt: str,
    pid: str,
    at: str,
    detail: str,
) -> Entry:
    return Entry(
        event, topic, int(n), UUID(job), int(token), int(attempt), int(pid), float(at), detail
    )
