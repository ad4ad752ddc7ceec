"""Jobs with limits: how fast they drain, what a full key costs others, and whether turns are fair.

One process claims 100 jobs at a time and reports them at once, with and without limits in turns, so
that the ratio is that of the claims.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence

from benchmarks.databases import Server
from benchmarks.results import PULSED, Results
from benchmarks.scale import Scale
from pulsed import Pulse
from pulsed.model.control import ControlScope, Numbers
from pulsed.model.ids import new_job_id
from pulsed.model.job import Assignment, NewJob, TopicPolicy
from pulsed.model.limit import split_key
from pulsed.model.outcome import Report, Succeeded
from pulsed.store.base import Store

UNLIMITED = f"{PULSED}, without a limit"
ONE_KEY = f"{PULSED}, one limit"
DISTINCT = f"{PULSED}, a key for each job"
ALONE = f"{PULSED}, keys alone"
BLOCKED = f"{PULSED}, keys beside a full one"
FAIR = f"{PULSED}, ten tenants, one of them with nearly all jobs"

SLOTS = 100
TENANTS, EACH = 10, 100
CHUNK = 5_000
TOPIC = "limited"
POLICY = [TopicPolicy(topic=TOPIC, limit_name="bench", limit_per="value")]
PLAIN = [TopicPolicy(topic=TOPIC)]


def measure_limits(server: Server, results: Results, scale: Scale) -> None:
    """Drain the same jobs without a limit, under one, and with many keys, in turns."""
    many = scale.under_snapshot
    few = max(200, scale.drain // 20)
    for _ in range(scale.repeat):
        for subject, keys, numbers, waiting in (
            (UNLIMITED, [None] * scale.drain, None, 0),
            (ONE_KEY, ["bench"] * scale.drain, Numbers(running=SLOTS), 0),
            (DISTINCT, [f"bench,{n}" for n in range(scale.drain)], Numbers(running=1), 0),
            (ALONE, [f"bench,{n % 50}" for n in range(few)], Numbers(running=10), 0),
            (BLOCKED, [f"bench,{n % 50}" for n in range(few)], Numbers(running=10), many),
        ):
            database = server.database("limits")
            rate = asyncio.run(_drain(database.url, keys, numbers, waiting))
            results.add("limits", database.engine, subject, "jobs/s", rate)
            server.drop("limits")
        database = server.database("limits")
        share = asyncio.run(_fairness(database.url, many))
        results.add("limits", database.engine, FAIR, "of the ideal time", share)
        server.drop("limits")


async def _drain(
    url: str, keys: Sequence[str | None], numbers: Numbers | None, waiting: int
) -> float:
    """Return how many jobs a second are claimed and reported, beside those of a full key."""
    async with Pulse(url) as app:
        store = app.store
        if numbers is not None:
            await store.controls.declare(ControlScope.LIMIT, {"bench": numbers})
        if waiting:
            await _submit(store, ["bench,!full"] * (waiting + 10))
            held = await store.claim(uuid.uuid4(), "default", POLICY, 10)
            assert len(held) == 10
        await _submit(store, keys)
        began, done = time.perf_counter(), 0
        while done < len(keys):
            done += len(await _round(store, PLAIN if numbers is None else POLICY))
        return done / (time.perf_counter() - began)


async def _fairness(url: str, many: int) -> float:
    """Return how long nine small tenants took, in proportion to what their shares need."""
    async with Pulse(url) as app:
        await _submit(app.store, ["bench,big"] * many)
        left, claimed = EACH * (TENANTS - 1), 0
        await _submit(app.store, [f"bench,{n % (TENANTS - 1)}" for n in range(left)])
        while left:
            found = await _round(app.store, POLICY)
            claimed += len(found)
            left -= len(found) - _tenants(found)["big"]
        return claimed / (TENANTS * EACH)


def _tenants(found: Iterable[Assignment]) -> Counter[str]:
    return Counter(split_key(each.headers["key"])[1] or "" for each in found)


async def _submit(store: Store, keys: Sequence[str | None]) -> None:
    for start in range(0, len(keys), CHUNK):
        await store.submit(
            [
                NewJob(
                    id=new_job_id(),
                    topic=TOPIC,
                    payload="{}",
                    limit_key=key,
                    headers={"key": key} if key else None,
                )
                for key in keys[start : start + CHUNK]
            ]
        )


async def _round(store: Store, topics: list[TopicPolicy]) -> list[Assignment]:
    found = await store.claim(WORKER, "default", topics, SLOTS)
    if found:
        await store.settle([Report.of(each, Succeeded(None)) for each in found])
    return found


WORKER = uuid.uuid4()
