"""Who may do what: every method with every kind of caller, and nothing changed by a refusal."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest
from grpc import aio

from pulsed.engine.upkeep.watchdog import Watchdog
from pulsed.errors import AccessDenied
from pulsed.model.ids import computed_id
from pulsed.model.job import TopicPolicy, WorkerInfo
from pulsed.model.outcome import Report, Succeeded
from pulsed.rpc.client.connection import RemoteOptions
from pulsed.rpc.client.store import RemoteStore
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import columnar
from pulsed.rpc.messages import jobs as convert
from pulsed.rpc.messages import reports as convert_reports
from pulsed.rpc.messages import schedules as convert_schedules
from pulsed.rpc.messages.contract import METHODS
from pulsed.rpc.server.access import ADMIN, PRODUCE, ROLES, WHOLE_DATABASE, WORK, TokenRole
from pulsed.store import tokens
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from tests.support.backends import AT_ONCE_OPTIONS
from tests.support.jobs import a_job, claim_one, settle, submitted
from tests.support.raw_streams import raw_client
from tests.support.schedules import a_spec
from tests.support.servers import FreshAuthenticator, ServerThread
from tests.support.tenants import MINE, OTHERS, World, checkpoints, fan_out_request, report_of
from tests.support.tokens import given

DENIED = {grpc.StatusCode.PERMISSION_DENIED}
ABOUT_NO_JOB = {"GetTime", "GetServer"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("access") / "jobs.db")
    asyncio.run(world.fill())
    yield world
    world.server.stop()


ALL = sorted(METHODS)
OPEN_TO = {"produce": PRODUCE, "work": WORK, "admin": ADMIN | PRODUCE | WORK}


@pytest.mark.parametrize("method", ALL)
async def test_who_proves_nothing_is_refused(world, method):
    before = world.everything()
    for who in ("nobody", "stranger"):
        assert await world.code(who, method, MINE) is grpc.StatusCode.UNAUTHENTICATED
    assert world.everything() == before


@pytest.mark.parametrize("method", ALL)
async def test_the_wrong_role_is_refused(world, method):
    before = world.everything()
    for who in ("read", "operate", "produce", "work"):
        if not any(role.value == who for role in ROLES[method]):
            assert await world.code(who, method, MINE) in DENIED, who
    assert world.everything() == before


@pytest.mark.parametrize("method", ALL)
async def test_another_tenants_topic_or_queue_is_refused(world, method):
    """Also for an admin of one topic or queue; information about all jobs is closed to it."""
    if method in ABOUT_NO_JOB or method in ("ListSchedules", "ListBulk", "ListControls"):
        pytest.skip("about nobody's jobs, or shows only one's own")
    before = world.everything()
    for who, role in {
        "my producer": "produce",
        "my worker": "work",
        "my admin": "admin",
        "my queue": "admin",
    }.items():
        if any(each.value == role for each in ROLES[method]):
            found = await world.code(who, method, OTHERS)
            rows_of_nobody = method in ("ListScheduleJobs", "ListScheduleFires", "ListLeases")
            expected = {grpc.StatusCode.OK} if rows_of_nobody else DENIED
            assert found in expected, (who, found)
    assert world.everything() == before


@pytest.mark.parametrize("method", ALL)
async def test_the_right_role_is_let_in(tmp_path, method):
    world = World(tmp_path / "jobs.db")
    await world.fill()
    try:
        right = "admin"
        if method not in WHOLE_DATABASE:
            right = {PRODUCE: "my producer", WORK: "my worker"}.get(ROLES[method], "my admin")
        assert await world.code(right, method, MINE) is grpc.StatusCode.OK
    finally:
        world.server.stop()
        await world.store.aclose()


@pytest.mark.parametrize("method", [each for each in ALL if TokenRole.READ in ROLES[each]])
async def test_who_may_only_look_sees_and_changes_nothing(world, method):
    before = world.everything()
    assert await world.code("read", method, MINE) is grpc.StatusCode.OK
    assert world.everything() == before


def test_nothing_that_changes_something_is_open_to_readers():
    looks = ("Get", "List", "Count", "Audit", "CheckDatabase", "ReadStream")
    assert {each for each in ALL if TokenRole.READ in ROLES[each]} < {
        each for each in ALL if each.startswith(looks)
    }


async def test_one_item_that_is_not_his_refuses_the_whole_batch(world):
    before = world.everything()
    mine, others = world.running[MINE], world.running[OTHERS]
    reports = [convert_reports.report_message(report_of(run)) for run in (mine, others)]
    done = [Report.of(run, Succeeded("1")) for run in (mine, others)]
    succeeded = columnar.succeeded_message(done, mine.lease.worker_id)
    leases = [convert.lease_message(run.lease) for run in (mine, others)]
    jobs = [convert.new_job_message(a_job(topic=topic)) for topic in (MINE, OTHERS)]
    waiting = [str(world.waiting[tenant]) for tenant in (MINE, OTHERS)]
    asked = [
        ("my worker", "ReportResults", pb.ReportResultsRequest(reports=reports)),
        ("my worker", "ReportResults", pb.ReportResultsRequest(succeeded=succeeded)),
        ("my worker", "Heartbeat", pb.HeartbeatRequest(leases=leases)),
        ("my worker", "Release", pb.ReleaseRequest(leases=leases)),
        ("my worker", "Checkpoint", checkpoints(mine, others)),
        ("my worker", "FanOut", fan_out_request(mine, MINE, OTHERS)),
        ("my worker", "FanOut", fan_out_request(others, MINE)),
        ("my worker", "GetOutcomes", pb.GetOutcomesRequest(job_ids=waiting)),
        ("my worker", "Watch", pb.WatchRequest(lease=leases[0], job_id=waiting[1])),
        ("my worker", "Watch", pb.WatchRequest(lease=leases[1], job_id=waiting[0])),
        ("my producer", "SubmitJobs", pb.SubmitJobsRequest(jobs=jobs)),
        ("my producer", "GetJobs", pb.GetJobsRequest(job_ids=waiting)),
        ("my producer", "CancelJobs", pb.JobIds(job_ids=waiting)),
        ("my admin", "DeleteJobs", pb.JobIds(job_ids=waiting)),
    ]
    for who, method, request in asked:
        async with raw_client(world.server.host, world.secrets[who]) as client:
            with pytest.raises(aio.AioRpcError) as refused:
                await client(method, request)
            assert refused.value.code() in DENIED, method
    assert world.everything() == before


async def test_a_listing_must_name_what_one_is_limited_to(world):
    async with raw_client(world.server.host, world.secrets["my producer"]) as client:
        with pytest.raises(aio.AioRpcError, match="must name one"):
            await client("ListJobs", pb.ListJobsRequest(limit=5))
    async with raw_client(world.server.host, world.secrets["my admin"]) as client:
        answer = await client("ListSchedules", pb.ListSchedulesRequest())
        assert [each.name for each in answer.schedules] == [MINE]


async def test_a_producer_cannot_speak_in_a_schedules_name(world):
    job = convert.new_job_message(a_job(topic=MINE, schedule_id=uuid4()))
    async with raw_client(world.server.host, world.secrets["produce"]) as client:
        with pytest.raises(aio.AioRpcError, match="in a schedule's name"):
            await client("SubmitJobs", pb.SubmitJobsRequest(jobs=[job]))


async def test_a_producer_cannot_speak_in_another_jobs_name(world):
    job = convert.new_job_message(a_job(topic=MINE, parent_id=world.running[MINE].job_id))
    async with raw_client(world.server.host, world.secrets["produce"]) as client:
        with pytest.raises(aio.AioRpcError, match="in another job's name"):
            await client("SubmitJobs", pb.SubmitJobsRequest(jobs=[job]))


async def test_a_worker_cannot_speak_in_a_schedules_name(world):
    request = fan_out_request(world.running[MINE], MINE)
    request.jobs[0].schedule_id = str(uuid4())
    async with raw_client(world.server.host, world.secrets["my worker"]) as client:
        with pytest.raises(aio.AioRpcError, match="in a schedule's name"):
            await client("FanOut", request)


def waits_for(run: Any, job_id: UUID) -> Any:
    """Return a report that its job waits for another one."""
    step = pb.Checkpoint(name="w", nth=1, seq=1, kind=pb.STEP_KIND_JOB, state=pb.STEP_STATE_OPEN)
    wait = pb.Wait(kind=pb.STEP_KIND_JOB, key=str(job_id))
    lease = convert.lease_message(run.lease)
    return pb.Report(lease=lease, waiting=pb.Waiting(wait=wait, checkpoint=step))


def reaching_over(world: World) -> dict[str, tuple[str, str, Any]]:
    """Return requests about one's own jobs that reach over to another tenant's."""
    mine, others = world.running[MINE], world.running[OTHERS]
    child = a_job(topic=MINE, queue=MINE, parent_id=others.job_id)
    fired = a_job(topic=MINE, queue=MINE, schedule_id=world.schedules[OTHERS].id)
    unknown = a_job(topic=MINE, queue=MINE, parent_id=uuid4())
    fan_out = fan_out_request(mine, MINE)
    fan_out.jobs[0].schedule_id = str(world.schedules[OTHERS].id)
    worker = pb.Worker(id=str(others.lease.worker_id), host="h", queues=[MINE], topics=[MINE])
    wait = waits_for(mine, world.waiting[OTHERS])

    def submit(job: Any) -> Any:
        return pb.SubmitJobsRequest(jobs=[convert.new_job_message(job)])

    return {
        "a child of a foreign job": ("my admin", "SubmitJobs", submit(child)),
        "a child of no job": ("my admin", "SubmitJobs", submit(unknown)),
        "a job of a foreign schedule": ("my admin", "SubmitJobs", submit(fired)),
        "a child of a foreign schedule": ("my admin", "FanOut", fan_out),
        "a wait for a foreign job": ("my worker", "ReportResult", wait),
        "such a wait among others": (
            "my worker", "ReportResults", pb.ReportResultsRequest(reports=[wait]),
        ),
        "a foreign worker's id": ("my worker", "RegisterWorker", worker),
        "the end of a foreign worker": (
            "my worker", "RetireWorker",
            pb.RetireWorkerRequest(worker_id=str(others.lease.worker_id)),
        ),
        "a foreign schedule's name": (
            "my admin", "PutSchedule",
            pb.PutScheduleRequest(
                name=OTHERS, spec=convert_schedules.spec_message(a_spec(topic=MINE, queue=MINE))
            ),
        ),
    }  # fmt: skip


async def test_ones_own_jobs_cannot_reach_over_to_others(world):
    before = world.everything()
    for what, (who, method, request) in reaching_over(world).items():
        async with raw_client(world.server.host, world.secrets[who]) as client:
            with pytest.raises(aio.AioRpcError) as refused:
                await client(method, request)
            assert refused.value.code() in DENIED, what
    assert world.everything() == before


async def test_a_foreign_workers_id_opens_no_stream(world):
    async with raw_client(world.server.host, world.secrets["my worker"]) as client:
        stream = client.stream(world.running[OTHERS].lease.worker_id)
        await stream.hello(queues=[MINE], topics=[MINE])
        with pytest.raises(aio.AioRpcError, match="may not use worker"):
            await stream.read()


async def test_a_lease_in_anothers_name_hides_only_itself(world):
    """Another caller claimed under the worker's id: the worker still sees its own jobs."""
    worker_id = uuid4()
    for tenant in (MINE, OTHERS):
        await submitted(world.store, topic=tenant, queue=f"shared-{tenant}")
        await claim_one(
            world.store, worker_id, queue=f"shared-{tenant}", topics=[TopicPolicy(topic=tenant)]
        )
    async with raw_client(world.server.host, world.secrets["my worker"]) as client:
        asked = pb.ListLeasesRequest(worker_id=str(worker_id))
        (lease,) = (await client("ListLeases", asked)).leases
    places = await world.store.places([UUID(lease.job_id)])
    assert [place.topic for place in places.values()] == [MINE]


