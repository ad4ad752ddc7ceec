"""pulsed: a job that the first run holds for ever.

Run as ``URL FILE enqueue`` and ``URL FILE work [tuned]``: with the default lease of 30 s and tick
of 10 s, or with 2 s and 1 s.
"""

import asyncio
import sys

from held_job import is_first_run

from pulsed import Pulse

url, file, act = sys.argv[1:4]
tuned = "tuned" in sys.argv
app = Pulse(url)


@app.job(lease=2.0 if tuned else 30.0)
async def hold() -> None:
    if is_first_run(file):
        await asyncio.sleep(3600)


if act == "enqueue":
    hold.enqueue()
    app.close()
else:
    app.run(concurrency=4, tick=1.0 if tuned else 10.0)
