"""The store of a process without a database: every verb is a call to a pulsed server.

A worker, a producer and the command line cannot tell it from an embedded store. A server that is
away is a database that is away: the same retries, the same loops that never give up. What cannot
cross the wire is refused with the reason: migrations, and the caller's own transaction.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn
from uuid import UUID

import grpc
from google.protobuf.message import Message

from pulsed.batches import TRANSACTION, Limits, batches
from pulsed.errors import (
    AccessDenied,
    ConfigError,
    InvalidPayload,
    ScheduleNotFound,
    StorageBusy,
    TransientStorageError,
)
from pulsed.model.audit import AuditEntry, Operator
from pulsed.model.job import (
    Assignment,
    Failure,
    JobFilter,
    JobRow,
    Lease,
    NewJob,
    Status,
    TopicPolicy,
    WorkerInfo,
)
from pulsed.model.outcome import Beat, Report, Succeeded
from pulsed.model.page import Counts, Page
from pulsed.model.schedule import ScheduleFilter, ScheduleKey, ScheduleRow, ScheduleSpec, Version
from pulsed.rpc.address import Address
from pulsed.rpc.client.channels import Channels, Endpoints, metadata_of
from pulsed.rpc.client.claim_stream import ClaimStream, claim_blocking, claim_once
from pulsed.rpc.client.workflows import RemoteWorkflows, parts
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import audit as to_audit
from pulsed.rpc.messages import columns, values
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages import schedules as to_schedule
from pulsed.rpc.messages.contract import (
    KEEPALIVE,
    LARGEST_ASSIGNMENT_BATCH,
    LARGEST_MESSAGE,
    METHODS,
    PART,
    REQUEST_ID_KEY,
    Method,
)
from pulsed.rpc.messages.errors import error_of
from pulsed.rpc.messages.reports import report_message
from pulsed.store.base import (
    EVERY_SCHEDULE,
    SCHEDULE_PAGE,
    Audit,
    Backlog,
    Due,
    Fire,
    Listener,
    Partly,
    Pruned,
    Put,
    Reaped,
    WatchdogTick,
)
from pulsed.store.blocking import is_blocking
from pulsed.store.fork import ForkAware, Gate, watch_forks
from pulsed.store.per_loop import PerLoop
from pulsed.store.retrying import RetryOptions, dequeue_retry_of, retry_of, retrying

log = logging.getLogger("pulsed.upkeep")

SPLIT = {"ReportResults", "Checkpoint", "CancelJobs", "ReplayJobs", "DeleteJobs"}
"""Calls that are not made again while rows are locked: what can be written is then written."""

STREAM_JOBS = METHODS["StreamJobs"]
LONGEST_CALL = 30.0
LONGEST_BEAT = 5.0
LONGEST_REPORT = 15.0
ASK_SERVER_AGAIN = 60.0
"""Seconds for which we believe what a server said about itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions(RetryOptions):
    """How patient to be with the server."""

    keepalive: float = KEEPALIVE


