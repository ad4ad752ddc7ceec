"""Workflows over the network: the contract as any client sees it, and what is special about it.

That a remote store does what every store does is shown by the suite of stores, which runs over it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest
from grpc import aio

from pulsed.batches import Limits
from pulsed.engine.context import Context
from pulsed.errors import FanOutFailed, InvalidPayload, LeaseLost, NoRetry, StorageError
from pulsed.model.backoff import RetryPolicy
from pulsed.model.ids import new_job_id
from pulsed.model.job import JobFilter, Status
from pulsed.model.outcome import Failed, Released, Succeeded
from pulsed.model.step import StepKind, StepState
from pulsed.model.workflow import Record
from pulsed.rpc.client import workflows as remote_workflows
from pulsed.rpc.client.store import RemoteStore
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages.jobs import lease_message, new_job_message
from pulsed.rpc.messages.workflows import checkpoint_message
from pulsed.rpc.server import sized_page as parcel
from pulsed.rpc.server.services import workflows as service_workflows
from pulsed.store import tokens
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.connections import SqliteOptions
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.tokens import Token
from tests.support.backends import AT_ONCE_OPTIONS, QUICK, RemoteUnderTest
from tests.support.checkpoints import (
    FAMILY,
    a_family,
    a_step,
    children_of,
    recorded,
    send,
    statuses,
    suspended,
    take,
)
from tests.support.faults import Fault
from tests.support.jobs import (
    claim_one,
    row,
    running,
    settle,
    submitted,
)
from tests.support.servers import FreshAuthenticator, ServerThread
from tests.support.workers import finished, handler, submit, until, working
from tests.support.workflows import call_of, names_of


@pytest.fixture
def store(far):
    return far


class Calls(RemoteStore):
    """A remote store that records which methods it called, and lets a test act in between."""

    def __init__(self, url: str) -> None:
        super().__init__(url, QUICK)
        self.made: list[str] = []
        self.after: Callable[[str], Any] | None = None
        self._really_call = self.connection.call
        setattr(self.connection, "call", self._call)  # noqa: B010 - an instance's own method

    async def _call(self, name: str, request: Any, **options: Any) -> Any:
        answer = await self._really_call(name, request, **options)
        self.made.append(name)
        if self.after is not None:
            await self.after(name)
        return answer


@pytest.fixture
async def calls(server):
    store = Calls(server.url)
    yield store
    await store.aclose()


# -- the contract ---------------------------------------------------------------------------------


async def test_a_workflow_needs_nothing_but_the_contract(client, store):
    """A step, a wait for a signal, and the end, in messages only."""
    run = await running(store)
    lease, job_id = lease_message(run.lease), str(run.job_id)

    step = pb.Checkpoint(
        name="charge", nth=1, seq=1, kind=pb.STEP_KIND_STEP, state=pb.STEP_STATE_DONE,
        value='{"paid":5}', tries=1, took_seconds=0.5,
    )  # fmt: skip
    records = [pb.CheckpointRequest.Record(lease=lease, checkpoint=step)]
    for _ in range(2):  # sent again, it changes nothing
        answer = await client("Checkpoint", pb.CheckpointRequest(records=records))
        assert list(answer.accepted) == [True]

    wait = pb.Checkpoint(
        name="approved", nth=1, seq=2, kind=pb.STEP_KIND_SIGNAL, state=pb.STEP_STATE_OPEN, tries=1
    )
    taking = pb.TakeSignalRequest(lease=lease, name="approved", checkpoint=wait)
    assert not (await client("TakeSignal", taking)).HasField("checkpoint")
    waiting = pb.Waiting(
        wait=pb.Wait(kind=pb.STEP_KIND_SIGNAL, key="approved", delay_seconds=60), checkpoint=wait
    )
    await client("ReportResult", pb.Report(lease=lease, waiting=waiting))

    job = await client("GetJob", pb.GetJobRequest(job_id=job_id))
    assert job.status == pb.JOB_STATUS_WAITING
    assert (job.wait_kind, job.wait_key) == (pb.STEP_KIND_SIGNAL, "approved")

    sent = pb.SignalRequest(id=str(uuid4()), job_id=job_id, name="approved", payload="true")
    for _ in range(2):
        assert (await client("Signal", sent)).stored

    lease = lease_message((await claim_one(store)).lease)
    history = await client("GetHistory", pb.GetHistoryRequest(job_id=job_id))
    first, second = history.checkpoints
    assert (first.name, first.value, second.name) == ("charge", '{"paid":5}', "approved")
    assert (second.state, second.HasField("until")) == (pb.STEP_STATE_OPEN, True)
    taken = await client(
        "TakeSignal", pb.TakeSignalRequest(lease=lease, name="approved", checkpoint=wait)
    )
    assert (taken.checkpoint.state, taken.checkpoint.value) == (pb.STEP_STATE_DONE, "true")
    again = pb.Checkpoint(
        name="approved", nth=2, seq=3, kind=pb.STEP_KIND_SIGNAL, state=pb.STEP_STATE_OPEN
    )
    nothing = await client(
        "TakeSignal", pb.TakeSignalRequest(lease=lease, name="approved", checkpoint=again)
    )
    assert not nothing.HasField("checkpoint")  # sent twice, it arrived once

    done = pb.Succeeded(result="1", forget_checkpoints=True)
    await client("ReportResult", pb.Report(lease=lease, succeeded=done))
    assert not (await client("GetHistory", pb.GetHistoryRequest(job_id=job_id))).checkpoints


async def test_children_need_nothing_but_the_contract(client, store):
    run = await running(store)
    lease = lease_message(run.lease)
    children = children_of(run.job_id, 2)
    messages = [new_job_message(child) for child in children]
    for message in messages:
        message.parent_id = ""
    for _ in range(2):
        await client("FanOut", pb.FanOutRequest(lease=lease, jobs=messages))
    where = pb.JobFilter(parent_id=str(run.job_id))
    jobs = (await client("ListJobs", pb.ListJobsRequest(where=where, limit=10))).jobs
    assert {job.id for job in jobs} == {str(child.id) for child in children}
    assert {(job.parent_id, job.parent_step) for job in jobs} == {(str(run.job_id), FAMILY)}
    asked = [*(str(child.id) for child in children), str(uuid4())]
    outcomes = (await client("GetOutcomes", pb.GetOutcomesRequest(job_ids=asked))).outcomes
    assert {each.job_id for each in outcomes} == set(asked[:2])
    watched = await client("Watch", pb.WatchRequest(lease=lease, job_id=asked[0]))
    assert watched.outcome.status == pb.JOB_STATUS_PENDING
    nobody = await client("Watch", pb.WatchRequest(lease=lease, job_id=asked[2]))
    assert not nobody.HasField("outcome")


async def test_a_child_belongs_to_the_job_of_the_lease_whatever_it_says(client, store):
    run, other = await running(store), await running(store)
    (child,) = children_of(other.job_id, 1)
    request = pb.FanOutRequest(lease=lease_message(run.lease), jobs=[new_job_message(child)])
    await client("FanOut", request)
    assert (await row(store, child.id)).parent_id == run.job_id


async def test_a_lost_lease_is_a_failed_precondition(client, store):
    run = await running(store)
    (child,) = children_of(run.job_id, 1)
    await settle(store, run, Released())
    lease = lease_message(run.lease)
    step = checkpoint_message(a_step(kind=StepKind.SIGNAL))
    for method, request in {
        "FanOut": pb.FanOutRequest(lease=lease, jobs=[new_job_message(child)]),
        "Watch": pb.WatchRequest(lease=lease, job_id=str(run.job_id)),
        "TakeSignal": pb.TakeSignalRequest(lease=lease, name="go", checkpoint=step),
    }.items():
        with pytest.raises(aio.AioRpcError) as refused:
            await client(method, request)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION, method
    records = [pb.CheckpointRequest.Record(lease=lease, checkpoint=step)]
    answer = await client("Checkpoint", pb.CheckpointRequest(records=records))
    assert list(answer.accepted) == [False]


async def test_a_remote_store_says_which_job_lost_its_lease(store):
    run = await running(store)
    await settle(store, run, Released())
    for verb in (
        lambda: store.workflows.add_children(run.lease, children_of(run.job_id, 1)),
        lambda: store.workflows.watch(run.lease, run.job_id),
        lambda: take(store, run.lease),
    ):
        with pytest.raises(LeaseLost, match="lost its lease") as lost:
            await verb()
        assert lost.value.job_id == run.job_id


async def test_each_checkpoint_of_a_batch_has_an_answer_of_its_own(store):
    lost, held = await running(store), await running(store)
    await settle(store, lost, Released())
    records = [Record(run.lease, a_step()) for run in (lost, held)]
    assert await store.workflows.record(records) == {held.lease}
    assert await names_of(store, lost.job_id) == []
    assert await names_of(store, held.job_id) == ["charge"]


# -- what a server does not take ------------------------------------------------------------------


@pytest.mark.parametrize(
    "says",
    [
        {"name": ""},
        {"name": "a,b"},
        {"nth": 0},
        {"seq": 0},
        {"tries": -1},
        {"took_seconds": math.nan},
        {"took_seconds": -1.0},
        {"kind": pb.STEP_KIND_UNSPECIFIED},
        {"state": pb.STEP_STATE_UNSPECIFIED},
        {"input_hash": "x" * 201},
        {"value": "{"},
        {"value": '"\\u0000"'},
        {"value": json.dumps("x" * 1_048_577)},
        {"value": "[" * 101 + "]" * 101},
    ],
    ids=lambda says: " ".join(f"{key} {value!r:.20}" for key, value in says.items()),
)
async def test_a_checkpoint_that_cannot_be_stored_is_refused(client, store, says):
    run = await running(store)
    step = checkpoint_message(a_step())
    for field, value in says.items():
        setattr(step, field, value)
    record = pb.CheckpointRequest.Record(lease=lease_message(run.lease), checkpoint=step)
    with pytest.raises(aio.AioRpcError) as refused:
        await client("Checkpoint", pb.CheckpointRequest(records=[record]))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await names_of(store, run.job_id) == []


async def test_what_a_large_fan_out_came_to_may_be_larger_than_a_step(store):
    run = await running(store)
    large = json.dumps("x" * 2_000_000)
    assert await recorded(store, run, a_step(kind=StepKind.FAN_OUT, value=large))
    (found,) = (await store.workflows.history(run.job_id)).checkpoints
    assert found.value == large


@pytest.mark.parametrize(
    "wait",
    [
        pb.Wait(),
        pb.Wait(kind=pb.STEP_KIND_STEP),
        pb.Wait(kind=pb.STEP_KIND_VERSION),
        pb.Wait(kind=pb.STEP_KIND_SIGNAL),
        pb.Wait(kind=pb.STEP_KIND_FAN_OUT),
        pb.Wait(kind=pb.STEP_KIND_JOB, key="me"),
        pb.Wait(kind=pb.STEP_KIND_SLEEP, delay_seconds=math.nan),
    ],
    ids=lambda wait: str(wait).replace("\n", " ") or "nothing",
)
async def test_a_wait_that_could_not_end_is_refused(client, store, wait):
    run = await running(store)
    opened = checkpoint_message(a_step(state=StepState.OPEN, value=None))
    report = pb.Report(
        lease=lease_message(run.lease), waiting=pb.Waiting(wait=wait, checkpoint=opened)
    )
    with pytest.raises(aio.AioRpcError) as refused:
        await client("ReportResult", report)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await row(store, run.job_id)).status is Status.RUNNING


async def test_children_without_a_family_are_refused(client, store):
    run = await running(store)
    (child,) = children_of(run.job_id, 1, parent_step=None)
    request = pb.FanOutRequest(lease=lease_message(run.lease), jobs=[new_job_message(child)])
    with pytest.raises(aio.AioRpcError, match="need a parent_step"):
        await client("FanOut", request)
    assert await store.get([child.id]) == {}


async def test_a_signal_that_is_not_json_is_refused(store):
    job_id = await submitted(store)
    with pytest.raises(InvalidPayload, match="'go' is not JSON"):
        await send(store, job_id, payload="{")


# -- limits of a message --------------------------------------------------------------------------


async def test_a_long_history_comes_in_several_answers(calls, monkeypatch):
    monkeypatch.setattr(parcel, "LARGEST_ANSWER", 500)
    run = await running(calls)
    steps = [a_step(f"s{seq}", seq=seq, value=json.dumps("x" * 200)) for seq in range(1, 8)]
    assert await recorded(calls, run, *steps)
    calls.made.clear()
    history = await calls.workflows.history(run.job_id)
    assert [found.name for found in history.checkpoints] == [step.name for step in steps]
    assert calls.made.count("GetHistory") > 2


async def test_a_history_that_is_begun_anew_meanwhile_is_read_anew(calls, monkeypatch):
    monkeypatch.setattr(parcel, "LARGEST_ANSWER", 500)
    run = await running(calls, max_attempts=1)
    steps = [a_step(f"s{seq}", seq=seq, value=json.dumps("x" * 200)) for seq in range(1, 8)]
    assert await recorded(calls, run, *steps)
    await settle(calls, run, Failed("boom"))

    async def replay(name: str) -> None:
        if name == "GetHistory":
            calls.after = None
            await calls.replay([run.job_id], fresh=True)

    calls.after = replay
    history = await calls.workflows.history(run.job_id)
    assert (history.checkpoints, history.generation) == ([], 1)


async def test_many_results_come_in_several_answers(calls, monkeypatch):
    monkeypatch.setattr(service_workflows, "LARGEST_ANSWER", 500)
    monkeypatch.setattr(service_workflows, "OUTCOMES_AT_A_TIME", 3)
    monkeypatch.setattr(remote_workflows, "PART", Limits(6, 100_000))
    _, children = await a_family(calls, 8)
    for child in children:
        await settle(calls, child, Succeeded(json.dumps("x" * 200), discard_checkpoints=True))
    calls.made.clear()
    outcomes = await calls.workflows.outcomes([new_job_id(), *(child.job_id for child in children)])
    assert {child.job_id for child in children} == set(outcomes)
    assert all(len(each.result or "") == 202 for each in outcomes.values())
    assert calls.made.count("GetOutcomes") > 2


async def test_many_children_and_checkpoints_go_in_several_requests(calls, monkeypatch):
    monkeypatch.setattr(remote_workflows, "PART", Limits(3, 100_000))
    run = await running(calls)
    calls.made.clear()
    await calls.workflows.add_children(run.lease, children_of(run.job_id, 7))
    assert calls.made == ["FanOut"] * 3
    assert len(await calls.list_jobs(JobFilter(parent=run.job_id))) == 7
    monkeypatch.setattr(remote_workflows, "PART", Limits(3, 1_000))
    calls.made.clear()
    steps = [a_step(f"s{seq}", seq=seq, value=json.dumps("x" * 600)) for seq in (1, 2, 3)]
    assert await recorded(calls, run, *steps)
    assert calls.made == ["Checkpoint"] * 3


async def test_more_items_than_a_request_may_have_are_refused(database):
    with ServerThread(lambda: SqliteStore(database), largest_batch=2) as server:
        store = RemoteStore(server.url, QUICK)
        run = await running(store)
        for ask in (
            lambda: store.workflows.add_children(run.lease, children_of(run.job_id, 3)),
            lambda: store.workflows.record(
                [Record(run.lease, a_step(nth=nth)) for nth in (1, 2, 3)]
            ),
            lambda: store.workflows.outcomes([uuid4() for _ in range(3)]),
        ):
            with pytest.raises(StorageError, match="3 items in one request are too many"):
                await ask()
        await store.aclose()


# -- the answer is lost, the call is made again ---------------------------------------------------


@pytest.fixture
async def hasty(database):
    """A store whose server does not retry: that is left to the client."""
    options = SqliteOptions(retry=RetryPolicy.disabled())
    with ServerThread(lambda: SqliteStore(database, options)) as server:
        store = RemoteUnderTest(server, QUICK)
        yield store
        await store.aclose()


@pytest.mark.parametrize(
    "verb", ["record", "add_children", "signal", "take_signal", "suspend", "about_to_wait", "watch"]
)
async def test_a_call_whose_answer_was_lost_is_made_again(hasty, verb):
    """Everything that a workflow does, while one verb's first answer gets lost."""
    store, fault = hasty, Fault(hasty.server.store, verb, "after")
    run = await running(store)
    assert await recorded(store, run, a_step())
    await store.workflows.add_children(run.lease, children_of(run.job_id, 2))
    child, _ = children_of(run.job_id, 2)
    watched = await store.workflows.watch(run.lease, child.id)
    assert watched is not None
    assert await suspended(store, run, StepKind.SIGNAL, key="go")
    assert (await send(store, run.job_id, payload="7")).stored
    run = await claim_one(store)
    taken = await take(store, run.lease)
    assert taken is not None
    assert (taken.state, taken.value) == (StepState.DONE, "7")
    assert await take(store, run.lease, nth=2, seq=2) is None
    assert fault.hits == 1
    assert len(await store.list_jobs(JobFilter(parent=run.job_id))) == 2
    assert set(await names_of(store, run.job_id)) == {"charge", "signal"}


