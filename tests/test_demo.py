"""The examples run to their end and exit with 0."""

from pathlib import Path

from tests.support.programs import python


def test_the_demo_kills_a_worker_and_accounts_for_every_job(tmp_path: Path):
    """It leaves its picture on disk; here in the directory of the test."""
    story = {"TMPDIR": str(tmp_path), "PULSED_DEMO_TILE": "60", "COLUMNS": "200"}
    said = python("examples/demo.py", seconds=120, **story).stdout
    for part in (
        "enqueued 29 jobs",
        "killed it with SIGKILL while",
        "503 from mail.example",
        "dead letter",
        "replayed the job",
        "it drained and exited with 0",
        "nothing was lost",
        "mandelbrot.png",
    ):
        assert part in said
    assert len(list(tmp_path.glob("pulsed-demo-*/mandelbrot.png"))) == 1


def test_the_retries_are_three_and_their_waits_grow(tmp_path: Path):
    said = python("examples/retries.py", seconds=60, TMPDIR=str(tmp_path)).stdout
    for part in (
        "1 of 3    RETRYING",
        "2 of 3    RETRYING",
        "3 of 3    DEAD_LETTERED",
        "503 from the mail service for ada",
        "linear: 0.4 s, 0.8 s   exponential: 0.2 s, 0.8 s",
    ):
        assert part in said
    assert list(tmp_path.iterdir()) == []


def test_the_order_survives_its_worker_and_does_nothing_twice(tmp_path: Path):
    said = python("examples/order.py", seconds=120, TMPDIR=str(tmp_path)).stdout
    for part in (
        "waits for an approval",
        "killed the worker",
        "receipt for 3 items, approved by bob, 3 parcels",
        '"name":"charge"',
        "what happened in the world: charge ada, ",
        "mail ada about 3 parcels",
    ):
        assert part in said
    assert list(tmp_path.iterdir()) == []
