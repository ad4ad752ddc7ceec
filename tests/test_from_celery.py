"""The guide for users of Celery: what it shows on both sides does the same."""

import os
import subprocess
import sys

from tests.support.pages import ROOT

PAGE = ROOT / "docs/from-celery.md"


def test_both_sides_of_the_guide_run_and_print_the_same(tmp_path):
    """Celery with a worker and a broker in memory, whose threads stay in another process."""
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.side_by_side", str(PAGE)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    tables = PAGE.read_text("utf-8").count("<table>")
    assert done.stdout == f"{tables} pairs of blocks agree\n", done.stderr
