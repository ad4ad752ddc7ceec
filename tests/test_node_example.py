"""The worker and the producer in JavaScript, against a real server; if Node and its packages are
to be had.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsed import Pulse, Status
from pulsed.model.job import JobFilter
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from tests.support.servers import ServerThread

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples/node"


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its packages, outside of the source tree."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no Node here")
    folder = tmp_path_factory.mktemp("node")
    for file in EXAMPLE.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    options = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    try:
        done = subprocess.run(
            ["npm", "install", *options], cwd=folder, capture_output=True, check=False, timeout=60
        )
    except subprocess.TimeoutExpired:
        pytest.skip("npm does not answer")
    if done.returncode:
        pytest.skip("npm has not the packages")
    return folder


def environment() -> dict[str, str]:
    return {**os.environ, "PULSE_PROTO": str(ROOT / "proto/pulse/v1/pulse.proto")}


class Node:
    """A server, and a worker in JavaScript."""

    def __init__(self, example: Path, database: Path) -> None:
        self._example = example
        self.store = SqliteStore(database)
        self.server = ServerThread(lambda: SqliteStore(database), upkeep=True)
        self.worker = subprocess.Popen(
            ["node", "worker.js", self.server.host],
            cwd=example,
            env=environment(),
            stderr=subprocess.PIPE,
        )

    def produce(self, topic: str, **payload: Any) -> Any:
        done = subprocess.run(
            ["node", "producer.js", self.server.host, topic, json.dumps(payload)],
            cwd=self._example,
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return json.loads(done.stdout)

    def end(self) -> int:
        self.worker.send_signal(signal.SIGTERM)
        _, errors = self.worker.communicate(timeout=60)
        self.server.stop()
        assert b"worker ended" in errors, errors
        return self.worker.returncode


@pytest.fixture
def node(example, tmp_path) -> Iterator[Node]:
    node = Node(example, tmp_path / "jobs.db")
    yield node
    if node.worker.poll() is None:
        node.worker.kill()
        node.worker.communicate()
    node.server.stop()


def test_jobs_of_python_and_of_javascript_are_run(node):
    produced = node.produce("add", a=2, b=3)
    assert (produced["status"], json.loads(produced["result"])) == ("JOB_STATUS_SUCCEEDED", 5)
    with Pulse(node.server.url) as app:
        jobs = [app.enqueue("add", {"a": n, "b": 1}) for n in range(50)]
        assert [job.result(60) for job in jobs] == list(range(1, 51))
        failed = app.enqueue("fail", {"why": "because"}, max_attempts=1)
        slow = app.enqueue("wait", {"seconds": 0.5})
        while slow.refresh().status is not Status.RUNNING:
            time.sleep(0.01)
        assert node.end() == 0  # it finishes what runs
        assert slow.row.status is Status.RUNNING
        del jobs, failed
    rows = run_blocking(node.store.list_jobs(JobFilter(), limit=100))
    by_topic = {row.topic: row for row in rows}
    assert by_topic["wait"].status is Status.SUCCEEDED
    assert (by_topic["fail"].status, by_topic["fail"].last_error) == (
        Status.DEAD_LETTERED,
        "Error: because",
    )


def test_a_token_does_not_leave_the_machine_in_the_clear(example: Path):
    made = "const {Client} = require('./pulse.js'); new Client(process.argv[1]).close()"

    def connect(address: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["node", "-e", made, address],
            cwd=example,
            env={**environment(), "PULSED_TOKEN": "pulsed_secret", **more},
            capture_output=True,
            text=True,
            check=False,
        )

    for address in ("jobs.example.org:50051", "127.0.0.1.example.org:50051"):
        refused = connect(address)
        assert refused.returncode != 0
        assert "in the clear" in refused.stderr
        assert "pulsed_secret" not in refused.stderr
    assert connect("127.0.0.1:50051").returncode == 0
    assert connect("jobs.example.org:50051", PULSED_TLS_CA="system").returncode == 0
