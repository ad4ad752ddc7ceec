"""What is many or large goes in batches, by number and by bytes; one bad item takes no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsed import Context, Pulse
from pulsed.batches import TRANSACTION, Gathering, Limits, batches, halves, text_size
from pulsed.client import jobtype
from pulsed.engine.worker import settler as settling
from pulsed.engine.worker.settler import Settler
from pulsed.engine.workflow.fan_out import CHILDREN
from pulsed.engine.workflow.recorder import Recorder
from pulsed.errors import StorageError, StorageRefused, TransientStorageError
from pulsed.handler import Call, Handler
from pulsed.model.backoff import RetryPolicy
from pulsed.model.job import Lease, NewJob, Status
from pulsed.model.outcome import Beat, Failed, Report, Succeeded, Successes
from pulsed.rpc.client import store as remote
from pulsed.rpc.client import workflows as remote_workflows
from pulsed.rpc.client.connection import RemoteOptions
from pulsed.rpc.client.store import RemoteStore
from pulsed.store.base import Store
from pulsed.store.sql_store.store import SqlStore
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import AT_ONCE_OPTIONS
from tests.support.jobs import ALICE, a_job, claim
from tests.support.parts import part_with
from tests.support.servers import ServerThread
from tests.support.workers import finished, submit, working

LARGE = json.dumps("x" * 1_000_000)

# -- cutting --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 20)), st.integers(1, 5), st.integers(1, 30))
def test_batches_are_as_large_as_they_may_be_and_lose_nothing(sizes, items, total):
    found = list(batches(sizes, lambda size: size, Limits(items, total)))
    assert [size for batch in found for size in batch] == sizes
    for batch in found:
        assert len(batch) <= items
        assert sum(batch) <= total or len(batch) == 1
    for batch, following in pairwise(found):
        assert len(batch) == items or sum(batch) + following[0] > total or sum(batch) >= total


@given(st.lists(st.lists(st.integers(0, 20))), st.integers(1, 8), st.integers(1, 60))
def test_items_that_are_added_together_make_the_same_batches(groups, items, total):
    gathering = Gathering(int, Limits(items, total))
    found = [batch for group in groups for batch in gathering.extend(group)]
    found += [rest] if (rest := gathering.take()) else []
    assert found == list(batches(chain.from_iterable(groups), int, Limits(items, total)))


def test_an_item_may_count_for_several():
    found = list(batches([3, 1, 1, 9, 1], lambda _: 0, Limits(4, 1), count=lambda number: number))
    assert found == [[3, 1], [1], [9], [1]]


@given(st.text())
def test_the_size_of_a_text_is_that_of_its_bytes(text):
    assert text_size(text) == len(text.encode("utf-8", "surrogatepass"))


@given(st.lists(st.integers(), min_size=2))
def test_both_halves_are_smaller(items):
    first, second = halves(items)
    assert [*first, *second] == items
    assert first
    assert second


# -- reports --------------------------------------------------------------------------------------


class Settled:
    """Takes what a settler reports as done."""

    def __init__(self) -> None:
        self.accepted: set[Lease] = set()

    def __call__(self, reports: Sequence[Report], accepted: set[Lease]) -> None:
        self.accepted |= accepted


def watched(
    store: Store, monkeypatch: pytest.MonkeyPatch, fails: Callable[[list[Report]], Exception | None]
) -> list[list[Report]]:
    """Note the batches that are settled; some fail."""
    settle, tried = store.settle, []

    async def watching(reports: Iterable[Report], **options: Any) -> set[Lease]:
        tried.append(list(reports))
        if (error := fails(tried[-1])) is not None:
            raise error
        return await settle(tried[-1], **options)

    monkeypatch.setattr(store, "settle", watching)
    return tried


async def running_jobs(store: Store, number: int) -> list[Lease]:
    await store.submit([a_job() for _ in range(number)])
    return [each.lease for each in await claim(store, limit=number)]


async def test_large_results_are_reported_a_few_at_a_time(store, monkeypatch):
    tried = watched(store, monkeypatch, lambda _: None)
    leases, done = await running_jobs(store, 12), Settled()
    settler = Settler(store, done)
    for lease in leases:
        settler.put([Report(lease, Succeeded(LARGE))])
    while settler.backlog:
        assert await settler.tick()
    assert done.accepted == set(leases)
    assert [len(batch) for batch in tried] == [4, 4, 4]
    assert max(sum(report.size for report in batch) for batch in tried) <= TRANSACTION.bytes


@pytest.mark.parametrize("error", [StorageError("odd"), ValueError("odd")])
async def test_a_report_that_cannot_be_stored_holds_up_no_other(store, monkeypatch, error):
    monkeypatch.setattr(settling, "OUTAGE_BACKOFF", RetryPolicy(initial=60, max=60))
    leases, done = await running_jobs(store, 20), Settled()
    bad = leases[7]
    broken = True

    def fails(batch: list[Report]) -> Exception | None:
        return error if broken and bad in [report.lease for report in batch] else None

    tried = watched(store, monkeypatch, fails)
    settler = Settler(store, done)
    for lease in leases[:19]:
        settler.put([Report(lease, Succeeded("1"))])
    assert await settler.tick()
    assert done.accepted == set(leases[:19]) - {bad}
    assert len(tried) <= 12  # by halves, not one by one
    settler.put([Report(leases[19], Succeeded("1"))])
    assert await settler.tick()
    assert leases[19] in done.accepted
    assert settler.backlog == 1
    broken = False
    settler._try_again()
    assert await settler.tick()
    assert done.accepted == set(leases)
    await asyncio.wait_for(settler.flushed(), 60)


async def test_an_unexpected_error_is_shown_once(store, monkeypatch, caplog):
    """Not once for each report, nor inside of itself for each half of the batch."""
    leases, done = await running_jobs(store, 8), Settled()
    watched(store, monkeypatch, lambda _: ValueError("odd"))
    settler = Settler(store, done)
    for lease in leases:
        settler.put([Report(lease, SEVEN)])
    assert await settler.tick()
    assert settler.backlog == 8
    assert caplog.text.count("waits (odd)") == 8
    assert caplog.text.count("Traceback") == 1


async def test_a_record_that_is_refused_shows_its_own_error_alone():
    """Not inside of one for each half of the batch that it was in."""

    async def refuse(records: Sequence[Report]) -> set[Lease]:
        if records[0].lease.token == 0 or records[-1].lease.token == 0:
            raise ValueError("odd")
        return {each.lease for each in records}

    records = [Report(Lease(UUID(int=n), n, ALICE), SEVEN) for n in range(8)]
    recorder = Recorder[Report](refuse, "a checkpoint", size=lambda _: 1)
    answers = [recorder.put(each) for each in records]
    bad, *good = await asyncio.gather(*answers, return_exceptions=True)
    assert isinstance(bad, ValueError)
    assert bad.__context__ is None
    assert good == [True] * 7


async def test_a_report_that_is_refused_says_so_on_its_job_alone(store, monkeypatch):
    leases, done = await running_jobs(store, 8), Settled()

    def fails(batch: list[Report]) -> Exception | None:
        bad = [each for each in batch if each.lease == leases[3] and each.outcome == SEVEN]
        return StorageRefused("no such character") if bad else None

    watched(store, monkeypatch, fails)
    settler = Settler(store, done)
    for lease in leases:
        settler.put([Report(lease, SEVEN)])
    assert await settler.tick()
    assert done.accepted == set(leases)
    rows = await store.get([lease.job_id for lease in leases])
    assert rows[leases[3].job_id].status is Status.DEAD_LETTERED
    assert "no such character" in (rows[leases[3].job_id].last_error or "")
    assert sum(row.status is Status.SUCCEEDED for row in rows.values()) == 7


SEVEN = Succeeded("7")


async def test_what_was_settled_before_a_batch_met_an_outage_is_not_settled_twice(
    store, monkeypatch
):
    leases, done = await running_jobs(store, 4), Settled()
    trouble: list[Exception] = [TransientStorageError("away"), StorageError("odd")]

    def fails(batch: list[Report]) -> Exception | None:
        if trouble and leases[3] in [report.lease for report in batch]:
            return trouble.pop()
        return None

    tried = watched(store, monkeypatch, fails)
    settler = Settler(store, done)
    for lease in leases:
        settler.put([Report(lease, SEVEN)])
    assert not await settler.tick()  # all four fail, then the second half meets the outage
    assert settler.backlog == 2
    assert await settler.tick()
    assert done.accepted == set(leases)
    assert [len(batch) for batch in tried] == [4, 2, 2, 2]


# -- through a server -----------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch):
    parts = Limits(10, 10_000)
    monkeypatch.setattr(remote, "PART", parts)
    monkeypatch.setattr(remote_workflows, "PART", parts)
    return parts


@pytest.fixture
async def through_server(tmp_path):
    with ServerThread(lambda: SqliteStore(tmp_path / "jobs.db"), largest_message=300_000) as server:
        store = RemoteStore(server.url, RemoteOptions(**AT_ONCE_OPTIONS))
        store.server = server  # type: ignore[attr-defined]
        yield store
        await store.aclose()


async def test_reports_go_through_a_server_in_parts(through_server, small_parts, monkeypatch):
    store: Any = through_server
    leases = await running_jobs(store, 30)
    tried = watched(store.server.store, monkeypatch, lambda _: None)
    successes, settle_successes = [], store.server.store.settle_successes

    async def watching(runs: Successes) -> bool:
        successes.append(runs.results)
        return bool(await settle_successes(runs))

    monkeypatch.setattr(store.server.store, "settle_successes", watching)
    text = json.dumps("x" * 4_000)
    reports = [Report(lease, Succeeded(text)) for lease in leases[:20]]
    reports += [Report(lease, Failed("no", traceback=text)) for lease in leases[20:]]
    assert await store.settle(reports) == set(leases)
    assert [len(batch) for batch in (*successes, *tried)] == [2] * 15


async def test_heartbeats_go_through_a_server_in_parts(through_server, small_parts):
    leases = await running_jobs(through_server, 25)
    answers = await through_server.beat(leases)
    assert answers == dict.fromkeys(leases, Beat.OK)


async def test_a_result_too_large_for_a_server_fails_its_job_and_no_other(through_server):
    async def answer(size: int) -> str:
        return "x" * size

    sizes = [10, 400_000, 20]
    ids = [await submit(through_server, "answer", size=size) for size in sizes]
    async with working(through_server, answer):
        rows = [await finished(through_server, job_id) for job_id in ids]
    assert [row.status for row in rows] == [
        Status.SUCCEEDED,
        Status.DEAD_LETTERED,
        Status.SUCCEEDED,
    ]
    assert "too large for the pulsed server" in (rows[1].last_error or "")


# -- producers and fan-outs -----------------------------------------------------------------------


def counting(store: Any, verb: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Note how many jobs, and how many bytes of them, each call of a verb has."""
    part = part_with(store, verb)
    call, seen = getattr(part, verb), []

    async def counted(*args: Any) -> Any:
        jobs: list[NewJob] = list(args[-1])
        seen.append((len(jobs), sum(len(job.payload) for job in jobs)))
        return await call(*args)

    monkeypatch.setattr(part, verb, counted)
    return seen


