"""An order that takes its time: a worker is killed on the way, and what was done stays done.

Run it with ``.venv/bin/python examples/order.py``. The workflow is in ``order_jobs.py``; here
an order is enqueued, a worker is lost, and the order is approved in the end.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Nothing in it is worth keeping: what happened is told.
SCRATCH = tempfile.TemporaryDirectory(prefix="pulsed-order-", ignore_cleanup_errors=True)
os.environ["PULSED_DEMO_FOLDER"] = SCRATCH.name
sys.path.insert(0, str(HERE))

from order_jobs import FOLDER, app, place_order  # noqa: E402 - its folder is set above

from pulsed import Job, Status  # noqa: E402

ITEMS = ["lamp", "book", "pen"]
PATIENCE = 60.0


def main() -> int:
    """Tell the story; the exit code says whether every effect happened once."""
    order = place_order.enqueue("ada", ITEMS)
    print(f"enqueued order {order.id}")
    worker = start_worker()
    until(lambda: order.refresh().status is Status.WAITING and order.row.wait_kind == "SIGNAL")
    print("ada was charged, the order has slept, and waits for an approval")

    worker.kill()
    worker.wait()
    print("killed the worker; the order is a row in the database and does not mind")

    order.signal("approved", "bob")
    print("bob approves, while no worker is alive")
    worker = start_worker()
    print(f"a new worker goes on where the other one was: {order.result(PATIENCE)}\n")
    worker.terminate()
    worker.wait()

    show(order)
    effects = (FOLDER / "diary.txt").read_text("utf-8").splitlines()
    print(f"\nwhat happened in the world: {', '.join(effects)}")
    return 0 if len(effects) == len(set(effects)) == len(ITEMS) + 2 else 1


def start_worker() -> subprocess.Popen[bytes]:
    """Start a worker as anybody would, in a process of its own."""
    options = ["--poll", "0.2", "--tick", "0.5", "--log-level", "error"]
    command = [sys.executable, "-m", "pulsed", "worker", "order_jobs:app", *options]
    return subprocess.Popen(command, cwd=HERE, stderr=subprocess.DEVNULL)


def show(order: Job[str]) -> None:
    """Look at the order as an operator does."""
    sys.stdout.flush()
    command = [sys.executable, "-m", "pulsed", "jobs", "show", str(order.id), "--url", app.url]
    subprocess.run(command, check=True)


def until(condition: Callable[[], bool]) -> None:
    """Look again and again until a condition holds."""
    give_up_at = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > give_up_at:
            raise SystemExit("the order is stuck; that is a bug worth reporting")
        time.sleep(0.05)


if __name__ == "__main__":
    with SCRATCH:
        sys.exit(main())