@pytest.mark.parametrize("method", ALL)
async def test_a_refusal_says_nothing_of_what_is_not_ones_own(world, method):
    """The request names ids only where it can; the answer then names no topic and no queue."""
    if method in ABOUT_NO_JOB or method == "StreamJobs":
        pytest.skip("names topics itself, or is about no job")
    request = world.request(method, OTHERS)
    if OTHERS in str(request):
        pytest.skip("names it itself")
    async with raw_client(world.server.host, world.secrets["my admin"]) as client:
        try:
            answer = str(await client(method, request))
        except aio.AioRpcError as error:
            answer = error.details() or ""
    assert OTHERS not in answer


async def test_only_an_admin_sees_what_proves_a_lease(world):
    job_id, token = world.running[MINE].job_id, world.running[MINE].lease.token
    seen = {}
    for who in ("produce", "my producer", "my admin", "admin"):
        async with raw_client(world.server.host, world.secrets[who]) as client:
            one = await client("GetJob", pb.GetJobRequest(job_id=str(job_id)))
            (some,) = (await client("GetJobs", pb.GetJobsRequest(job_ids=[str(job_id)]))).jobs
            where = pb.JobFilter(topic=MINE, statuses=[pb.JOB_STATUS_RUNNING])
            listed = (await client("ListJobs", pb.ListJobsRequest(where=where, limit=50))).jobs
            (found,) = [job for job in listed if job.id == str(job_id)]
            seen[who] = {one.lease_token, some.lease_token, found.lease_token}
    assert seen == {"produce": {0}, "my producer": {0}, "my admin": {token}, "admin": {token}}