@pytest.mark.parametrize("kind", ["blocking", "iterable", "asynchronous"])
def test_a_source_of_large_jobs_is_enqueued_in_small_batches(url, monkeypatch, kind):
    monkeypatch.setattr(jobtype, "TRANSACTION", Limits(500, 10_000))

    async def source() -> Any:
        for _ in range(20):
            yield ("x" * 3_000,)

    with Pulse(url) as app:

        @app.job
        def measure(text: str) -> int:
            return len(text)

        seen = counting(app.store, "submit", monkeypatch)
        if kind == "blocking":
            ids = list(measure.enqueue_iter([("x" * 3_000,)] * 20))
        else:
            calls = source() if kind == "asynchronous" else [("x" * 3_000,)] * 20

            async def enqueue() -> list[Any]:
                async with app:
                    return [each async for each in measure.aenqueue_iter(calls)]

            ids = asyncio.run(enqueue())
    assert len(set(ids)) == 20
    assert [number for number, _ in seen] == [3] * 6 + [2]


async def test_large_children_are_stored_a_few_at_a_time(store: SqlStore, monkeypatch):
    seen = counting(store, "add_children", monkeypatch)

    async def measure(text: str) -> int:
        return len(text)

    child: Handler[int] = Handler(measure)

    async def work(ctx: Context) -> int:
        calls = [Call("measure", child.encode(("x" * 900_000,), {}), child, {}) for _ in range(9)]
        return sum((await ctx.fan_out(calls)).values)

    job_id = await submit(store, "work")
    async with working(store, work, child):
        row = await finished(store, job_id)
    assert row.result == str(9 * 900_000)
    assert [number for number, _ in seen] == [4, 4, 1]
    assert max(size for _, size in seen) <= CHILDREN.bytes
