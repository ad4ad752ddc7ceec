"""Who may do what: every method with every kind of caller, and nothing changed by a refusal."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest
from grpc import aio

from pulsed.engine.upkeep.watchdog import Watchdog
from pulsed.errors import AccessDenied, TransientStorageError
from pulsed.model.ids import computed_id
from pulsed.model.job import TopicPolicy, WorkerInfo
from pulsed.model.outcome import Report, Succeeded
from pulsed.rpc.client.connection import RemoteOptions
from pulsed.rpc.client.store import RemoteStore
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import columnar, values
from pulsed.rpc.messages import jobs as convert
from pulsed.rpc.messages import reports as convert_reports
from pulsed.rpc.messages import schedules as convert_schedules
from pulsed.rpc.messages.contract import METHODS
from pulsed.rpc.server.access import ADMIN, PRODUCE, ROLES, WHOLE_DATABASE, WORK, TokenRole
from pulsed.store import tokens
from pulsed.store.blocking import run_blocking
from pulsed.store.sqlite.store import SqliteStore
from pulsed.store.tokens import Token
from tests.support.backends import AT_ONCE_OPTIONS
from tests.support.certificates import Authority
from tests.support.commands import lines_of, run
from tests.support.jobs import a_job, claim_one, settle, submitted
from tests.support.raw_streams import raw_client
from tests.support.schedules import a_spec
from tests.support.servers import FreshAuthenticator, ServerThread

DENIED = {grpc.StatusCode.PERMISSION_DENIED}
ABOUT_NO_JOB = {"GetTime", "GetServer"}
STEP = pb.Checkpoint(name="s", nth=1, seq=1, kind=pb.STEP_KIND_SIGNAL, state=pb.STEP_STATE_DONE)
MINE, OTHERS = "mine", "others"
LONG_AGO = values.stamp(datetime.now(UTC) - timedelta(days=1))


def given(store: SqliteStore, name: str, *roles: str, topics=None, queues=None) -> str:
    """Make a token; returns its secret."""
    secret = tokens.new_secret()
    made = Token(name, tokens.digest_of(secret), roles, topics, queues)
    assert run_blocking(tokens.add(store, made))
    return secret


class World:
    """A server with tokens, a job and a schedule of each of two tenants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        store = self.store = SqliteStore(path)
        self.secrets: dict[str, str | None] = {
            "nobody": None,
            "stranger": tokens.new_secret(),
            "read": given(store, "read", "read"),
            "operate": given(store, "operate", "operate"),
            "produce": given(store, "produce", "produce"),
            "work": given(store, "work", "work"),
            "admin": given(store, "admin", "admin"),
            "my producer": given(store, "my producer", "produce", topics=(MINE,)),
            "my worker": given(store, "my worker", "work", topics=(MINE,)),
            "my admin": given(store, "my admin", "admin", topics=(MINE,)),
            "my queue": given(store, "my queue", "admin", queues=(MINE,)),
        }
        served = SqliteStore(path)
        self.server = ServerThread(lambda: served, authenticator=FreshAuthenticator(served))

    async def fill(self) -> None:
        """Let both tenants have a waiting job, a running one and a schedule."""
        self.waiting, self.running, self.schedules = {}, {}, {}
        for tenant in (MINE, OTHERS):
            options: Any = {"topic": tenant, "queue": tenant}
            await submitted(self.store, **options)
            self.running[tenant] = await claim_one(
                self.store, uuid4(), queue=tenant, topics=[TopicPolicy(topic=tenant)]
            )
            self.waiting[tenant] = await submitted(self.store, **options)
            spec = a_spec(**options)
            put = await self.store.schedules.put("default", tenant, spec)
            self.schedules[tenant] = put.row
            await self.store.announce(
                WorkerInfo(
                    id=self.running[tenant].lease.worker_id,
                    host="here",
                    pid=1,
                    queues=(tenant,),
                    topics=(tenant,),
                    slots=1,
                )
            )

    def request(self, method: str, tenant: str) -> Any:
        """Return a request that would work, and would change something, about one tenant."""
        waiting, run, row = self.waiting[tenant], self.running[tenant], self.schedules[tenant]
        lease = convert.lease_message(run.lease)
        ids = pb.JobIds(job_ids=[str(waiting)])
        where = pb.JobFilter(topic=tenant, queue=tenant)
        name = pb.ScheduleName(name=tenant)
        spec = convert_schedules.spec_message(a_spec(topic=tenant, queue=tenant, cron="0 9 * * *"))
        worker = pb.Worker(id=str(uuid4()), host="h", queues=[tenant], topics=[tenant])
        new = convert.new_job_message(a_job(topic=tenant, queue=tenant))
        report = convert_reports.report_message(_report(run))
        requests: dict[str, Any] = {
            "SubmitJobs": pb.SubmitJobsRequest(jobs=[new]),
            "GetJob": pb.GetJobRequest(job_id=str(waiting)),
            "GetJobs": pb.GetJobsRequest(job_ids=[str(waiting)]),
            "ListJobs": pb.ListJobsRequest(where=where, limit=5),
            "CountJobs": pb.CountJobsRequest(where=where),
            "ListFailures": pb.ListFailuresRequest(job_id=str(waiting)),
            "CancelJobs": ids,
            "ReplayJobs": ids,
            "EditJob": pb.EditJobRequest(job_id=str(waiting), payload="{}"),
            "DeleteJobs": ids,
            "ExpediteJobs": ids,
            "ListWorkers": pb.ListWorkersRequest(),
            "GetBacklog": pb.GetBacklogRequest(),
            "GetRunning": pb.GetRunningRequest(),
            "Audit": pb.AuditRequest(),
            "ListAuditLog": pb.ListAuditLogRequest(limit=5),
            "GetTime": pb.GetTimeRequest(),
            "GetServer": pb.GetServerRequest(),
            "CheckDatabase": pb.CheckDatabaseRequest(),
            "ReportResult": report,
            "ReportResults": pb.ReportResultsRequest(reports=[report]),
            "Heartbeat": pb.HeartbeatRequest(leases=[lease]),
            "Release": pb.ReleaseRequest(leases=[lease]),
            "ListLeases": pb.ListLeasesRequest(worker_id=lease.worker_id),
            "Progress": pb.ProgressRequest(lease=lease, progress="1"),
            "RegisterWorker": worker,
            "RetireWorker": pb.RetireWorkerRequest(worker_id=lease.worker_id),
            "Checkpoint": _checkpoints(run),
            "GetHistory": pb.GetHistoryRequest(job_id=str(waiting)),
            "FanOut": _fan_out(run, tenant),
            "GetOutcomes": pb.GetOutcomesRequest(job_ids=[str(waiting)]),
            "Watch": pb.WatchRequest(lease=lease, job_id=str(waiting)),
            "Signal": pb.SignalRequest(id=str(uuid4()), job_id=str(waiting), name="s", payload="1"),
            "TakeSignal": pb.TakeSignalRequest(lease=lease, name="s", checkpoint=STEP),
            "PutSchedule": pb.PutScheduleRequest(name=tenant, spec=spec),
            "EditSchedule": pb.PutScheduleRequest(name=tenant, spec=spec),
            "SyncSchedules": pb.SyncSchedulesRequest(
                schedules=[pb.SyncSchedulesRequest.Declared(name=tenant, spec=spec)]
            ),
            "GetSchedule": name,
            "ListSchedules": pb.ListSchedulesRequest(),
            "PauseSchedule": name,
            "ResumeSchedule": name,
            "DeleteSchedule": name,
            "RunScheduleNow": pb.RunScheduleNowRequest(name=tenant, job_id=str(uuid4())),
            "ListScheduleJobs": pb.ListScheduleJobsRequest(schedule_id=str(row.id), limit=5),
            "ListScheduleFires": pb.ListScheduleJobsRequest(schedule_id=str(row.id), limit=5),
            "Watchdog": pb.WatchdogRequest(limit=5),
            "ListDueSchedules": pb.ListDueSchedulesRequest(limit=5),
            "FireSchedules": pb.FireSchedulesRequest(),
            "TakeTurn": pb.TakeTurnRequest(length_seconds=1),
            "PruneJobs": pb.PruneJobsRequest(limit=5),
            "PruneSchedules": pb.PruneSchedulesRequest(limit=5),
            "CountPrunable": pb.PruneJobsRequest(),
            "Cascade": pb.CascadeRequest(limit=5),
            "RecordStats": _stats(tenant),
            "GetSeries": pb.GetSeriesRequest(since=LONG_AGO, topic=tenant, queue=tenant),
            "GetTotals": pb.GetTotalsRequest(since=LONG_AGO, topic=tenant, queue=tenant),
            "ListErrors": pb.ListErrorsRequest(since=LONG_AGO, limit=5, topic=tenant, queue=tenant),
            "FoldStats": pb.FoldStatsRequest(limit=5),
            "SetScheduleError": pb.SetScheduleErrorRequest(
                schedule=convert_schedules.schedule_message(row), reason="so"
            ),
        }
        return requests[method]

    async def code(self, who: str, method: str, tenant: str) -> grpc.StatusCode:
        """Call a method about a tenant; returns how it ended."""
        async with raw_client(self.server.host, self.secrets[who]) as client:
            try:
                if method == "StreamJobs":
                    stream = client.stream()
                    await stream.call.initial_metadata()
                    await stream.hello(queues=[tenant], topics=[tenant])
                    if tenant == MINE:  # a refusal is lost in what is written after it
                        await stream.grant(1, 1)
                    await stream.read()
                else:
                    await client(method, self.request(method, tenant))
            except asyncio.InvalidStateError:
                return await stream.call.code()
            except aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    def everything(self) -> list[tuple[Any, ...]]:
        """Return all rows of all tables but the tokens."""
        import sqlite3  # noqa: PLC0415

        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            names = ["jobs", "failures", "schedules", "workers", "checkpoints", "signals", "audit"]
            names += ["rollups", "error_rollups"]
            return [
                row
                for name in names
                for row in connection.execute(f"SELECT * FROM pulse_{name} ORDER BY 1")
            ]


