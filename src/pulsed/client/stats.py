"""Statistics of a database's jobs: ``app.stats``."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypeAlias

from pulsed.client.job import Client
from pulsed.engine.lanes import by_name
from pulsed.errors import InvalidOption, checked_seconds
from pulsed.handler.options import checked_count, checked_due, checked_name
from pulsed.model.retention import LONGEST
from pulsed.model.rollup import MOST_ERROR_KINDS, By, Errors, RollupFilter, Series, Totals
from pulsed.store.base import Store
from pulsed.store.blocking import blocking

Since: TypeAlias = datetime | timedelta
"""An instant, or so long before now."""

LAST_HOUR = timedelta(hours=1)


class Statistics:
    """What happened to the jobs of an app's database, over time: ``app.stats``.

    Workers count, and write what they have counted every few seconds. Reading it costs the same
    however many jobs there are.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def aseries(
        self,
        since: Since = LAST_HOUR,
        *,
        until: datetime | None = None,
        step: timedelta | None = None,
        queue: str | None = None,
        topic: str | None = None,
    ) -> Series:
        """Read statistics over time, in steps of equal length without gaps.

        ``since`` is an instant or a time before now, and ``until`` is now. ``step`` is whole
        minutes; by default it suits the length: minutes up to five hours, ten minutes up to two
        days, then hours. Minutes are kept for a day, ten minutes for a week: before that, the step
        is longer than you ask for.
        """
        store = self._client.store()
        where = await _filter(store, since, until, queue, topic)
        return (await store.rollups.series(where, _step(step))).series()

    series = blocking(aseries)

    async def aseries_by(
        self,
        by: By,
        since: Since = LAST_HOUR,
        *,
        until: datetime | None = None,
        step: timedelta | None = None,
        queue: str | None = None,
        topic: str | None = None,
    ) -> dict[str, Series]:
        """Read a series for each ``"queue"`` or each ``"topic"``, by its name.

        All of them have the same steps. What workers could not tell apart, because there was too
        much of it, has the empty name.
        """
        if by not in ("queue", "topic"):
            raise InvalidOption(f'by must be "queue" or "topic", not {by!r:.100}.')
        store = self._client.store()
        where = await _filter(store, since, until, queue, topic)
        found = await store.rollups.series(where, _step(step), by=[by])
        return by_name(found, by)

    series_by = blocking(aseries_by)

    async def atotals(
        self,
        since: Since = LAST_HOUR,
        *,
        until: datetime | None = None,
        queue: str | None = None,
        topic: str | None = None,
    ) -> Totals:
        """Read the sums over a span of time, by queue and topic, the busiest first.

        ``totals(...).stats`` is the sum of all of them.
        """
        store = self._client.store()
        return await store.rollups.totals(await _filter(store, since, until, queue, topic))

    totals = blocking(atotals)

    async def aerrors(
        self,
        since: Since = LAST_HOUR,
        *,
        until: datetime | None = None,
        limit: int = 20,
        queue: str | None = None,
        topic: str | None = None,
    ) -> Errors:
        """Read which errors happened to which topics, the most frequent first.

        Each has its last message, how often it happened, and how many jobs it made dead letters.
        """
        store = self._client.store()
        checked_count("limit", limit, 1, MOST_ERROR_KINDS)
        where = await _filter(store, since, until, queue, topic)
        return await store.rollups.errors(where, limit=limit)

    errors = blocking(aerrors)


async def last_hour_by_queue(store: Store) -> dict[str, Series]:
    """Read the series of the last hour for each queue, without an app."""
    found = await store.rollups.series(await _filter(store, LAST_HOUR), by=["queue"])
    return by_name(found, "queue")


async def _filter(
    store: Store,
    since: Since,
    until: datetime | None = None,
    queue: str | None = None,
    topic: str | None = None,
) -> RollupFilter:
    return RollupFilter(
        await _begin(store, since),
        None if until is None else checked_due("until", until),
        None if queue is None else checked_name("queue", queue),
        None if topic is None else checked_name("topic", topic),
    )


async def _begin(store: Store, since: Since) -> datetime:
    """Return when to begin; so long before now, by the database's clock."""
    if not isinstance(since, timedelta):
        return checked_due("since", since)
    checked_seconds("since", since.total_seconds(), most=LONGEST)
    return await store.now() - since


def _step(step: timedelta | None) -> int | None:
    if step is None:
        return None
    if not isinstance(step, timedelta):
        raise InvalidOption(f"step must be a timedelta, not {step!r:.100}.")
    return int(step.total_seconds())
