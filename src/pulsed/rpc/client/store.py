"""The store of a process without a database: every verb is a call to a pulsed server.

A worker, a producer and the command line use it like an embedded store. An unreachable server is
treated like an unreachable database: the same retries, the same loops that never give up. What
cannot cross the wire is refused with the reason: migrations, and the caller's own transaction.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from operator import attrgetter
from typing import Any, NoReturn
from uuid import UUID

from pulsed.batches import first_batch
from pulsed.errors import ConfigError, InvalidPayload
from pulsed.model.audit import AuditEntry, AuditKey, Operator
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
    WorkerRequest,
)
from pulsed.model.job_batch import GatheredJobs
from pulsed.model.outcome import Beat, Report
from pulsed.model.page import Counts, GroupedCounts, Page
from pulsed.rpc.address import ServerAddress
from pulsed.rpc.client.bulk import RemoteBulk
from pulsed.rpc.client.claims import RemoteClaims
from pulsed.rpc.client.connection import RemoteOptions, ServerConnection
from pulsed.rpc.client.controls import RemoteControls
from pulsed.rpc.client.rollups import RemoteRollups
from pulsed.rpc.client.schedules import RemoteSchedules
from pulsed.rpc.client.streams import RemoteStreams
from pulsed.rpc.client.workflows import RemoteWorkflows, parts
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import audit as to_audit
from pulsed.rpc.messages import columnar, results, values
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages.contract import LARGEST_MESSAGE, PART
from pulsed.rpc.messages.reports import report_message
from pulsed.store.base import Store
from pulsed.store.blocking import is_blocking
from pulsed.store.event_bus import Events
from pulsed.store.listener import Listener, Wake
from pulsed.store.results import (
    Accepted,
    Assignments,
    Audit,
    Backlog,
    Expired,
    Partly,
    Pruned,
    Running,
    Submitted,
    WatchdogTick,
)
from pulsed.store.submit_group import may_be_contended

LONGEST_BEAT = 5.0
LONGEST_REPORT = 15.0


class RemoteStore(Store):
    """A store whose jobs are behind a server."""

    is_remote = True

    def __init__(self, address: ServerAddress | str, options: RemoteOptions | None = None) -> None:
        self.address = ServerAddress.parse(address) if isinstance(address, str) else address
        self.options = options or RemoteOptions()
        self.connection = ServerConnection(self.address, self.options)
        self.schedules = RemoteSchedules(self.connection)
        self.workflows = RemoteWorkflows(self.connection)
        self.rollups = RemoteRollups(self.connection)
        self.controls = RemoteControls(self.connection)
        self.bulk = RemoteBulk(self.connection)
        self.streams = RemoteStreams(self.connection)
        self._claims = RemoteClaims(self)

    @property
    def events(self) -> Events:
        return self.connection.events

    @events.setter
    def events(self, events: Events) -> None:
        self.connection.events = events

    # -- producers ------------------------------------------------------------------------------

    async def submit(self, jobs: Sequence[NewJob]) -> Submitted:
        if not jobs:
            return Submitted(0)
        request = pb.SubmitJobsRequest(jobs=map(to.new_job_message, jobs))
        if (size := request.ByteSize()) > LARGEST_MESSAGE:
            raise InvalidPayload(
                f"{len(jobs):,} jobs of {size:,} bytes are too much for one transaction over the "
                f"network: at most {LARGEST_MESSAGE:,} bytes. Enqueue them in several batches."
            )
        unanswered: list[Exception] = []
        try:
            response = await self.connection.call("SubmitJobs", request, unanswered=unanswered)
        finally:
            if unanswered and type(jobs) is GatheredJobs:
                jobs.may_be_stored = True
        submitted = results.submitted_of(response, len(jobs))
        return submitted.after_lost_answer() if unanswered else submitted

    def submit_together(self, jobs: Sequence[NewJob]) -> Coroutine[Any, Any, Submitted]:
        """Insert one job; what may have to wait is sent by itself, and gathers at the server."""
        return self.submit(jobs) if may_be_contended(jobs) else super().submit_together(jobs)

    def joined(self, connection: Any) -> NoReturn:
        raise ConfigError(
            f"using(conn=...) cannot work through a pulsed server: your transaction is in this "
            f"process ({type(connection).__module__}), and the jobs are stored by the server. Give "
            "the app a database URL, or enqueue after your commit."
        )

    # -- workers --------------------------------------------------------------------------------

    async def claim(
        self, worker_id: UUID, queue: str, topics: Sequence[TopicPolicy], limit: int
    ) -> Assignments:
        return await self._claims.claim(worker_id, queue, topics, limit)

    async def await_jobs(
        self,
        worker_id: UUID,
        queues: Sequence[str],
        topics: Sequence[TopicPolicy],
        limit: int,
        *,
        seconds: float,
    ) -> list[Assignment]:
        return await self._claims.await_jobs(worker_id, queues, topics, limit, seconds)

    def withdraw(self, worker_id: UUID) -> None:
        self._claims.withdraw(worker_id)

    async def beat(
        self, leases: Sequence[Lease], *, within: float | None = None
    ) -> dict[Lease, Beat]:
        seconds = LONGEST_BEAT if within is None else min(LONGEST_BEAT, within / 3)
        answers: list[Beat] = []
        for part in parts(map(to.lease_message, leases)):
            request = pb.HeartbeatRequest(leases=part)
            answer = await self.connection.call(
                "Heartbeat", request, seconds=seconds, within=within
            )
            answers += map(to.BEATS.__getitem__, answer.answers)
        return dict(zip(leases, answers, strict=True))

    async def settle(self, reports: Sequence[Report], *, within: float | None = None) -> Accepted:
        accepted = Accepted()
        for part in _parts(reports):
            accepted.merge((await self._report(part, within=within)).accepted)
        return accepted

    async def settle_free(self, reports: Sequence[Report]) -> Partly:
        settled = Partly(Accepted(), set())
        for part in _parts(reports):
            accepted, locked = await self._report(part, skip_locked=True)
            settled.accepted.merge(accepted)
            settled.locked.update(locked)
        return settled

    async def _report(
        self, reports: Sequence[Report], *, within: float | None = None, skip_locked: bool = False
    ) -> Partly:
        worker_id = reports[0].lease.worker_id
        alike: list[Report] = []
        others: list[Report] = []
        for each in reports:
            (alike if columnar.fits(each, worker_id) else others).append(each)
        request = pb.ReportResultsRequest(
            reports=map(report_message, others),
            succeeded=columnar.succeeded_message(alike, worker_id) if alike else None,
            skip_locked=skip_locked,
        )
        answer = await self.connection.call(
            "ReportResults", request, seconds=LONGEST_REPORT, within=within
        )
        sent = [*others, *alike]
        pairs = zip(sent, answer.accepted, strict=True)
        accepted = Accepted(
            {report.lease for report, accepted in pairs if accepted},
            [sent[place].lease for place in answer.cancelled],
        )
        return Partly(accepted, {sent[place].lease for place in answer.locked})

    async def held(self, worker_id: UUID, *, asked_to_stop: bool = False) -> list[Lease]:
        request = pb.ListLeasesRequest(worker_id=str(worker_id), asked_to_stop=asked_to_stop)
        answer = await self.connection.call("ListLeases", request)
        if asked_to_stop and not answer.asked_to_stop:
            return []  # an older server lists all leases; its heartbeats say which must stop
        return [to.lease_of(message) for message in answer.leases]

    async def set_progress(self, lease: Lease, progress: str) -> bool:
        request = pb.ProgressRequest(lease=to.lease_message(lease), progress=progress)
        return bool((await self.connection.call("Progress", request)).accepted)

    async def announce(self, worker: WorkerInfo) -> WorkerRequest | None:
        answer = await self.connection.call("RegisterWorker", to.worker_message(worker))
        return WorkerRequest(answer.request) if answer.request in set(WorkerRequest) else None

    async def retire(self, worker_id: UUID) -> None:
        await self._claims.retire(worker_id)
        await self.connection.call("RetireWorker", pb.RetireWorkerRequest(worker_id=str(worker_id)))

    # -- upkeep ---------------------------------------------------------------------------------

    async def watchdog(self, *, limit: int = 500) -> WatchdogTick:
        answer = await self.connection.upkeep("Watchdog", pb.WatchdogRequest(limit=limit))
        return WatchdogTick([], in_grace=False) if answer is None else results.tick_of(answer)

    async def expire(self, *, limit: int = 500) -> list[Expired]:
        answer = await self.connection.upkeep("ExpireJobs", pb.ExpireJobsRequest(limit=limit))
        return [] if answer is None else [*map(results.expired_of, answer.expired)]

    async def take_turn(self, *, length: float) -> bool:
        answer = await self.connection.upkeep("TakeTurn", pb.TakeTurnRequest(length_seconds=length))
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
            ages=results.ages_message(ages, since or {}),
            limit=limit,
            operator=to_audit.operator_message(by),
        )
        return results.pruned_of(await self.connection.call("PruneJobs", request))

    async def prunable(self, ages: Mapping[Status, float]) -> Counts:
        request = pb.PruneJobsRequest(ages=results.ages_message(ages, {}))
        return results.counts_of(await self.connection.call("CountPrunable", request))

    # -- operators ------------------------------------------------------------------------------

    async def get(self, ids: Sequence[UUID]) -> dict[UUID, JobRow]:
        rows: dict[UUID, JobRow] = {}
        wanted = [str(job_id) for job_id in ids]
        while wanted:
            answer = await self.connection.call("GetJobs", pb.GetJobsRequest(job_ids=wanted))
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
            answer = await self.connection.call("ListJobs", request)
            _check_applied(where, answer)
            rows += map(to.job_of, answer.jobs)
            if len(rows) == limit:
                return Page(rows, next=rows[-1].id)
            if not answer.cut:
                following = values.maybe_uuid(answer.searched_to)
                return Page(rows, next=following, is_cut=following is not None)

    async def counts(self, where: JobFilter) -> Counts:
        request = pb.CountJobsRequest(where=to.filter_message(where))
        answer = await self.connection.call("CountJobs", request)
        _check_applied(where, answer)
        return results.counts_of(answer)

    async def counts_by(self, where: JobFilter, by: Sequence[str]) -> GroupedCounts:
        request = pb.CountJobsByRequest(where=to.filter_message(where), by=by)
        answer = await self.connection.call("CountJobsBy", request)
        _check_applied(where, answer)
        return results.grouped_of(answer, by)

    async def failures(
        self, job_id: UUID, *, after: int = 0, before: int | None = None, limit: int | None = None
    ) -> list[Failure]:
        failures: list[Failure] = []
        while True:
            left = None if limit is None else limit - len(failures)
            request = pb.ListFailuresRequest(
                job_id=str(job_id), after=after, before=before, limit=left
            )
            answer = await self.connection.call("ListFailures", request)
            failures += map(to.failure_of, answer.failures)
            if not answer.cut:
                return failures
            if before is None:
                after = failures[-1].lease_token
            else:
                before = failures[-1].lease_token

    async def cancel(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, Status]:
        acts = await self._act("CancelJobs", ids, by)
        return {job_id: status for job_id, (_, status) in acts.items()}

    async def replay(
        self, ids: Sequence[UUID], *, fresh: bool = False, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        return await self._act("ReplayJobs", ids, by, fresh=fresh)

    async def edit_and_replay(
        self, job_id: UUID, payload: str, *, fresh: bool = False, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        request = pb.EditJobRequest(
            job_id=str(job_id),
            payload=payload,
            fresh=fresh,
            operator=to_audit.operator_message(by),
        )
        return results.acts_of(await self.connection.call("EditJob", request))

    async def delete(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        return await self._act("DeleteJobs", ids, by)

    async def expedite(
        self, ids: Sequence[UUID], *, by: Operator | None = None
    ) -> dict[UUID, tuple[bool, Status]]:
        return await self._act("ExpediteJobs", ids, by)

    async def _act(
        self, method: str, ids: Sequence[UUID], by: Operator | None, *, fresh: bool = False
    ) -> dict[UUID, tuple[bool, Status]]:
        if not ids:
            return {}
        request = pb.JobIds(
            job_ids=map(str, ids), fresh=fresh, operator=to_audit.operator_message(by)
        )
        return results.acts_of(await self.connection.call(method, request))

    async def audit_log(
        self,
        *,
        limit: int = 100,
        since: datetime | None = None,
        until: datetime | None = None,
        before: AuditKey | None = None,
        actor: str | None = None,
    ) -> list[AuditEntry]:
        request = pb.ListAuditLogRequest(
            limit=limit,
            since=values.maybe_stamp(since),
            until=values.maybe_stamp(until),
            before=None if before is None else to_audit.key_message(before),
            actor=actor,
        )
        answer = await self.connection.call("ListAuditLog", request)
        return [to_audit.entry_of(message) for message in answer.entries]

    async def ask_workers(
        self, ids: Sequence[UUID], request: WorkerRequest, *, by: Operator | None = None
    ) -> list[WorkerInfo]:
        asking = pb.AskWorkersRequest(
            worker_ids=map(str, ids), request=request, operator=to_audit.operator_message(by)
        )
        answer = await self.connection.call("AskWorkers", asking)
        return [to.worker_of(message) for message in answer.workers]

    async def workers(self) -> list[WorkerInfo]:
        answer = await self.connection.call("ListWorkers", pb.ListWorkersRequest())
        return [to.worker_of(message) for message in answer.workers]

    async def audit(self, *, slack: float) -> Audit:
        found = await self.connection.call("Audit", pb.AuditRequest(slack_seconds=slack))
        return results.audit_of(found)

    async def backlog(self) -> list[Backlog]:
        answer = await self.connection.call("GetBacklog", pb.GetBacklogRequest())
        return [*map(results.backlog_of, answer.lanes)]

    async def running(self) -> list[Running]:
        answer = await self.connection.call("GetRunning", pb.GetRunningRequest())
        return [*map(results.running_of, answer.lanes)]

    async def now(self) -> datetime:
        return values.instant((await self.connection.call("GetTime", pb.GetTimeRequest())).now)

    # -- life -----------------------------------------------------------------------------------

    def listen(
        self,
        queues: Sequence[str],  # noqa: ARG002 - the server learns them from the claims
        wake: Wake,
    ) -> AbstractAsyncContextManager[Listener]:
        return self._claims.listen(wake)

    async def check(self) -> Mapping[str, str]:
        facts = await self.connection.call("CheckDatabase", pb.CheckDatabaseRequest())
        server = await self.connection.call("GetServer", pb.GetServerRequest())
        through = {"server": f"pulsed {server.version} at {self.connection.endpoints.current}"}
        return dict(facts.facts) | through

    async def aclose(self) -> None:
        if not is_blocking():
            side = self.connection.loops.forget_here()
            if side is not None:
                await side.close_streams()
                for channel in side.channels.take_all():
                    await channel.close()
        self.connection.loops.forget_ended()  # a channel that is dropped closes itself
        for channel in self.connection.blocking.take_all():
            channel.close()


def _parts(reports: Sequence[Report]) -> Iterator[Sequence[Report]]:
    """Yield reports in parts that fit into a message; nearly always there is one."""
    while reports:
        part = first_batch(reports, attrgetter("size"), PART)
        yield part
        reports = reports[len(part) :]


OLD_CONDITIONS = frozenset(
    {"status", "topic", "queue", "tag", "error", "since", "until", "parent", "parent_step"}
)
"""What every server can search by."""


def _check_applied(where: JobFilter, answer: Any) -> None:
    """Refuse an answer of a server that ignored conditions: a bulk act would hit other jobs."""
    every = JobFilter()
    newer = [
        name
        for name in where.__struct_fields__
        if name not in OLD_CONDITIONS and getattr(where, name) != getattr(every, name)
    ]
    if newer and answer.conditions < where.conditions:
        raise ConfigError(
            f"The server is older than this client and cannot search by {', '.join(newer)}: "
            "upgrade it, or search without."
        )
