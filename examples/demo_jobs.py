"""The jobs of the demo: a picture in tiles, mails to a shaky server, and an import that breaks."""

import json
import os
from pathlib import Path

from pulsed import Backoff, Context, Pulse

FOLDER = Path(os.environ.get("PULSED_DEMO_FOLDER", "."))
COLUMNS, ROWS = 6, 4
TILE = int(os.environ.get("PULSED_DEMO_TILE", "120"))

app = Pulse(f"sqlite:///{FOLDER / 'jobs.db'}")


@app.job(lease=2)
def render_tile(ctx: Context, column: int, row: int) -> str:
    """Compute one tile of the Mandelbrot set: plain Python, hard work, runs in a thread."""
    pixels = bytearray()
    for y in range(row * TILE, (row + 1) * TILE):
        for x in range(column * TILE, (column + 1) * TILE):
            pixels.append(escape_time(x / (COLUMNS * TILE), y / (ROWS * TILE)))
        if y % 15 == 0:
            ctx.progress(round((y % TILE) / TILE, 2))
    # Written aside and moved into place: a run that is killed leaves no half of a tile, and a
    # second run of the same job does no harm. That is all "idempotent" means.
    target = FOLDER / f"tile-{column}-{row}.gray"
    aside = target.with_suffix(f".{ctx.lease_token}")
    aside.write_bytes(pixels)
    aside.replace(target)
    return target.name


@app.job(priority=10, max_attempts=5, backoff=Backoff.quadratic(0.4), lease=2)
async def send_mail(ctx: Context, to: str) -> str:
    """Talk to a mail server that refuses the first two times."""
    if ctx.attempt <= 2:
        raise ConnectionError("503 from mail.example")
    return f"accepted for {to}"


@app.job(priority=10, max_attempts=3, backoff=Backoff.quadratic(0.4), lease=2)
def import_orders(file: str) -> int:
    """Read a file that is broken."""
    return len(json.loads((FOLDER / file).read_text()))


def escape_time(u: float, v: float) -> int:
    """Return how fast a point of the plane runs away, as a grey from 0 (never) to 255."""
    c = complex(-2.2 + 3.2 * u, -1.1 + 2.2 * v)
    z = 0j
    for step in range(300):
        z = z * z + c
        if z.real * z.real + z.imag * z.imag > 4:
            return 255 - int(255 * (step / 300) ** 0.5)
    return 0
