"""The one PostgreSQL that all processes of a test session share.

It is started by the first test that asks for it, in whichever process, so that a run without
PostgreSQL tests pays nothing; it belongs to the session's main process and dies with that.
"""

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.scratch_postgres import (
    TEMPLATES,
    ScratchPostgres,
    ScratchPostgresError,
    find_binaries,
)


class SessionPostgres:
    """A handle on the session's server; each process has its own, with the same directory."""

    def __init__(self, directory: Path, owner: int) -> None:
        self._directory = directory
        self._owner = owner
        self._started: ScratchPostgres | None = None  # kept: the server outlives this handle

    @classmethod
    def prepare(cls) -> "SessionPostgres":
        """Make the handle of the main process."""
        directory = Path(tempfile.mkdtemp(prefix="pulsed-tests-"))
        os.environ[TEMPLATES] = str(directory / "templates")
        return cls(directory, os.getpid())

    @classmethod
    def join(cls, shared: dict[str, str]) -> "SessionPostgres":
        """Make the handle of another process, from what the main one `share()`d."""
        return cls(Path(shared["directory"]), int(shared["owner"]))

    def share(self) -> dict[str, str]:
        """What another process needs to know to join."""
        return {"directory": str(self._directory), "owner": str(self._owner)}

    @staticmethod
    def describe() -> str:
        """Which PostgreSQL it is."""
        if os.environ.get("PULSED_TEST_POSTGRES"):
            return "the one that PULSED_TEST_POSTGRES names"  # its URL may hold a password
        try:
            return str(find_binaries())
        except ScratchPostgresError as error:
            return str(error)

    def url(self) -> str:
        """The URL of its maintenance database; starts the server if it does not run yet."""
        if given := os.environ.get("PULSED_TEST_POSTGRES"):
            return given
        with self._lock():
            if not self._note.exists():
                self._start()
            return str(json.loads(self._note.read_text())["url"])

    def close(self) -> None:
        """In the main process, at the end: stop the server and wait until it is gone."""
        if self._note.exists():
            server = json.loads(self._note.read_text())
            with contextlib.suppress(ProcessLookupError):
                os.kill(server["supervisor"], signal.SIGTERM)
            deadline = time.monotonic() + 10
            while Path(server["directory"]).exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self) -> None:
        # Deadlocks that tests provoke are found soon, not after the usual second.
        settings = {"deadlock_timeout": "10ms", "max_connections": "400"}
        self._started = server = ScratchPostgres(owner=self._owner, settings=settings)
        server.start()
        note = {
            "url": server.url,
            "supervisor": server.supervisor_pid,
            "directory": str(server.directory),
        }
        self._note.write_text(json.dumps(note))

    @property
    def _note(self) -> Path:
        return self._directory / "server.json"

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        import fcntl  # noqa: PLC0415 (not on Windows, where the URL must be given)

        with (self._directory / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
