"""The guides for users of other queues: what they show on both sides does the same."""

import os
import subprocess
import sys

import pytest

from tests.support.other_libraries import LIBRARIES
from tests.support.pages import ROOT


@pytest.mark.parametrize("name", LIBRARIES)
def test_both_sides_of_a_guide_run_and_print_the_same(name, tmp_path):
    """The other library has its broker in memory. Its threads stay in another process."""
    page = ROOT / "docs" / name
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.side_by_side", str(page)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    tables = page.read_text("utf-8").count("<table>")
    assert done.stdout == f"{tables} pairs of blocks agree\n", done.stderr
