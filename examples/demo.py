"""A minute with pulsed: jobs that survive a killed worker, retry, park, and come back.

Run it with ``python3 dev.py demo``. Everything happens in a temporary folder on embedded SQLite;
there is nothing to install and nothing to answer.
"""

import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

HERE = Path(__file__).resolve().parent
os.environ["PULSED_DEMO_FOLDER"] = tempfile.mkdtemp(prefix="pulsed-demo-")
sys.path.insert(0, str(HERE))

from demo_jobs import (  # noqa: E402 - its folder is set above
    COLUMNS,
    FOLDER,
    ROWS,
    TILE,
    app,
    import_orders,
    render_tile,
    send_mail,
)

from pulsed import Job, Status  # noqa: E402

console = Console(highlight=False)
DONE = (Status.SUCCEEDED, Status.DEAD_LETTERED, Status.CANCELLED)
LOOK = {
    Status.SUCCEEDED: ("█", "green"),
    Status.RUNNING: ("▓", "cyan"),
    Status.RETRYING: ("▒", "yellow"),
    Status.PENDING: ("░", "dim"),
    Status.DEAD_LETTERED: ("✗", "red"),
}
TOLD: set[tuple[Any, int]] = set()
START = time.monotonic()


def main() -> int:
    """Tell the story; the exit code says whether every job is accounted for."""
    console.print("\n[bold]pulsed[/bold]: durable jobs on one SQLite file\n")
    (FOLDER / "orders.json").write_text('[{"id": 1}, {"id": 2}, {"id": ')  # broken off
    jobs = enqueue_everything()
    worker = start_worker("first")
    watch(jobs, until=lambda rows: count(rows, Status.SUCCEEDED) >= 7 and running(rows) >= 3)
    interrupted = kill(worker, jobs)
    worker = start_worker("second")
    watch(jobs, until=lambda rows: all(job.status in DONE for job in rows))
    replay_the_dead_letter()
    watch(jobs, until=lambda rows: all(job.status in DONE for job in rows))
    stop(worker)
    return summary(jobs, interrupted)


def enqueue_everything() -> list[Job[Any]]:
    """Enqueue the work of the demo, each kind in one transaction."""
    tiles = [render_tile.bind(column, row) for row in range(ROWS) for column in range(COLUMNS)]
    mails = [
        send_mail.bind(f"{name}@example.com") for name in ("ada", "grace", "edsger", "barbara")
    ]
    jobs: list[Job[Any]] = []
    jobs += render_tile.enqueue_many(tiles)
    jobs += send_mail.enqueue_many(mails)
    jobs.append(import_orders.enqueue("orders.json"))
    say(
        f"enqueued {len(jobs)} jobs: {len(tiles)} tiles of a picture, {len(mails)} mails to a "
        "server that says 503 at first, and the import of a broken file"
    )
    return jobs


def start_worker(which: str) -> subprocess.Popen[bytes]:
    """Start a worker as anybody would, in a process of its own."""
    options = ["-c", "8", "--poll", "0.2", "--tick", "0.5", "--log-level", "error"]
    command = [sys.executable, "-m", "pulsed", "worker", "demo_jobs:app", *options]
    worker = subprocess.Popen(command, cwd=HERE, stderr=subprocess.DEVNULL)
    say(f"started the {which} worker [dim](pulsed worker demo_jobs:app, pid {worker.pid})[/dim]")
    return worker


def kill(worker: subprocess.Popen[bytes], jobs: list[Job[Any]]) -> list[Job[Any]]:
    """Kill the worker without warning, and say what it was doing."""
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    interrupted = [job for job in look(jobs) if job.status is Status.RUNNING]
    say(
        f"[bold red]killed it with SIGKILL[/bold red] while {len(interrupted)} jobs were running, "
        "without a clean-up; their leases expire in 2 s"
    )
    return interrupted


def stop(worker: subprocess.Popen[bytes]) -> None:
    """Ask the worker to finish, as a deployment does."""
    worker.terminate()
    code = worker.wait(timeout=30)
    say(f"stopped the worker with SIGTERM: it drained and exited with {code}")


def replay_the_dead_letter() -> None:
    """Look at what was parked, mend its cause, and give it another chance."""
    for job in app.jobs.list(status="DEAD_LETTERED"):
        attempts = app.jobs.failures(job.id)
        say(
            f"[red]dead letter[/red]: {job.topic} failed {len(attempts)} times and was parked "
            f"with its history\n[dim]{attempts[-1].error}[/dim]"
        )
        (FOLDER / "orders.json").write_text('[{"id": 1}, {"id": 2}, {"id": 3}]')
        app.jobs.retry(job.id)
        say("mended the file and replayed the job [dim](app.jobs.retry(job.id))[/dim]")


