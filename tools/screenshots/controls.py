"""What governs the shop: a queue that is paused, limits that are full, and a bulk operation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from uuid import UUID

from pulsed.client.acts import reprioritising
from pulsed.model.audit import Operator
from pulsed.model.control import ControlScope, Numbers
from pulsed.model.job import JobFilter, Status, TopicPolicy
from pulsed.model.limit import LimitRule
from pulsed.model.rate import Rate
from tools.screenshots.simulation import Simulation

ADA = Operator("ada (dashboard)", role="admin")
GRACE = Operator("grace@ops-1")

LIMITS = {
    "openai": Numbers(running=5, rate=Rate(60, per=60.0, burst=10)),
    "export_orders": Numbers(running=2, weights={"acme": 3}),
    "ledger": Numbers(sequential=True),
    "partner-api": Numbers(rate=Rate(600, per=60.0, burst=20)),
}
TENANTS = {"acme": 9, "northwind": 6, "globex": 4, "initech": 1}
"""The jobs of each tenant that exports its orders."""


async def govern(sim: Simulation, worker: UUID) -> UUID:
    """Pause, limit and reprioritise; returns the id of the bulk operation."""
    controls = sim.store.controls
    sim.now = sim.end - timedelta(days=3)
    await controls.declare(ControlScope.LIMIT, LIMITS)
    declared = Numbers(running=4, rate=Rate(600, per=60.0, burst=20))
    await controls.declare(ControlScope.QUEUE, {"partners": declared})
    sim.now = sim.end - timedelta(minutes=42)
    await controls.pause(ControlScope.QUEUE, "partners", by=ADA)
    await controls.override(
        ControlScope.QUEUE, "partners", Numbers(running=2), fields=["running"], by=ADA
    )
    await controls.override(
        ControlScope.LIMIT, "export_orders", Numbers(running=3), fields=["running"], by=GRACE
    )
    await controls.pause(ControlScope.LIMIT, "partner-api", by=GRACE)
    await _jobs(sim, worker)
    return await _reprioritised(sim, worker)


async def _jobs(sim: Simulation, worker: UUID) -> None:
    """Let jobs wait for the queue and for their limits."""
    sim.now = sim.end - timedelta(minutes=38)
    for n in range(31):
        await sim.submit("push_stock", {"partner": "north", "sku": n}, queue="partners")
    await _limited(sim, worker, LimitRule("openai"), "describe_product", {"": 168})
    await _limited(sim, worker, LimitRule("export_orders", "tenant"), "export_orders", TENANTS)
    await _limited(sim, worker, LimitRule("ledger"), "book_payout", {"": 3})
    sim.now = sim.end


async def _limited(
    sim: Simulation, worker: UUID, rule: LimitRule, topic: str, numbers: Mapping[str, int]
) -> None:
    """Submit jobs with a limit, and let a worker run as many as it allows."""
    sim.now = sim.end - timedelta(minutes=6)
    for tenant, number in numbers.items():
        key = f"{rule.name},{tenant}" if tenant else rule.name
        for n in range(number):
            payload = {"tenant": tenant, "day": n} if tenant else {"id": 7_000 + n}
            await sim.submit(topic, payload, queue="reports", limit_key=key)
    sim.now = sim.end - timedelta(seconds=12)
    policy = TopicPolicy(topic=topic, limit_name=rule.name, limit_per=rule.per)
    await sim.claim(worker, "reports", policy, 12)


async def _reprioritised(sim: Simulation, performer: UUID) -> UUID:
    """Let an operator raise the priority of waiting jobs."""
    bulk = sim.store.bulk
    where = JobFilter(topic="describe_product", status=(Status.PENDING,))
    sim.now = sim.end - timedelta(seconds=40)
    row = await bulk.start(sim.job_id(), reprioritising(5), where, by=GRACE)
    while await bulk.advance(performer, row.id):
        pass
    sim.now = sim.end
    return row.id
