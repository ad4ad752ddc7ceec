"""A flood of the worst requests, for a moment; ``dev.py flood`` is the long one."""

from __future__ import annotations

import sys

import pytest

from tests.flood import FEWEST, ROOM, flood


@pytest.mark.skipif(sys.platform != "linux", reason="reads the server's memory from /proc")
def test_a_flood_takes_little_memory_and_others_go_on(tmp_path):
    outcome = flood(tmp_path, seconds=0.7)
    assert outcome.grown < ROOM
    # How much slower others become is for `dev.py flood` on an idle machine to say.
    assert len(outcome.flooded) >= FEWEST