def _stats(tenant: str) -> Any:
    now = values.stamp(datetime.now(UTC))
    return pb.RecordStatsRequest(
        recorder=str(uuid4()),
        rollups=[pb.Rollup(at=now, queue=tenant, topic=tenant, started=1)],
        errors=[pb.ErrorRollup(at=now, queue=tenant, topic=tenant, count=1, last_at=now)],
    )


def _report(run: Any) -> Any:
    return Report.of(run, Succeeded("1"))


def _checkpoints(*runs: Any) -> Any:
    return pb.CheckpointRequest(
        records=[
            pb.CheckpointRequest.Record(lease=convert.lease_message(run.lease), checkpoint=STEP)
            for run in runs
        ]
    )


def _fan_out(run: Any, *topics: str) -> Any:
    children = [a_job(topic=topic, queue=topic, parent_id=run.job_id) for topic in topics]
    jobs = [convert.new_job_message(child) for child in children]
    for job in jobs:
        job.parent_step = "all|1"
    return pb.FanOutRequest(lease=convert.lease_message(run.lease), jobs=jobs)


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
    if method in ABOUT_NO_JOB or method == "ListSchedules":
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
    looks = ("Get", "List", "Count", "Audit", "CheckDatabase")
    assert {each for each in ALL if TokenRole.READ in ROLES[each]} < {
        each for each in ALL if each.startswith(looks)
    }


