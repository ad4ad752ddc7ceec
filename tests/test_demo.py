"""Examples are what a newcomer runs first: they must tell their whole story and exit with 0."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_demo_kills_a_worker_and_accounts_for_every_job():
    done = subprocess.run(
        [sys.executable, "examples/demo.py"],
        cwd=ROOT,
        env={**os.environ, "PULSED_DEMO_TILE": "60", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for part in (
        "enqueued 29 jobs",
        "killed it with SIGKILL while",
        "worker lease expired",
        "503 from mail.example",
        "dead letter",
        "replayed the job",
        "it drained and exited with 0",
        "nothing was lost",
        "mandelbrot.png",
    ):
        assert part in done.stdout


def test_the_order_survives_its_worker_and_does_nothing_twice():
    done = subprocess.run(
        [sys.executable, "examples/order.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for part in (
        "waits for somebody to approve it",
        "killed the worker",
        "receipt for 3 items, approved by bob, 3 parcels",
        '"name":"charge"',
        "what happened in the world: charge ada, ",
        "mail ada about 3 parcels",
    ):
        assert part in done.stdout
