"""An order as a workflow: it takes money, waits for a person, ships in parcels, and thanks.

What is done is not done again, though the order may take days and its workers come and go. See
``order.py``.
"""

import asyncio
import os
from pathlib import Path

from pulsed import Backoff, Context, Pulse

FOLDER = Path(os.environ.get("PULSED_DEMO_FOLDER", "."))

app = Pulse(f"sqlite:///{FOLDER / 'orders.db'}")


@app.job(lease=2)
async def place_order(ctx: Context, customer: str, items: list[str]) -> str:
    """Charge, pause, ask somebody, ship everything at once, and write a mail."""
    receipt = await ctx.step(charge, customer, len(items), retry=3)
    await ctx.sleep(1)  # it could be a day: nothing runs and no slot is taken meanwhile
    approved_by = await ctx.wait_signal("approved", str, timeout=3600)
    parcels = await ctx.fan_out([ship.bind(item) for item in items])
    await ctx.step(send_mail, customer, parcels.values)
    return f"{receipt}, approved by {approved_by}, {len(parcels.values)} parcels"


@app.job(max_attempts=3, backoff=Backoff.fixed(0.2), lease=2)
async def ship(ctx: Context, item: str) -> str:
    """Pack one item; the courier does not always answer at first."""
    label = await ctx.step(print_label, item)
    if item == "lamp" and ctx.attempt == 1:
        raise ConnectionError("the courier does not answer")
    return label


async def charge(customer: str, items: int) -> str:
    """Take the money, once."""
    note(f"charge {customer}")
    await asyncio.sleep(0.1)
    return f"receipt for {items} items"


def print_label(item: str) -> str:
    """Print a label; a plain function runs in a thread."""
    note(f"label {item}")
    return f"parcel with {item}"


async def send_mail(customer: str, parcels: list[str]) -> None:
    """Tell the customer what is on its way."""
    note(f"mail {customer} about {len(parcels)} parcels")


def note(what: str) -> None:
    """Keep a diary of effects, to see that each happened once."""
    with (FOLDER / "diary.txt").open("a", encoding="utf-8") as diary:
        diary.write(f"{what}\n")
