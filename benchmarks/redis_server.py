"""A private Redis server for peers that need one, with the settings it is shipped with."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.scratch_postgres import free_port

START_WITHIN = 30.0


class RedisError(Exception):
    """There is no Redis to be had."""


@dataclass(frozen=True)
class Redis:
    """A running server."""

    pid: int
    url: str


@contextlib.contextmanager
def serving_redis() -> Iterator[Redis]:
    """Provide a server for the length of a drain, in a directory of its own."""
    command = shutil.which("redis-server")
    if command is None:
        raise RedisError("there is no redis-server on this machine")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="pulsed-redis-") as folder:
        process = subprocess.Popen(
            [command, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        try:
            _wait_for(port, process)
            yield Redis(process.pid, f"redis://127.0.0.1:{port}")
        finally:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + START_WITHIN
    while time.monotonic() < give_up and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RedisError("redis-server did not start")
