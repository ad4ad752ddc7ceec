"""Two tenants of one server, and requests of each to every method."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
from grpc import aio

from pulsed.model.audit import Operator
from pulsed.model.bulk import RETRY
from pulsed.model.job import JobFilter, Status, TopicPolicy, WorkerInfo
from pulsed.model.outcome import Report, Succeeded
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as convert
from pulsed.rpc.messages import reports as convert_reports
from pulsed.rpc.messages import schedules as convert_schedules
from pulsed.rpc.messages import values
from pulsed.store import tokens
from pulsed.store.sqlite.store import SqliteStore
from tests.support.jobs import a_job, claim_one, submitted
from tests.support.raw_streams import raw_client
from tests.support.schedules import a_spec
from tests.support.servers import FreshAuthenticator, ServerThread
from tests.support.tokens import given

MINE, OTHERS = "mine", "others"
STEP = pb.Checkpoint(name="s", nth=1, seq=1, kind=pb.STEP_KIND_SIGNAL, state=pb.STEP_STATE_DONE)


LONG_AGO = values.stamp(datetime.now(UTC) - timedelta(days=1))


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
        self.waiting, self.running, self.schedules, self.bulk = {}, {}, {}, {}
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
            where = JobFilter(topic=tenant, queue=tenant, status=(Status.DEAD_LETTERED,))
            self.bulk[tenant] = await self.store.bulk.start(
                uuid4(), RETRY, where, by=Operator("ops")
            )
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
        waiting_jobs = pb.JobFilter(topic=tenant, queue=tenant, statuses=[pb.JOB_STATUS_PENDING])
        bulk = pb.BulkId(id=str(self.bulk[tenant].id))
        name = pb.ScheduleName(name=tenant)
        spec = convert_schedules.spec_message(a_spec(topic=tenant, queue=tenant, cron="0 9 * * *"))
        worker = pb.Worker(id=str(uuid4()), host="h", queues=[tenant], topics=[tenant])
        new = convert.new_job_message(a_job(topic=tenant, queue=tenant))
        report = convert_reports.report_message(report_of(run))
        requests: dict[str, Any] = {
            "SubmitJobs": pb.SubmitJobsRequest(jobs=[new]),
            "GetJob": pb.GetJobRequest(job_id=str(waiting)),
            "GetJobs": pb.GetJobsRequest(job_ids=[str(waiting)]),
            "ListJobs": pb.ListJobsRequest(where=where, limit=5),
            "CountJobs": pb.CountJobsRequest(where=where),
            "CountJobsBy": pb.CountJobsByRequest(where=where, by=["topic"]),
            "ListFailures": pb.ListFailuresRequest(job_id=str(waiting)),
            "CancelJobs": ids,
            "ReplayJobs": ids,
            "EditJob": pb.EditJobRequest(job_id=str(waiting), payload="{}"),
            "DeleteJobs": ids,
            "ExpediteJobs": ids,
            "ListWorkers": pb.ListWorkersRequest(),
            "AskWorkers": pb.AskWorkersRequest(worker_ids=[str(uuid4())], request="drain"),
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
            "Checkpoint": checkpoints(run),
            "GetHistory": pb.GetHistoryRequest(job_id=str(waiting)),
            "FanOut": fan_out_request(run, tenant),
            "GetOutcomes": pb.GetOutcomesRequest(job_ids=[str(waiting)]),
            "Watch": pb.WatchRequest(lease=lease, job_id=str(waiting)),
            "Signal": pb.SignalRequest(id=str(uuid4()), job_id=str(waiting), name="s", payload="1"),
            "TakeSignal": pb.TakeSignalRequest(lease=lease, name="s", checkpoint=STEP),
            "Emit": pb.EmitRequest(
                emissions=[pb.Emission(lease=lease, run=1, first=1, values=["1"])]
            ),
            "ReadStream": pb.ReadStreamRequest(job_id=str(waiting), limit=5),
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
            "ExpireJobs": pb.ExpireJobsRequest(limit=5),
            "StartBulk": pb.StartBulkRequest(
                id=str(uuid4()), act=pb.BulkAct(kind=pb.BULK_KIND_CANCEL), where=waiting_jobs
            ),
            "AdvanceBulk": pb.AdvanceBulkRequest(performer=str(uuid4()), id=bulk.id),
            "GetBulk": bulk,
            "ListBulk": pb.ListBulkRequest(limit=5),
            "ListBulkSkips": bulk,
            "StopBulk": bulk,
            "ChangeJobs": pb.ChangeJobsRequest(
                job_ids=[str(waiting)], act=pb.BulkAct(kind=pb.BULK_KIND_REPRIORITISE, priority=7)
            ),
            "RecordStats": _stats(tenant),
            "GetSeries": pb.GetSeriesRequest(since=LONG_AGO, topic=tenant, queue=tenant),
            "GetTotals": pb.GetTotalsRequest(since=LONG_AGO, topic=tenant, queue=tenant),
            "ListErrors": pb.ListErrorsRequest(since=LONG_AGO, limit=5, topic=tenant, queue=tenant),
            "FoldStats": pb.FoldStatsRequest(limit=5),
            "GetControl": _control(tenant),
            "ListControls": pb.ListControlsRequest(),
            "PauseControl": _control(tenant),
            "ResumeControl": _control(tenant),
            "OverrideControl": pb.OverrideControlRequest(
                scope=pb.CONTROL_SCOPE_LIMIT, name=tenant, numbers=pb.Numbers(running=1)
            ),
            "ClearControl": _control(tenant),
            "DeclareControls": pb.DeclareControlsRequest(
                scope=pb.CONTROL_SCOPE_TOPIC,
                declared=[
                    pb.DeclareControlsRequest.Declared(name=tenant, numbers=pb.Numbers(running=1))
                ],
            ),
            "GetRates": pb.GetRatesRequest(scope=pb.CONTROL_SCOPE_TOPIC, keys=[tenant]),
            "GetLimitUse": pb.GetLimitUseRequest(name=tenant, keys=5),
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
            names += ["rollups", "error_rollups", "controls"]
            names += ["bulk", "bulk_skips", "tags"]
            return [
                row
                for name in names
                for row in connection.execute(f"SELECT * FROM pulse_{name} ORDER BY 1")
            ]


def _control(tenant: str) -> Any:
    return pb.ControlName(scope=pb.CONTROL_SCOPE_TOPIC, name=tenant)


def _stats(tenant: str) -> Any:
    now = values.stamp(datetime.now(UTC))
    return pb.RecordStatsRequest(
        recorder=str(uuid4()),
        rollups=[pb.Rollup(at=now, queue=tenant, topic=tenant, started=1)],
        errors=[pb.ErrorRollup(at=now, queue=tenant, topic=tenant, count=1, last_at=now)],
    )


def report_of(run: Any) -> Any:
    return Report.of(run, Succeeded("1"))


def checkpoints(*runs: Any) -> Any:
    return pb.CheckpointRequest(
        records=[
            pb.CheckpointRequest.Record(lease=convert.lease_message(run.lease), checkpoint=STEP)
            for run in runs
        ]
    )


def fan_out_request(run: Any, *topics: str) -> Any:
    children = [a_job(topic=topic, queue=topic, parent_id=run.job_id) for topic in topics]
    jobs = [convert.new_job_message(child) for child in children]
    for job in jobs:
        job.parent_step = "all|1"
    return pb.FanOutRequest(lease=convert.lease_message(run.lease), jobs=jobs)