async def test_a_check_of_limits_reads_no_payloads(world, monkeypatch):
    """Not for a single method that is about jobs by their ids or leases."""

    async def read(*_: Any, **__: Any) -> Any:
        raise AssertionError("read a whole row")

    monkeypatch.setattr(world.server.store, "get", read)
    for method in ALL:
        allowed = any(role.value in ("work", "admin") for role in ROLES[method])
        if method != "StreamJobs" and allowed and method not in WHOLE_DATABASE | ABOUT_NO_JOB:
            async with raw_client(world.server.host, world.secrets["my admin"]) as client:
                with contextlib.suppress(aio.AioRpcError):
                    await client(method, world.request(method, OTHERS))


@pytest.mark.parametrize(
    "worker",
    [
        {"host": "a\x1b[2Jb"}, {"state": "x\ny"}, {"version": "1\r2"}, {"host": "h" * 1_000},
        {"topics": ["a\tb"]}, {"queues": [f"q{n}" for n in range(500)]},
    ],
    ids=str,
)  # fmt: skip
async def test_a_worker_presents_itself_in_a_line(world, worker):
    async with raw_client(world.server.host, world.secrets["work"]) as client:
        with pytest.raises(aio.AioRpcError) as refused:
            await client("RegisterWorker", pb.Worker(**{"id": str(uuid4()), "host": "h"} | worker))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_limited_sync_neither_names_nor_pauses_what_others_declared(tmp_path):
    world = World(tmp_path / "jobs.db")
    await world.fill()
    for tenant in (MINE, OTHERS):
        spec = a_spec(topic=tenant, queue=tenant)
        await world.store.schedules.put("default", f"{tenant} too", spec, declared=True)
    try:
        async with raw_client(world.server.host, world.secrets["my admin"]) as client:
            asked = pb.SyncSchedulesRequest(pause_removed=True)
            assert (await client("SyncSchedules", asked)).removed == [f"{MINE} too"]
        states = {row.name: row.state.value for row in await world.store.schedules.list_page()}
        assert {states[f"{MINE} too"], states[f"{OTHERS} too"]} == {"PAUSED", "ACTIVE"}
    finally:
        world.server.stop()
        await world.store.aclose()


