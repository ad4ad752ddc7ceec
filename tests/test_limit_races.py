"""Processes that race for limits and are killed, as an independent recorder saw them.

The long form is ``python3 dev.py limits``: eight processes, two thousand jobs, twenty kills.
"""

from __future__ import annotations

import pytest

from tests.limit_races import problems, race


@pytest.mark.embedded("the same claims, made by the server")
def test_no_limit_is_exceeded_by_processes_that_are_killed(backend):
    seen = race(backend.app_url, jobs=150, workers=3, kills=2)
    assert problems(seen) == []
    assert seen.runs >= 150
    assert seen.most == {"shared": 3, "keyed": 2, "ordered": 1}, "a limit was never reached"
