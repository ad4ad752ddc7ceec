"""The shop: places orders, passes approvals on, and lets a page follow them."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from orders import Base, Order, Session, engine, fulfil, pulse
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from pulsed.contrib.fastapi import CurrentPulse, job_events, running
from pulsed.web import dashboard

PAGE = Path(__file__).with_name("page.html").read_text("utf-8")
HAS_WORKER = os.environ.get("SHOP_WORKER", "yes") == "yes"
"""Whether jobs run in this process; else start ``pulsed worker orders:pulse`` beside it."""


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with running(pulse, worker=HAS_WORKER) as state:
        yield dict(state)
    await engine.dispose()


async def transaction() -> AsyncIterator[AsyncSession]:
    async with Session() as session, session.begin():
        yield session


Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]
app = FastAPI(lifespan=lifespan)
app.mount("/jobs-admin", dashboard(pulse))


class NewOrder(BaseModel):
    item: str
    cents: int


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    return PAGE


@app.post("/orders")
async def place(new: NewOrder, session: Transaction) -> dict[str, Any]:
    """Store an order and its job: both, or neither."""
    order = Order(item=new.item, cents=new.cents)
    session.add(order)
    await session.flush()
    job = await fulfil.using(conn=session).aenqueue(order.id, new.cents)
    order.job_id = str(job.id)
    return {"order": order.id, "job": order.job_id}


@app.get("/orders/{order_id}")
async def read(order_id: int, session: Transaction) -> dict[str, Any]:
    order = await _found(session, order_id)
    return {"order": order.id, "item": order.item, "status": order.status}


@app.post("/orders/{order_id}/approval/{approved}")
async def approve(order_id: int, approved: bool, session: Transaction, pulse: CurrentPulse) -> None:  # noqa: FBT001
    order = await _found(session, order_id)
    await pulse.asignal(order.job_id, "approval", approved)


@app.get("/orders/{order_id}/events")
async def events(request: Request, order_id: int) -> Response:
    async with Session() as session:
        order = await _found(session, order_id)
    return await job_events(request, order.job_id)


async def _found(session: AsyncSession, order_id: int) -> Order:
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "There is no such order.")
    return order
