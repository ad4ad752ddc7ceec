"""The shop's orders: their table, and the workflow that fulfils one."""

import asyncio
import os
from datetime import timedelta

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pulsed import Backoff, Context, Pulse, SignalTimeout

URL = os.environ.get("SHOP_URL", "sqlite:///shop.db")
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
LARGE = 10_000
"""Orders from so many cents on need an approval."""

_scheme, _, _rest = URL.partition("://")
# Orders and jobs share one database, and so a transaction. After a restart of the database,
# pre_ping replaces the connections that it has closed.
engine = create_async_engine(f"{DRIVERS[_scheme]}://{_rest}", pool_pre_ping=True)
Session = async_sessionmaker(engine, class_=AsyncSession, expire_on_commit=False)
pulse = Pulse(URL)


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    cents: Mapped[int]
    status: Mapped[str] = mapped_column(default="placed")
    job_id: Mapped[str] = mapped_column(default="")


@pulse.job(max_attempts=10, backoff=Backoff.exponential(0.2, cap=30))
async def fulfil(ctx: Context, order_id: int, cents: int) -> str:
    """Reserve, wait for an approval if the order is large, and ship."""
    await ctx.step(set_status, order_id, "reserved", name="reserve")
    if cents >= LARGE and not await is_approved(ctx):
        await ctx.step(set_status, order_id, "rejected", name="reject")
        return "rejected"
    await ctx.step(ship, order_id)
    await ctx.step(set_status, order_id, "shipped", name="close")
    return "shipped"


async def is_approved(ctx: Context) -> bool:
    """Wait up to a week, without a process that waits: the job is a row until somebody decides."""
    await ctx.aprogress("waiting for an approval")
    try:
        approved = await ctx.wait_signal("approval", bool, timeout=timedelta(days=7))
    except SignalTimeout:
        approved = False
    return approved


async def set_status(order_id: int, status: str) -> None:
    """Write what happened. A step may be repeated after a crash; so this is the same, twice."""
    async with Session() as session, session.begin():
        await session.execute(update(Order).where(Order.id == order_id).values(status=status))


async def ship(order_id: int) -> str:
    await asyncio.sleep(0.02)  # a call to a carrier
    return f"parcel of order {order_id}"
