"""Keys under real processes that are killed: an independent recorder never sees one held twice.

``PULSED_KEYS_SECONDS=60 pytest tests/test_keys_kills.py`` is the long form.
"""

import os
import subprocess
import sys
import time
from contextlib import closing
from itertools import pairwise
from typing import Any

import pytest

from tests.support.backends import Backend
from tests.support.key_worker import MODES, PERIOD

SECONDS = float(os.environ.get("PULSED_KEYS_SECONDS", "2"))
PAUSE = 0.02
PATIENCE = 60.0
TOPICS = "SELECT DISTINCT topic FROM pulse_jobs"

LIVING = "status NOT IN ('SUCCEEDED', 'DEAD_LETTERED', 'CANCELLED')"
TWICE = f"""SELECT topic, key FROM pulse_jobs
    WHERE {LIVING} AND (topic LIKE '%-end' OR (topic LIKE '%-start' AND started_at IS NULL))
    GROUP BY topic, key HAVING count(*) > 1"""
"""By what happened to the jobs, and not by the column that says who holds a key."""


def too_early(connection: Any) -> list[Any]:
    """Return jobs that were stored while an earlier one had its key for a period."""
    rows = connection.execute(
        "SELECT topic, key, submitted_at FROM pulse_jobs WHERE topic LIKE '%-period' "
        "ORDER BY topic, key, submitted_at"
    ).fetchall()
    return [(a, b) for a, b in pairwise(rows) if a[:2] == b[:2] and _seconds(b[2] - a[2]) < PERIOD]


def _seconds(gap: Any) -> float:
    """Return the difference of two instants, which are microseconds on SQLite."""
    seconds: float = gap / 1e6 if isinstance(gap, int) else gap.total_seconds()
    return seconds


@pytest.mark.usefixtures("live")
@pytest.mark.embedded("as many processes on the database itself")
def test_no_key_is_held_twice_while_processes_are_killed(backend: Backend, url: str):
    command = [sys.executable, "-m", "tests.support.key_worker", url]
    pipe = subprocess.PIPE
    began = time.monotonic()
    with (
        closing(backend.connect()) as recorder,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as processes,
    ):
        topics: set[str] = set()
        while topics != set(MODES) or time.monotonic() < began + SECONDS:
            assert recorder.execute(TWICE).fetchall() == []
            topics = {topic for (topic,) in recorder.execute(TOPICS).fetchall()}
            assert time.monotonic() < began + SECONDS + PATIENCE, topics
            time.sleep(PAUSE)
        killed, _ = processes.communicate()  # ends its input
        assert int(killed) > 1
        assert too_early(recorder) == []