# -- what a server does by itself, and what it cannot do ------------------------------------------


async def test_a_step_gets_no_transaction_and_is_told_why(store):
    run = await running(store)
    with pytest.raises(StorageError, match=rf"{run.job_id} needs a transaction.*a database URL"):
        store.workflows.transaction(run.lease, plain=False)


async def orphans(database: Path) -> list[UUID]:
    """Cancel a parent by a process that dies before it has cancelled the children."""
    store = SqliteStore(database, SqliteOptions(**AT_ONCE_OPTIONS))
    run = await running(store)
    children = children_of(run.job_id, 2)
    await store.workflows.add_children(run.lease, children)
    assert await suspended(store, run, StepKind.FAN_OUT)
    Fault(store, "cascade", "before", times=1_000)
    with pytest.raises(StorageError):
        await store.cancel([run.job_id])
    await store.aclose()
    ids = [child.id for child in children]
    found = SqliteStore(database)
    assert await statuses(found, [run.job_id, *ids]) == [Status.CANCELLED, *[Status.PENDING] * 2]
    await found.aclose()
    return ids


async def test_a_server_looks_after_orphans_at_every_tick(database):
    children = await orphans(database)
    with ServerThread(lambda: SqliteStore(database), upkeep=True, tick=0.05) as server:
        store = RemoteStore(server.url, QUICK)

        async def are_told() -> bool:
            return await statuses(store, children) == [Status.CANCELLED] * 2

        await until(are_told)
        assert await store.workflows.cascade() == 0
        await store.aclose()


