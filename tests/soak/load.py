"""What runs in a soak. Run as ``python -m tests.soak.load URL RECORD KEEP``: a worker."""

from __future__ import annotations

import os
import sys
import time

from pulsed import Context, Pulse, Retention, Router
from tests.chaos.load import ends_with_its_parent

CONCURRENCY = 20
LEASE = 5.0
"""Seconds. The job of a killed worker waits for its end."""

router = Router()
_record = -1


def open_record(path: str) -> None:
    """Write down from now on when jobs start, in a file that pulsed knows nothing of."""
    global _record  # noqa: PLW0603 - one for the process
    _record = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(kind: str, ctx: Context, late: float = 0.0) -> None:
    os.write(_record, f"{kind} {ctx.job_id} {late:.6f}\n".encode())


@router.job(lease=LEASE)
async def steady(ctx: Context, due: float) -> None:
    """Says how long after it was due it has started."""
    note("job", ctx, time.monotonic() - due)


@router.job(lease=LEASE)
async def tick(ctx: Context) -> None:
    note("tick", ctx)


@router.job(lease=LEASE)
async def journey(ctx: Context, seconds: float) -> None:
    """Is in flight for so long."""
    await ctx.step(lambda: 1, name="departure")
    await ctx.sleep(seconds)
    await ctx.step(lambda: 2, name="arrival")
    note("journey", ctx)


def make_app(url: str, keep: float) -> Pulse:
    """Return an app that keeps finished jobs for so many seconds."""
    app = Pulse(url, retention=Retention(succeeded=keep, cancelled=keep, dead_lettered=keep))
    app.include(router)
    return app


def main(url: str, record: str, keep: str) -> int:
    ends_with_its_parent()
    open_record(record)
    return make_app(url, float(keep)).run(concurrency=CONCURRENCY).value


if __name__ == "__main__":
    # Handlers belong to the imported module, not to __main__.
    from tests.soak import load  # noqa: PLW0406

    sys.exit(load.main(*sys.argv[1:]))