def watch(jobs: list[Job[Any]], until: Callable[[list[Job[Any]]], bool]) -> None:
    """Show the jobs live until a condition holds."""
    give_up = time.monotonic() + 120
    with Live(console=console, refresh_per_second=10, transient=True) as live:
        while time.monotonic() < give_up:
            rows = look(jobs)
            live.update(board(rows))
            tell_news(rows)
            if until(rows):
                break
            time.sleep(0.1)
        else:
            raise SystemExit("the demo is stuck; that is a bug worth reporting")
    console.print(board(rows))


def tell_news(rows: Iterable[Job[Any]]) -> None:
    """Mention every failed attempt once, equal ones together, with the wait before the next."""
    news: Counter[tuple[str, int, str]] = Counter()
    waits: dict[tuple[str, int, str], float] = {}
    for job in rows:
        if job.status is Status.RETRYING and (job.id, job.attempts) not in TOLD:
            TOLD.add((job.id, job.attempts))
            kind = (job.topic, job.attempts, job.last_error or "")
            news[kind] += 1
            due = job.next_run_at.timestamp() if job.next_run_at else 0.0
            waits[kind] = max(0.0, due - time.time())
    for (topic, attempt, error), times in news.items():
        say(
            f"[yellow]{times} x {topic}[/yellow]: {error}\n[dim]attempt {attempt} failed; the next "
            f"one in {waits[topic, attempt, error]:.1f} s[/dim]"
        )


def board(rows: list[Job[Any]]) -> Table:
    """Draw one line for each kind of job."""
    table = Table.grid(padding=(0, 2))
    for topic in ("render_tile", "send_mail", "import_orders"):
        bar = Text()
        mine = [job for job in rows if job.topic == topic]
        for job in mine:
            glyph, style = LOOK.get(job.status, ("?", "magenta"))
            bar.append(glyph, style)
        done = sum(job.status is Status.SUCCEEDED for job in mine)
        table.add_row(f"  {topic:<14}", bar, f"{done}/{len(mine)}")
    return table


def summary(jobs: list[Job[Any]], interrupted: list[Job[Any]]) -> int:
    """Account for every job, and show what came out."""
    rows = look(jobs)
    recovered = {job.id for job in interrupted}
    table = Table(title="Every job, accounted for", title_justify="left", title_style="bold")
    for column in ("topic", "jobs", "succeeded", "runs", "hit by the kill"):
        table.add_column(column, justify="left" if column == "topic" else "right")
    for topic in ("render_tile", "send_mail", "import_orders"):
        mine = [job for job in rows if job.topic == topic]
        runs = sum(len(app.jobs.failures(job.id)) + 1 for job in mine)
        again = sum(job.id in recovered for job in mine)
        table.add_row(
            topic, str(len(mine)), str(count(mine, Status.SUCCEEDED)), str(runs), str(again)
        )
    console.print()
    console.print(table)
    picture = assemble_picture()
    complete = count(rows, Status.SUCCEEDED) == len(jobs) == len(rows)
    verdict = "[bold green]nothing was lost[/bold green]" if complete else "[red]INCOMPLETE[/red]"
    console.print(f"\n{verdict} in {time.monotonic() - START:.0f} s; the picture: {picture}\n")
    console.print(
        f"look around  [cyan].venv/bin/pulsed jobs list --url {app.url}[/cyan]\n"
        "read on      README.md, and examples/demo_jobs.py: that is all the code there is\n",
        soft_wrap=True,
    )
    return 0 if complete else 1


def assemble_picture() -> Path:
    """Put the tiles together into a PNG; a missing one would raise."""
    lines = []
    for y in range(ROWS * TILE):
        line = bytearray()
        for column in range(COLUMNS):
            tile = (FOLDER / f"tile-{column}-{y // TILE}.gray").read_bytes()
            line += tile[(y % TILE) * TILE : (y % TILE + 1) * TILE]
        lines.append(b"\0" + line)
    header = struct.pack(">IIBBBBB", COLUMNS * TILE, ROWS * TILE, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"".join(lines))), (b"IEND", b"")]
    picture = FOLDER / "mandelbrot.png"
    picture.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )
    )
    return picture


def look(jobs: list[Job[Any]]) -> list[Job[Any]]:
    """Read all jobs of the demo in one query."""
    found = {job.id: job for job in app.jobs.list(limit=1000)}
    return [found[job.id] for job in jobs]


def count(rows: Iterable[Job[Any]], status: Status) -> int:
    """Count the jobs in a state."""
    return sum(job.status is status for job in rows)


def running(rows: Iterable[Job[Any]]) -> int:
    """Count the jobs that run."""
    return count(rows, Status.RUNNING)


def say(text: str) -> None:
    """Print a piece of the story, with the time before it."""
    line = Table.grid(padding=(0, 2))
    line.add_row(f"[dim]{time.monotonic() - START:5.1f} s[/dim]", text)
    console.print(line)


if __name__ == "__main__":
    sys.exit(main())