async def test_one_item_that_is_not_his_refuses_the_whole_batch(world):
    before = world.everything()
    mine, others = world.running[MINE], world.running[OTHERS]
    reports = [convert_reports.report_message(_report(run)) for run in (mine, others)]
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
        ("my worker", "Checkpoint", _checkpoints(mine, others)),
        ("my worker", "FanOut", _fan_out(mine, MINE, OTHERS)),
        ("my worker", "FanOut", _fan_out(others, MINE)),
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
    request = _fan_out(world.running[MINE], MINE)
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
    fan_out = _fan_out(mine, MINE)
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


class TestCommands:
    def test_a_token_is_made_shown_and_revoked(self, live, backend):
        if isinstance(live, RemoteStore):
            pytest.skip("tokens are kept in the database")
        url = backend.app_url
        made = run("token", "new", "shop", "--role", "work", "--queue", "mail", PULSED_URL=url)
        assert made.exit_code == 0, made.output
        secret = made.stdout.strip()
        assert secret.startswith("pulsed_")
        assert len(secret) > 40
        (listed,) = lines_of(run("token", "list", "--json", PULSED_URL=url))
        assert (listed["name"], listed["roles"], listed["queues"]) == ("shop", ["work"], ["mail"])
        assert listed["topics"] is None
        assert secret not in str(listed)
        (kept,) = run_blocking(tokens.read(live))
        assert kept.is_proven_by(secret)
        again = run("token", "new", "shop", "--role", "work", PULSED_URL=url)
        assert (again.exit_code, "already" in again.stderr) == (1, True)
        assert run("token", "revoke", "shop", PULSED_URL=url).exit_code == 0
        assert run("token", "revoke", "shop", PULSED_URL=url).exit_code == 3
        assert run_blocking(tokens.read(live)) == []

    def test_a_server_keeps_no_tokens_for_its_clients(self):
        refused = run("token", "list", "--url", "pulse://127.0.0.1:1")
        assert (refused.exit_code, "database" in refused.stderr) == (2, True)


