"""Examples are what a newcomer runs first: they must tell their whole story and exit with 0."""

from pathlib import Path

from tests.support.programs import python


def test_the_demo_kills_a_worker_and_accounts_for_every_job(tmp_path: Path):
    """It leaves its picture to be looked at; here, where it goes with the test."""
    story = {"TMPDIR": str(tmp_path), "PULSED_DEMO_TILE": "60", "COLUMNS": "200"}
    said = python("examples/demo.py", seconds=120, **story).stdout
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
        assert part in said
    assert len(list(tmp_path.glob("pulsed-demo-*/mandelbrot.png"))) == 1


def test_the_order_survives_its_worker_and_does_nothing_twice(tmp_path: Path):
    said = python("examples/order.py", seconds=120, TMPDIR=str(tmp_path)).stdout
    for part in (
        "waits for somebody to approve it",
        "killed the worker",
        "receipt for 3 items, approved by bob, 3 parcels",
        '"name":"charge"',
        "what happened in the world: charge ada, ",
        "mail ada about 3 parcels",
    ):
        assert part in said
    assert list(tmp_path.iterdir()) == []