async def test_a_worker_cancels_children_and_nothing_else(world):
    parent = world.running[MINE].job_id
    child = await submitted(world.store, topic=MINE, queue=MINE, parent_id=parent)
    before = world.everything()
    async with raw_client(world.server.host, world.secrets["my worker"]) as client:
        both = [str(child), str(world.waiting[MINE])]
        with pytest.raises(aio.AioRpcError, match="children of workflows, and no other"):
            await client("CancelJobs", pb.JobIds(job_ids=both))
        assert world.everything() == before
        (act,) = (await client("CancelJobs", pb.JobIds(job_ids=[str(child)]))).acts
        assert (UUID(act.job_id), act.done) == (child, True)


async def test_a_cancel_is_recorded_unless_it_is_a_workflows_of_its_children(world):
    """Also of a job whose id is computed as a child's is: that of a schedule's occurrence."""
    parent = world.running[MINE].job_id
    child = await submitted(world.store, topic=MINE, queue=MINE, parent_id=parent)
    fired = await submitted(world.store, topic=MINE, queue=MINE, id=computed_id(1, bytes(10)))
    async with raw_client(world.server.host, world.secrets["my admin"]) as client:
        for job_id in (child, fired):
            await client("CancelJobs", pb.JobIds(job_ids=[str(job_id)]))
    (entry,) = [each for each in await world.store.audit_log() if each.act == "cancel jobs"]
    assert entry.detail == str(fired)