class TestTLS:
    @pytest.fixture
    def authority(self, tmp_path):
        return Authority(tmp_path)

    def serving(self, path: Path, authority: Authority, *, client_ca: bool) -> ServerThread:
        cert, key = authority.sign("server")
        credentials = grpc.ssl_server_credentials(
            [(key.read_bytes(), cert.read_bytes())],
            root_certificates=authority.ca.read_bytes() if client_ca else None,
            require_client_auth=client_ca,
        )
        store = SqliteStore(path)
        return ServerThread(
            lambda: store, authenticator=FreshAuthenticator(store), credentials=credentials
        )

    async def test_a_token_over_tls(self, tmp_path, authority):
        path = tmp_path / "jobs.db"
        secret = given(SqliteStore(path), "me", "admin")
        with self.serving(path, authority, client_ca=False) as server:
            options = RemoteOptions(**AT_ONCE_OPTIONS)
            place = f"me:{secret}@{server.host}"
            store = RemoteStore(f"pulses://{place}?ca={authority.ca}", options)
            assert (await store.submit([a_job()])).new == 1
            strangers = RemoteStore(f"pulses://{place}", options)  # the system's authorities
            with pytest.raises(TransientStorageError):
                await strangers.now()
            await store.aclose()
            await strangers.aclose()

    async def test_a_client_certificate_is_somebody(self, tmp_path, authority):
        path = tmp_path / "jobs.db"
        known = Token("ops", None, ("admin",), None, None)
        assert run_blocking(tokens.add(SqliteStore(path), known))
        with self.serving(path, authority, client_ca=True) as server:
            options = RemoteOptions(**AT_ONCE_OPTIONS)

            def client(name: str) -> RemoteStore:
                cert, key = authority.sign(name)
                files = f"ca={authority.ca}&cert={cert}&key={key}"
                return RemoteStore(f"pulses://{server.host}?{files}", options)

            ops, stranger = client("ops"), client("stranger")
            assert (await ops.submit([a_job()])).new == 1
            with pytest.raises(AccessDenied, match="certificate's name is not known"):
                await stranger.submit([a_job()])
            nobody = RemoteStore(f"pulses://{server.host}?ca={authority.ca}", options)
            with pytest.raises(TransientStorageError):
                await nobody.now()
            for store in (ops, stranger, nobody):
                await store.aclose()


async def test_settling_through_the_database_still_works(world):
    """What was refused above was not refused because it was broken."""
    assert await settle(world.store, world.running[OTHERS], Succeeded())
