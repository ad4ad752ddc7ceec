"""Python in a process of its own, started where it finds ``tests``, the examples and the tools."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def python(
    *arguments: str, seconds: float = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, which must be a good one; returns what it wrote."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