async def test_a_store_leaves_orphans_to_the_server_that_does_the_upkeep(database):
    with ServerThread(lambda: SqliteStore(database), upkeep=True, tick=3600) as server:
        store = Calls(server.url)
        assert await store.workflows.cascade() == 0
        assert store.made == ["GetServer"]
        await store.aclose()


async def test_a_server_without_upkeep_looks_after_orphans_when_asked(database, store):
    children = await orphans(database)
    assert await store.workflows.cascade() == 1
    assert await statuses(store, children) == [Status.CANCELLED] * 2
    assert await store.workflows.cascade() == 0


# -- workers --------------------------------------------------------------------------------------


async def test_a_token_for_work_is_enough_to_run_a_workflow(database):
    """Also to stop the children that no fan-out waits for any more."""
    mine = SqliteStore(database)
    secret = tokens.new_secret()
    token = Token("worker", tokens.digest_of(secret), ("work",), ("parent", "child"), None)
    assert run_blocking(tokens.add(mine, token))

    async def child(n: int) -> int:
        if n < 0:
            raise NoRetry("boom")
        return n

    small = handler(child, topic="child")

    async def parent(ctx: Context) -> str:
        await ctx.step(str, 1)
        good = await ctx.fan_out([call_of(small, n=1), call_of(small, n=2)])
        try:
            later = call_of(small, n=3)
            later.options = {"delay": 3600}
            await ctx.fan_out([call_of(small, n=-1), later])
        except FanOutFailed:
            return str(sum(good.values))
        raise AssertionError("it did not fail")

    served = SqliteStore(database)
    with ServerThread(lambda: served, authenticator=FreshAuthenticator(served)) as server:
        store = RemoteStore(f"pulse://worker:{secret}@{server.host}", QUICK)
        job_id = await submit(mine, "parent")
        async with working(store, handler(parent, topic="parent"), small, fence=False):
            job = await finished(mine, job_id)
        assert (job.status, job.result) == (Status.SUCCEEDED, '"3"')
        rows = await mine.list_jobs(JobFilter(parent=job_id))
        assert sorted(each.status for each in rows) == [
            Status.CANCELLED, Status.DEAD_LETTERED, Status.SUCCEEDED, Status.SUCCEEDED
        ]  # fmt: skip
        await store.aclose()
    await mine.aclose()
