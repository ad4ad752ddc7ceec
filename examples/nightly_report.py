"""A report each night: a schedule with a time zone, and a CSV that is written once for its night.

Run it with ``.venv/bin/python examples/nightly_report.py``. Three nights pass in a second, because
the clock is that of a sandbox. In production, ``pulsed worker nightly_report:app`` waits for them.
"""

import csv
import os
import sys
import tempfile
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from pulsed import Backoff, Context, Pulse, testing

FOLDER = Path(os.environ.get("REPORTS", "reports"))
HOME = ZoneInfo("Europe/Berlin")
app = Pulse(os.environ.get("PULSED_URL", "sqlite:///reports.db"))

ORDERS = [
    (date(2030, 3, 30), "lamp", 4900),
    (date(2030, 3, 30), "book", 1850),
    (date(2030, 3, 31), "lamp", 4900),
    (date(2030, 4, 1), "pen", 320),
]
"""What was sold, in cents; in place of a table of yours."""
DAYS = ["2030-03-30", "2030-03-31", "2030-04-01"]


@app.schedule("nightly", cron="30 2 * * *", tz="Europe/Berlin", catch_up="all")
@app.job(max_attempts=5, backoff=Backoff.exponential(60), timeout=600)
def nightly_report(ctx: Context) -> str:
    """Write what was sold on the day before the night that this job is for."""
    assert ctx.occurrence is not None, "it is run by its schedule"
    day = (ctx.occurrence.astimezone(HOME) - timedelta(days=1)).date()
    path = FOLDER / f"{day}.csv"
    write(path, [order for order in ORDERS if order[0] == day])
    return path.name


def write(path: Path, rows: list[tuple[date, str, int]]) -> None:
    """Write the whole file or nothing: the job may be killed, and run a second time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["day", "item", "cents"])
        lines.writerows(rows)
        lines.writerow(["", "total", sum(cents for _, _, cents in rows)])
    unfinished.replace(path)


def main() -> int:
    """Let three nights pass, one of which has no half past two, and show the reports."""
    clock = testing.Clock(datetime(2030, 3, 30, 12, tzinfo=UTC))
    with testing.override(app, clock=clock) as sandbox:
        runs = sandbox.drain(until=datetime(2030, 4, 2, 12, tzinfo=UTC), deliver_twice=True)
    print(f"{len(runs)} runs, since each job was delivered twice")
    reports = sorted(FOLDER.iterdir())
    for report in reports:
        print(f"\n{report.name}\n{report.read_text('utf-8')}", end="")
    return 0 if [report.stem for report in reports] == DAYS else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="pulsed-report-") as scratch:
        FOLDER = Path(scratch)
        sys.exit(main())
