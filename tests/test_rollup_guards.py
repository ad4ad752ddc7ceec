"""The guards of the statements of statistics, tested by removal: without one, a check must fail."""

from datetime import timedelta

import pytest

from pulsed.model.rollup import COUNTS, LATEST, MINUTE, RollupFilter, Stats, floor
from pulsed.store.sql.rollups import is_higher
from tests.support.guards import check
from tests.test_store_rollups import ALICE, a_rollup, all_stats, an_error

pytestmark = pytest.mark.embedded("takes guards out of the statements")


async def errors_of(store, clock):
    found = await store.rollups.errors(RollupFilter(clock() - timedelta(hours=1)), limit=5)
    return [(each.count, each.message) for each in found]


@pytest.mark.parametrize("statement", ["record_rollups", "record_errors"])
async def test_only_a_higher_total_replaces_a_total(backend, statement):
    async def scenario(store, backend):
        clock = backend.clock
        for total in (5, 2):
            errors = [an_error(clock(), count=total, message=f"{total}")]
            await store.rollups.record(ALICE, [a_rollup(clock(), started=total)], errors)
        assert await all_stats(store, clock) == Stats(started=5)
        assert await errors_of(store, clock) == [(5, "5")]

    figures = COUNTS if statement == "record_rollups" else ("count",)
    await check(backend, scenario, statement, f"WHERE {is_higher(figures)}")


@pytest.mark.parametrize("statement", ["record_rollups", "record_errors"])
async def test_a_minute_that_may_be_folded_gets_nothing_more(backend, statement):
    async def scenario(store, backend):
        clock = backend.clock
        minute = floor(clock(), MINUTE)
        clock.advance(LATEST + MINUTE)
        await store.rollups.record(ALICE, [a_rollup(minute, started=1)], [an_error(minute)])
        assert (await all_stats(store, clock)).started == 0
        assert await errors_of(store, clock) == []

    await check(backend, scenario, statement, "WHERE r.at > ", instead="WHERE r.at <> ")
