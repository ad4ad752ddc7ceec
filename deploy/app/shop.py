"""The jobs that these files deploy. Put yours in their place."""

import asyncio

from pulsed import Pulse

app = Pulse(migrate=False)  # the database is $PULSED_URL; `pulsed migrate up` made its tables


@app.job(timeout=60)
async def send_email(to: str, subject: str) -> str:
    await asyncio.sleep(0.1)
    return f"sent {subject!r} to {to}"


@app.schedule("nightly", cron="0 3 * * *", tz="UTC")
@app.job
def nightly_report() -> str:
    return "nothing to report"
