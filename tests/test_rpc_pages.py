"""Answers that come in several parts: nothing is lost, and little is read that is not sent."""

import json
from collections.abc import Callable, Iterable, Sized
from typing import Any
from uuid import UUID

import pytest

from pulsed.engine.upkeep.scheduler import template
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, Status
from pulsed.model.outcome import Failed
from pulsed.model.workflow import History
from pulsed.rpc.client.connection import RemoteOptions
from pulsed.rpc.client.store import RemoteStore
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.contract import LARGEST_ANSWER
from pulsed.rpc.server import sized_page as parcel
from pulsed.rpc.server.sized_page import SizedPage
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import AT_ONCE_OPTIONS
from tests.support.checkpoints import a_step, recorded
from tests.support.jobs import NO_WAIT, a_job, claim_one, running, settle
from tests.support.parts import part_with
from tests.support.schedules import APP, a_spec
from tests.support.servers import ServerThread

ITEMS = 30
LARGE = json.dumps("x" * 2_000)
"""Four of them fill an answer here."""


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(parcel, "LARGEST_ANSWER", 10_000)
    monkeypatch.setattr(parcel, "FIRST_PART", 3)
    with ServerThread(lambda: SqliteStore(tmp_path / "jobs.db")) as server:
        yield server


@pytest.fixture
async def store(server):
    store = RemoteStore(server.url, RemoteOptions(**AT_ONCE_OPTIONS))
    yield store
    await store.aclose()


@pytest.fixture
def reads(server, monkeypatch) -> Callable[[str], list[int]]:
    """Records how many items each call of a method of the server's store returned."""

    def watch(name: str) -> list[int]:
        numbers: list[int] = []
        part = part_with(server.store, name)
        method = getattr(part, name)

        async def counting(*args: Any, **options: Any) -> Any:
            answer = await method(*args, **options)
            items: Sized = answer.checkpoints if isinstance(answer, History) else answer
            numbers.append(len(items))
            return answer

        monkeypatch.setattr(part, name, counting)
        return numbers

    return watch


def check_reads(numbers: list[int]) -> None:
    """What was sent was read, and of what was not sent less than as much again."""
    assert len(numbers) > 2
    assert ITEMS <= sum(numbers) < 2 * ITEMS
    assert max(numbers) <= 6


async def test_a_history(store, reads):
    run = await running(store)
    steps = [a_step(f"s{seq}", seq=seq, value=LARGE) for seq in range(1, ITEMS + 1)]
    assert await recorded(store, run, *steps)
    numbers = reads("history")
    history = await store.workflows.history(run.job_id)
    assert [found.name for found in history.checkpoints] == [step.name for step in steps]
    assert all(found.value == LARGE for found in history.checkpoints)
    check_reads(numbers)
    page = await store.workflows.history(run.job_id, skip=7, limit=9)
    assert page.checkpoints == history.checkpoints[7:16]


async def test_a_list_of_jobs(store, reads):
    ids = await large_jobs(store)
    numbers = reads("list_jobs")
    found = await store.list_jobs(JobFilter(), limit=10_000)
    assert [job.id for job in found] == sorted(ids, reverse=True)
    check_reads(numbers)
    assert await store.list_jobs(JobFilter(), limit=11) == found[:11]


async def test_jobs_by_their_ids(store, reads):
    ids = await large_jobs(store)
    numbers = reads("get")
    found = await store.get([new_job_id(), *ids, new_job_id()])
    assert set(found) == set(ids)
    check_reads(numbers)


async def test_the_failures_of_a_job(store, reads):
    run = await running(store, max_attempts=ITEMS, backoff=NO_WAIT)
    for attempt in range(ITEMS):
        assert await settle(store, run, Failed(f"{attempt} {LARGE}"))
        run = await claim_one(store) if attempt < ITEMS - 1 else run
    numbers = reads("failures")
    failures = await store.failures(run.job_id)
    assert [failure.error for failure in failures] == [f"{n} {LARGE}" for n in range(ITEMS)]
    check_reads(numbers)
    page = await store.failures(run.job_id, after=failures[3].lease_token, limit=9)
    assert page == failures[4:13]
    newest_first = await store.failures(run.job_id, before=run.lease_token + 1)
    assert newest_first == failures[::-1]
    page = await store.failures(run.job_id, before=failures[13].lease_token, limit=9)
    assert page == failures[4:13][::-1]


async def test_the_jobs_of_a_schedule(store, reads):
    spec = a_spec(payload=json.dumps({"x": LARGE}))
    row, _ = await store.schedules.put(APP, "s", spec)
    jobs = [template(row, row.spec, new_job_id()) for _ in range(ITEMS)]
    await store.submit(jobs)  # all at one moment: it does not say where to go on
    numbers = reads("fires")
    found = await store.schedules.fires(row.id, limit=10_000)
    assert [job.id for job in found] == sorted((job.id for job in jobs), reverse=True)
    check_reads(numbers)


async def large_jobs(store: RemoteStore) -> list[UUID]:
    jobs = [a_job(payload=json.dumps({"x": LARGE})) for _ in range(ITEMS)]
    await store.submit(jobs)
    return [job.id for job in jobs]


# -- filling an answer ----------------------------------------------------------------------------


def a_message(size: int) -> pb.Job:
    return pb.Job(payload="x" * size, status=pb.JobStatus.Value(f"JOB_STATUS_{Status.PENDING}"))


def wanted(sizes: Iterable[int], limit: int | None = None) -> list[int]:
    """Return how many items are asked for at a time until an answer is full, or there are none."""
    parts = []
    answer = SizedPage(a_message, limit=limit)
    left = list(sizes)
    while left and (count := answer.wanted):
        parts.append(count)
        left = left[answer.fill(left[:count]) :]
    return parts


def test_small_items_are_read_in_ever_larger_parts():
    assert wanted([100] * 5_000) == [100, 400, 1_600, 4_000]


def test_large_items_are_read_as_there_is_room_for_them():
    first, *parts = wanted([40_000] * 5_000)
    assert sum(parts) <= LARGEST_ANSWER // 40_000 + 1 - first + 1


def test_no_more_is_read_than_was_asked_for():
    assert wanted([100] * 5_000, limit=120) == [100, 20]


def test_an_item_too_large_for_an_answer_is_sent_alone():
    answer = SizedPage(a_message)
    assert answer.fill([LARGEST_ANSWER * 2, 1]) == 1
    assert (answer.is_cut, answer.wanted) == (True, 0)
