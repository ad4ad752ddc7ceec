"""Sends hostile input for as long as you say: ``python3 dev.py fuzz --minutes 10``.

The targets are those of ``tests/test_fuzz.py``, each round with other input. It ends with the first
failure, which is shown with the smallest input that causes it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

ROUND = 400
"""Examples of each target in a round."""


def main() -> int:
    """Run rounds until the time is up, or one fails."""
    parser = argparse.ArgumentParser(prog="dev.py fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--only", default="", help="a part of the targets' names")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    rounds = 0
    while time.monotonic() < end:
        rounds += 1
        if failed := _round(options.only, seed=rounds + int(time.time())):
            return failed
        say(f"round {rounds}: {ROUND} inputs for each target, none broke anything")
    return 0


def say(line: str) -> None:
    """Write a line at once, also into a file."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _round(only: str, seed: int) -> int:
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
        *("tests/test_fuzz.py", f"--hypothesis-seed={seed}", "-k", only or "test"),
    ]
    env = {**os.environ, "PULSED_FUZZ_EXAMPLES": str(ROUND)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        say(f"with --hypothesis-seed={seed}:\n{done.stdout}{done.stderr}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