class RemoteStore(RemoteWorkflows, ForkAware):
    """Jobs at the other end of a network."""

    is_remote = True

    def __init__(self, address: Address | str, options: RemoteOptions | None = None) -> None:
        self.address = Address.parse(address) if isinstance(address, str) else address
        self.options = options or RemoteOptions()
        self._endpoints = Endpoints(self.address.hosts)
        self._metadata = metadata_of(self.address)
        self._blocking = self._channels(None)
        self._loops: PerLoop[LoopSide] = PerLoop()
        self._server: tuple[Any, float] | None = None
        self._may_do_upkeep = True
        self._said_so = False
        self._calls = Gate()
        watch_forks(self)

    def pause(self, give_up_at: float) -> None:
        """Let blocking calls end before a fork: in the child of a call gRPC hangs or aborts.

        An idle channel does no harm, while one that was just closed does.
        """
        self._calls.shut(give_up_at)

    def resume(self) -> None:
        self._calls.open()

    def forget_inherited(self) -> list[object]:
        """Connect anew in a forked child."""
        self._calls.reset()
        inherited: list[object] = [self._blocking, *self._loops.forget_all()]
        self._blocking = self._channels(None)
        self._endpoints = Endpoints(self.address.hosts)
        return inherited

    def _channels(self, loop: asyncio.AbstractEventLoop | None) -> Channels:
        return Channels(self.address, self.options.keepalive, loop)

    def _here(self) -> LoopSide:
        """Return what belongs to the running event loop."""
        return self._loops.here(self._new_side)

    def _new_side(self) -> LoopSide:
        return LoopSide(self._channels(asyncio.get_running_loop()))

    # -- calling --------------------------------------------------------------------------------

    async def _call(
        self,
        name: str,
        request: Any,
        *,
        seconds: float = LONGEST_CALL,
        within: float | None = None,
    ) -> Any:
        """Call a method, trying again and elsewhere while no server answers."""
        method = METHODS[name]
        metadata = (*self._metadata, (REQUEST_ID_KEY, uuid.uuid4().hex))

        async def attempt() -> Any:
            host = self._endpoints.current
            options = {"metadata": metadata, "timeout": seconds}
            try:
                if is_blocking():
                    with self._calls:
                        return self._blocking.call(host, method)(request, **options)
                return await self._here().channels.call(host, method)(request, **options)
            except grpc.RpcError as failure:
                raise self._failed(failure, method, host) from failure

        busy, policy = name not in SPLIT, retry_of(self.options)
        return await retrying(policy, attempt, what=method.action, within=within, busy=busy)

    def _failed(self, failure: grpc.RpcError, method: Method, host: str) -> Exception:
        error = error_of(failure, method.action, host)
        if isinstance(error, TransientStorageError) and not isinstance(error, StorageBusy):
            self._endpoints.leave(host)
        return error

    # -- producers ------------------------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob]) -> int:
        if not jobs:
            return 0
        request = pb.SubmitJobsRequest(jobs=map(to.new_job_message, jobs))
        if (size := request.ByteSize()) > LARGEST_MESSAGE:
            raise InvalidPayload(
                f"{len(jobs):,} jobs of {size:,} bytes are too much for one transaction over the "
                f"network: at most {LARGEST_MESSAGE:,} bytes. Enqueue them in several batches."
            )
        inserted: int = (await self._call("SubmitJobs", request)).inserted
        return inserted

    def joined(self, connection: Any) -> NoReturn:
        raise ConfigError(
            f"using(conn=...) cannot work through a pulsed server: your transaction is in this "
            f"process ({type(connection).__module__}), and the jobs are stored by the server. Give "
            "the app a database URL, or enqueue after your commit."
        )

    # -- workers --------------------------------------------------------------------------------

    async def claim(
        self, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> list[Assignment]:
        claimed: list[Assignment] = []
        while topics and limit > len(claimed):
            most = min(limit - len(claimed), LARGEST_ASSIGNMENT_BATCH)
            batch = await self._claim(worker_id, queue, topics, most)
            claimed += batch
            if len(batch) < most:
                break
        return claimed

    async def _claim(
        self, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> list[Assignment]:
        async def attempt() -> Any:
            with self._doubting() as host:
                if is_blocking() or not self._here().wakes:
                    return await self._claim_alone(host, worker_id, queue, topics, limit)
                return await self._stream_of(worker_id).claim(queue, topics, limit)

        what = STREAM_JOBS.action
        batch = await retrying(dequeue_retry_of(self.options), attempt, what=what)
        return self._assignments(batch, worker_id)

    async def await_jobs(
        self,
        worker_id: UUID,
        queues: Sequence[str],
        topics: Sequence[TopicPolicy],
        limit: int,
        *,
        seconds: float,
    ) -> list[Assignment]:
        try:
            with self._doubting():
                stream = self._stream_of(worker_id)
                batch = await stream.await_jobs(queues, topics, limit, seconds)
        except TransientStorageError:  # a claim will say what it is, if it lasts
            return []
        return self._assignments(batch, worker_id)

    def withdraw(self, worker_id: UUID) -> None:
        if (stream := self._here().streams.get(worker_id)) is not None:
            stream.withdraw()

    @contextmanager
    def _doubting(self) -> Iterator[str]:
        """Take a claim without an answer for one that may have been committed; gives the host."""
        host = self._endpoints.current
        try:
            yield host
        except grpc.RpcError as failure:
            self.doubtful_claims += 1
            raise self._failed(failure, STREAM_JOBS, host) from failure
        except BaseException as error:
            self.doubtful_claims += 1
            if isinstance(error, TransientStorageError):
                self._endpoints.leave(host)
            raise

    def _assignments(self, batch: Any, worker_id: UUID) -> list[Assignment]:
        self.doubtful_claims += batch.lost_answers
        return columns.assignments_of(batch, worker_id)

    async def _claim_alone(
        self, host: str, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> Any:
        asked = (self._metadata, worker_id, queue, topics, limit, LONGEST_REPORT)
        if is_blocking():
            with self._calls:
                return claim_blocking(self._blocking.call(host, STREAM_JOBS), *asked)
        return await claim_once(self._here().channels.call(host, STREAM_JOBS), *asked)

    def _stream_of(self, worker_id: UUID) -> ClaimStream:
        side = self._here()
        if worker_id not in side.streams:

            def connect() -> tuple[str, Any]:
                host = self._endpoints.current
                call = side.channels.call(host, STREAM_JOBS)
                return host, call(metadata=self._metadata)

            side.streams[worker_id] = ClaimStream(
                worker_id, connect, self._endpoints.leave, side.wake, seconds=LONGEST_REPORT
            )
        return side.streams[worker_id]

    async def beat(
        self, leases: Sequence[Lease], *, within: float | None = None
    ) -> dict[Lease, Beat]:
        seconds = LONGEST_BEAT if within is None else min(LONGEST_BEAT, within / 3)
        answers: list[Beat] = []
        for part in parts(map(to.lease_message, leases)):
            request = pb.HeartbeatRequest(leases=part)
            answer = await self._call("Heartbeat", request, seconds=seconds, within=within)
            answers += map(to.BEATS.__getitem__, answer.answers)
        return dict(zip(leases, answers, strict=True))

    async def settle(self, reports: Sequence[Report], *, within: float | None = None) -> set[Lease]:
        accepted: set[Lease] = set()
        for part in batches(reports, lambda report: report.size, PART):
            accepted |= (await self._report(part, within=within)).accepted
        return accepted

    async def settle_free(self, reports: Sequence[Report]) -> Partly:
        settled = Partly(set(), set())
        for part in batches(reports, lambda report: report.size, PART):
            accepted, locked = await self._report(part, skip_locked=True)
            settled = Partly(settled.accepted | accepted, settled.locked | locked)
        return settled

    async def _report(
        self, reports: Sequence[Report], *, within: float | None = None, skip_locked: bool = False
    ) -> Partly:
        worker_id = reports[0].lease.worker_id
        alike = [each for each in reports if _succeeded_at(worker_id, each)]
        others = [each for each in reports if not _succeeded_at(worker_id, each)]
        request = pb.ReportResultsRequest(
            reports=map(report_message, others),
            succeeded=columns.succeeded_message(alike, worker_id) if alike else None,
            skip_locked=skip_locked,
        )
        answer = await self._call("ReportResults", request, seconds=LONGEST_REPORT, within=within)
        sent = [*others, *alike]
        pairs = zip(sent, answer.accepted, strict=True)
        accepted = {report.lease for report, accepted in pairs if accepted}
        return Partly(accepted, {sent[place].lease for place in answer.locked})

    async def held(self, worker_id: UUID, *, asked_to_stop: bool = False) -> list[Lease]:
        request = pb.ListLeasesRequest(worker_id=str(worker_id), asked_to_stop=asked_to_stop)
        answer = await self._call("ListLeases", request)
        if asked_to_stop and not answer.asked_to_stop:
            return []  # an older server lists all leases; its heartbeats tell which have to stop
        return [to.lease_of(message) for message in answer.leases]

    async def set_progress(self, lease: Lease, progress: str) -> bool:
        request = pb.ProgressRequest(lease=to.lease_message(lease), progress=progress)
        return bool((await self._call("Progress", request)).accepted)

    async def announce(self, worker: WorkerInfo) -> None:
        await self._call("RegisterWorker", to.worker_message(worker))

    async def retire(self, worker_id: UUID) -> None:
        if not is_blocking() and (stream := self._here().streams.pop(worker_id, None)) is not None:
            await stream.close()
        await self._call("RetireWorker", pb.RetireWorkerRequest(worker_id=str(worker_id)))

    # -- upkeep ---------------------------------------------------------------------------------

    async def watchdog(self, *, limit: int = 500) -> WatchdogTick:
        answer = await self._upkeep("Watchdog", pb.WatchdogRequest(limit=limit))
        if answer is None:
            return WatchdogTick([], in_grace=False)
        reaped = [
            Reaped(UUID(job.job_id), job.topic, to.STATUSES[job.status], UUID(job.worker_id))
            for job in answer.reaped
        ]
        return WatchdogTick(reaped, in_grace=answer.in_grace)

    async def take_turn(self, *, length: float) -> bool:
        answer = await self._upkeep("TakeTurn", pb.TakeTurnRequest(length_seconds=length))
        return answer is not None and bool(answer.taken)

    async def prune(
        self,
        ages: Mapping[Status, float],
        *,
        limit: int,
        since: Mapping[Status, datetime] | None = None,
        by: Operator | None = None,
    ) -> Pruned:
        request = pb.PruneJobsRequest(
            ages=_ages(ages, since or {}), limit=limit, operator=to_audit.operator_message(by)
        )
        answer = await self._call("PruneJobs", request)
        return Pruned(
            {to.STATUSES[each.status]: each.jobs for each in answer.removed},
            {
                to.STATUSES[each.status]: values.instant(each.reached)
                for each in answer.removed
                if each.HasField("reached")
            },
        )

    async def prunable(self, ages: Mapping[Status, float]) -> Counts:
        answer = await self._call("CountPrunable", pb.PruneJobsRequest(ages=_ages(ages, {})))
        return _counts_of(answer)

    async def _upkeep(self, name: str, request: Any) -> Any | None:
        now = time.monotonic()
        if self._server is None or now - self._server[1] > ASK_SERVER_AGAIN:
            self._server = (await self._call("GetServer", pb.GetServerRequest()), now)
            self._may_do_upkeep = True  # the token may have been given more rights since
        if self._server[0].does_upkeep or not self._may_do_upkeep:
            return None
        try:
            return await self._call(name, request)
        except AccessDenied as error:
            self._may_do_upkeep = False
            if not self._said_so:
                log.warning(
                    "the server does no upkeep (--no-upkeep) and this worker may not do it: %s "
                    "Start a server without --no-upkeep, or a worker with the role admin or with "
                    "a database URL; until then expired leases may be recovered by nobody",
                    error,
                )
            self._said_so = True
            return None

    # -- operators ------------------------------------------------------------------------------

    async def get(self, ids: Sequence[UUID]) -> dict[UUID, JobRow]:
        rows: dict[UUID, JobRow] = {}
        wanted = [str(job_id) for job_id in ids]
        while wanted:
            answer = await self._call("GetJobs", pb.GetJobsRequest(job_ids=wanted))
            rows |= {row.id: row for row in map(to.job_of, answer.jobs)}
            wanted = list(answer.left_off)
        return rows

    async def list_jobs(
        self, where: JobFilter, *, limit: int = 100, before: UUID | None = None
    ) -> Page[JobRow]:
        rows: list[JobRow] = []
        message = to.filter_message(where)
        while True:
            last = rows[-1].id if rows else before
            request = pb.ListJobsRequest(
                where=message, limit=limit - len(rows), before=values.maybe_text(last)
            )
            answer = await self._call("ListJobs", request)
            rows += map(to.job_of, answer.jobs)
            if len(rows) == limit:
                return Page(rows, next=rows[-1].id)
            if not answer.cut:
                following = values.maybe_uuid(answer.searched_to)
                return Page(rows, next=following, is_cut=following is not None)

    async def counts(self, where: JobFilter) -> Counts:
        request = pb.CountJobsRequest(where=to.filter_message(where))
        answer = await self._call("CountJobs", request)
        return _counts_of(answer)

    async def failures(
        self, job_id: UUID, *, after: int = 0, limit: int | None = None
    ) -> list[Failure]:
        failures: list[Failure] = []
        while True:
            last = failures[-1].lease_token if failures else after
            left = None if limit is None else limit - len(failures)
            request = pb.ListFailuresRequest(job_id=str(job_id), after=last, limit=left)
            answer = await self._call("ListFailures", request)
            failures += map(to.failure_of, answer.failures)
            if not answer.cut:
                return failures

    async def cancel(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, Status]:
        acts = await self._act("CancelJobs", ids, by)
        return {job_id: status for job_id, (_, status) in acts.items()}

    async def replay(
        self, ids: Sequence[UUID], *, fresh: bool = False, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        return await self._act("ReplayJobs", ids, by, fresh=fresh)

    async def delete(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        return await self._act("DeleteJobs", ids, by)

    async def _act(
        self, method: str, ids: Sequence[UUID], by: Operator | None, *, fresh: bool = False
    ) -> dict[UUID, tuple[bool, Status]]:
        if not ids:
            return {}
        request = pb.JobIds(
            job_ids=map(str, ids), fresh=fresh, operator=to_audit.operator_message(by)
        )
        answer = await self._call(method, request)
        return {UUID(act.job_id): (act.done, to.STATUSES[act.status]) for act in answer.acts}

    async def audit_log(
        self,
        *,
        limit: int = 100,
        since: datetime | None = None,
        until: datetime | None = None,
        actor: str | None = None,
    ) -> list[AuditEntry]:
        request = pb.ListAuditLogRequest(
            limit=limit,
            since=values.maybe_stamp(since),
            until=values.maybe_stamp(until),
            actor=actor,
        )
        answer = await self._call("ListAuditLog", request)
        return [to_audit.entry_of(message) for message in answer.entries]

    async def workers(self) -> list[WorkerInfo]:
        answer = await self._call("ListWorkers", pb.ListWorkersRequest())
        return [to.worker_of(message) for message in answer.workers]

    async def audit(self, *, slack: float) -> Audit:
        found = await self._call("Audit", pb.AuditRequest(slack_seconds=slack))
        return Audit(
            found.running,
            found.leaseless,
            found.overspent,
            found.overdue,
            values.maybe_instant(found, "last_tick"),
            found.in_grace,
            found.reasonless,
            found.overslept,
            found.untold,
        )

    async def backlog(self) -> list[Backlog]:
        answer = await self._call("GetBacklog", pb.GetBacklogRequest())
        return [
            Backlog(lane.queue, lane.topic, lane.due, values.instant(lane.oldest), lane.at_least)
            for lane in answer.lanes
        ]

    async def now(self) -> datetime:
        return values.instant((await self._call("GetTime", pb.GetTimeRequest())).now)

    # -- schedules ------------------------------------------------------------------------------

    async def put_schedule(
        self,
        app: str,
        name: str,
        spec: ScheduleSpec,
        *,
        declared: bool = False,
        seen: Version | None = None,
        by: Operator | None = None,
    ) -> Put:
        request = pb.PutScheduleRequest(
            app=app,
            name=name,
            spec=to_schedule.spec_message(spec),
            declared=declared,
            seen=None if seen is None else to_schedule.version_message(seen),
            operator=to_audit.operator_message(by),
        )
        answer = await self._call("PutSchedule", request)
        return Put(to_schedule.schedule_of(answer.schedule), answer.effect)

    async def declare_schedules(
        self, app: str, specs: Mapping[str, ScheduleSpec], *, by: Operator | None = None
    ) -> dict[str, str]:
        effects: dict[str, str] = {}
        messages = to_schedule.declared_messages(specs)
        limits = Limits(TRANSACTION.items, PART.bytes)
        for part in batches(messages, lambda each: each.ByteSize(), limits):
            request = pb.SyncSchedulesRequest(
                app=app, schedules=part, partial=True, operator=to_audit.operator_message(by)
            )
            answer = await self._call("SyncSchedules", request)
            for effect in ("created", "changed", "unchanged"):
                effects |= dict.fromkeys(getattr(answer, effect), effect)
        return effects

    async def get_schedule(self, app: str, name: str) -> ScheduleRow | None:
        return await self._schedule("GetSchedule", pb.GetScheduleRequest(app=app, name=name))

    async def find_schedule(self, schedule_id: UUID) -> ScheduleRow | None:
        return await self._schedule("GetSchedule", pb.GetScheduleRequest(id=str(schedule_id)))

    async def list_schedules(
        self,
        where: ScheduleFilter = EVERY_SCHEDULE,
        *,
        limit: int = SCHEDULE_PAGE,
        after: ScheduleKey | None = None,
    ) -> list[ScheduleRow]:
        rows: list[ScheduleRow] = []
        while True:
            request = to_schedule.list_message(where, limit - len(rows), after)
            answer = await self._call("ListSchedules", request)
            rows += map(to_schedule.schedule_of, answer.schedules)
            if not answer.cut:
                return rows
            after = rows[-1].key

    async def pause_schedule(
        self, app: str, name: str, *, by: Operator | None = None
    ) -> ScheduleRow | None:
        return await self._schedule("PauseSchedule", _name_of(app, name, by))

    async def resume_schedule(
        self, app: str, name: str, *, by: Operator | None = None
    ) -> ScheduleRow | None:
        return await self._schedule("ResumeSchedule", _name_of(app, name, by))

    async def _schedule(self, method: str, which: Message) -> ScheduleRow | None:
        try:
            answer = await self._call(method, which)
        except ScheduleNotFound:
            return None
        return to_schedule.schedule_of(answer)

    async def delete_schedule(self, app: str, name: str, *, by: Operator | None = None) -> bool:
        try:
            await self._call("DeleteSchedule", _name_of(app, name, by))
        except ScheduleNotFound:
            return False
        return True

    async def prune_schedules(self, age: float, *, limit: int, by: Operator | None = None) -> int:
        request = pb.PruneSchedulesRequest(
            age_seconds=age, limit=limit, operator=to_audit.operator_message(by)
        )
        return int((await self._call("PruneSchedules", request)).removed)

    async def run_schedule(
        self, app: str, name: str, job: NewJob, *, by: Operator | None = None
    ) -> None:
        request = pb.RunScheduleNowRequest(
            app=app, name=name, job_id=str(job.id), operator=to_audit.operator_message(by)
        )
        await self._call("RunScheduleNow", request)

    async def due_schedules(self, limit: int, *, skip: int = 0) -> Due:
        request = pb.ListDueSchedulesRequest(limit=limit, skip=skip)
        answer = await self._upkeep("ListDueSchedules", request)
        if answer is None:
            return Due([], None, datetime.now(UTC))
        rows = [to_schedule.schedule_of(message) for message in answer.schedules]
        return Due(rows, values.maybe_instant(answer, "next_run_at"), values.instant(answer.now))

    async def fire(self, fires: Sequence[Fire]) -> list[NewJob]:
        if not fires:
            return []
        request = pb.FireSchedulesRequest(fires=map(to_schedule.fire_message, fires))
        inserted = set((await self._call("FireSchedules", request)).job_ids)
        return [job for fire in fires for job in fire.jobs if str(job.id) in inserted]

    async def park_schedule(self, row: ScheduleRow, reason: str) -> None:
        request = pb.ParkScheduleRequest(schedule=to_schedule.schedule_message(row), reason=reason)
        await self._call("ParkSchedule", request)

    async def fires(
        self,
        schedule_id: UUID,
        *,
        limit: int = 50,
        before: datetime | None = None,
        before_id: UUID | None = None,
    ) -> list[JobRow]:
        rows: list[JobRow] = []
        while True:
            request = pb.ListScheduleJobsRequest(
                schedule_id=str(schedule_id),
                limit=limit - len(rows),
                before=values.maybe_stamp(before),
                before_id=values.maybe_text(before_id),
            )
            answer = await self._call("ListScheduleJobs", request)
            rows += map(to.job_of, answer.jobs)
            if not answer.cut:
                return rows
            before, before_id = rows[-1].moment, rows[-1].id

    # -- life -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def listen(
        self,
        queues: Sequence[str],  # noqa: ARG002 - the server learns them from the claims
        wake: Callable[[], None],
    ) -> AsyncIterator[Listener]:
        side = self._here()
        side.wakes.append(wake)
        try:
            yield StreamListener(side)
        finally:
            side.wakes.remove(wake)
            if not side.wakes:
                await side.close_streams()

    async def check(self) -> Mapping[str, str]:
        facts = await self._call("CheckDatabase", pb.CheckDatabaseRequest())
        server = await self._call("GetServer", pb.GetServerRequest())
        through = {"server": f"pulsed {server.version} at {self._endpoints.current}"}
        return dict(facts.facts) | through

    async def aclose(self) -> None:
        if not is_blocking():
            side = self._loops.forget_here()
            if side is not None:
                await side.close_streams()
                for channel in side.channels.take_all():
                    await channel.close()
        self._loops.forget_ended()  # a channel that is dropped closes itself
        for channel in self._blocking.take_all():
            channel.close()


def _name_of(app: str, name: str, by: Operator | None) -> pb.ScheduleName:
    return pb.ScheduleName(app=app, name=name, operator=to_audit.operator_message(by))


def _counts_of(answer: Any) -> Counts:
    return Counts(
        ((to.STATUSES[count.status], count.jobs) for count in answer.counts),
        (to.STATUSES[count.status] for count in answer.counts if count.at_least),
    )


def _ages(
    ages: Mapping[Status, float], since: Mapping[Status, datetime]
) -> list[pb.PruneJobsRequest.Age]:
    return [
        pb.PruneJobsRequest.Age(
            status=to.STATUS_NUMBERS[status],
            seconds=seconds,
            since=values.maybe_stamp(since.get(status)),
        )
        for status, seconds in ages.items()
    ]


def _succeeded_at(worker_id: UUID, report: Report) -> bool:
    return type(report.outcome) is Succeeded and report.lease.worker_id == worker_id


class LoopSide:
    """What belongs to one event loop: its channels, the workers' streams, who is to be woken."""

    def __init__(self, channels: Channels) -> None:
        self.channels = channels
        self.streams: dict[UUID, ClaimStream] = {}
        self.wakes: list[Callable[[], None]] = []

    def wake(self) -> None:
        """Tell the workers of this loop that jobs may have arrived."""
        for wake in list(self.wakes):
            wake()

    async def close_streams(self) -> None:
        """End the workers' streams."""
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            await stream.close()


class StreamListener(Listener):
    """Offers arrive while a stream is open."""

    def __init__(self, side: LoopSide) -> None:
        self._side = side

    @property
    def healthy(self) -> bool:
        return any(stream.is_open for stream in self._side.streams.values())