async def test_a_revoked_token_is_refused(world):
    secret = given(world.store, "short-lived", "admin")
    async with raw_client(world.server.host, secret) as client:
        await client("GetTime", pb.GetTimeRequest())
        assert run_blocking(tokens.remove(world.store, "short-lived"))
        with pytest.raises(aio.AioRpcError, match="not known, or was revoked"):
            await client("GetTime", pb.GetTimeRequest())


def test_only_a_digest_is_kept(world):
    stored = {token.name: token for token in run_blocking(tokens.read(world.store))}
    secret = world.secrets["work"]
    assert secret is not None
    assert stored["work"].is_proven_by(secret)
    assert not stored["work"].is_proven_by(secret + "x")
    assert secret.encode() not in world.path.read_bytes()


async def test_the_upkeep_of_a_worker_asks_for_nothing_that_it_may_not_have(world):
    """A worker's token has the role work; what is about the whole database is the server's."""
    served = SqliteStore(world.path)
    worker = WorkerInfo(id=uuid4(), host="here", pid=1, queues=(MINE,), topics=(MINE,), slots=1)
    with ServerThread(
        lambda: served, authenticator=FreshAuthenticator(served), upkeep=True
    ) as server:
        remote = RemoteStore(f"pulse://me:{world.secrets['my worker']}@{server.host}")
        assert await Watchdog(remote, tick=1.0, describe=lambda: worker).tick() == []
        await remote.aclose()


async def test_a_worker_that_may_not_do_the_servers_upkeep_says_so_once(world, caplog):
    """The server was started with --no-upkeep, and the worker's token has the role work."""
    worker = WorkerInfo(id=uuid4(), host="here", pid=1, queues=(MINE,), topics=(MINE,), slots=1)
    remote = RemoteStore(f"pulse://me:{world.secrets['work']}@{world.server.host}")
    upkeep = Watchdog(remote, tick=1.0, describe=lambda: worker)
    before = await refused_calls(world)
    for _ in range(3):
        assert await upkeep.tick() == []
        assert await remote.take_turn(length=1.0) is False
        assert (await remote.schedules.due(10)).rows == []
    assert await refused_calls(world) == before + 1
    (line,) = [record for record in caplog.records if record.name == "pulsed.upkeep"]
    assert "--no-upkeep" in line.getMessage()
    assert "Recovering jobs needs the role admin" in line.getMessage()
    await remote.retire(worker.id)
    await remote.aclose()


async def refused_calls(world: World) -> int:
    store = RemoteStore(f"pulse://me:{world.secrets['admin']}@{world.server.host}")
    answer = await store.connection.call("GetServer", pb.GetServerRequest())
    await store.aclose()
    return int(answer.refused_calls)


async def test_a_remote_store_says_why_it_was_refused(world):
    url = f"pulse://me:{world.secrets['work']}@{world.server.host}"
    store = RemoteStore(url, RemoteOptions(**AT_ONCE_OPTIONS))
    with pytest.raises(AccessDenied, match="Enqueueing needs the role admin or produce"):
        await store.submit([a_job()])
    await store.aclose()


async def test_settling_through_the_database_still_works(world):
    """What was refused above was not refused because it was broken."""
    assert await settle(world.store, world.running[OTHERS], Succeeded())


@pytest.mark.parametrize(
    "who, key, allowed",
    [
        ("my producer", None, True),
        ("my producer", MINE, True),
        ("my producer", f"{MINE},ada", True),
        ("my producer", OTHERS, False),
        ("my producer", f"{OTHERS},ada", False),
        ("my producer", "shared", False),
        ("my queue", OTHERS, True),
        ("produce", OTHERS, True),
    ],
)
async def test_a_job_counts_only_for_limits_of_its_callers_topics(world, who, key, allowed):
    before = world.everything()
    job = a_job(topic=MINE, queue=MINE, limit_key=key)
    request = pb.SubmitJobsRequest(jobs=[convert.new_job_message(job)])
    async with raw_client(world.server.host, world.secrets[who]) as client:
        if allowed:
            await client("SubmitJobs", request)
            return
        with pytest.raises(aio.AioRpcError) as refused:
            await client("SubmitJobs", request)
    assert refused.value.code() in DENIED
    assert "may not use the limit" in str(refused.value.details())
    assert world.everything() == before
