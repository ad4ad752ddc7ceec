"""The methods with which producers and operators submit, read and change jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec

from pulsed.client.filter import checked_groups
from pulsed.engine.enqueuing import publish_enqueued, stored_jobs
from pulsed.errors import JobNotFound
from pulsed.handler.options import checked_count
from pulsed.model.audit import LONGEST_LOG
from pulsed.model.job import Failure, JobRow
from pulsed.model.lifecycle import is_cancelled
from pulsed.model.page import Page
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import audit as to_audit
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages import results, values
from pulsed.rpc.server.access import PRODUCE, Caller, TokenRole, denied
from pulsed.rpc.server.checks import items as checks
from pulsed.rpc.server.json_text import checked_json
from pulsed.rpc.server.services.backend import LARGEST_PAGE, Backend, operator_of
from pulsed.rpc.server.sized_page import SizedPage


class JobService:
    """The methods of this name in the contract."""

    def __init__(self, backend: Backend) -> None:
        self._store = backend.store
        self._scopes = backend.scopes
        self._converted = backend.converted
        self._describe = backend.describe

    async def submit_jobs(
        self, request: pb.SubmitJobsRequest, caller: Caller
    ) -> pb.SubmitJobsResponse:
        jobs = await self._converted(checks.new_job, request.jobs, request, caller)
        await self._scopes.check_new(jobs, caller)
        await self._scopes.check_parents(jobs, caller)
        # Concurrent calls of one job each share a commit, whoever makes them.
        submit = self._store.submit_together if len(jobs) == 1 else self._store.submit
        submitted = await submit(jobs)
        publish_enqueued(self._store.events, stored_jobs(jobs, submitted))
        return results.submitted_message(submitted)

    async def get_job(self, request: pb.GetJobRequest, caller: Caller) -> pb.Job:
        job_id = checks.job_id_of(request.job_id)
        await self._scopes.check_readable([job_id], caller)
        rows = await self._store.get([job_id])
        if job_id not in rows:
            raise JobNotFound(f"There is no job {job_id}.", job_id=job_id)
        return _shown_to(caller)(rows[job_id])

    async def get_jobs(self, request: pb.GetJobsRequest, caller: Caller) -> pb.GetJobsResponse:
        ids = await self._converted(checks.job_id_of, request.job_ids, request, caller)
        await self._scopes.check_readable(ids, caller)
        jobs = SizedPage(_shown_to(caller))
        while ids and (count := jobs.wanted):
            rows = await self._store.get(ids[:count])
            ids = [*rows][jobs.fill(rows.values()) :] + ids[count:]
        return pb.GetJobsResponse(jobs=jobs.messages, left_off=map(str, ids))

    async def list_jobs(self, request: pb.ListJobsRequest, caller: Caller) -> pb.ListJobsResponse:
        where = checks.converted(to.filter_of, request.where)
        caller.check_filter(where)
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        before = checks.job_id_of(request.before) if request.before else None

        searched_to: UUID | None = None

        async def read(count: int, last: JobRow | None) -> Page[JobRow]:
            nonlocal searched_to
            behind = before if last is None else last.id
            page = await self._store.list_jobs(where, limit=count, before=behind)
            searched_to = page.next if page.is_cut else None
            return page

        jobs = SizedPage(_shown_to(caller), limit=limit)
        await jobs.fill_from(read)
        searched = "" if jobs.is_cut else values.maybe_text(searched_to)
        return pb.ListJobsResponse(
            jobs=jobs.messages,
            cut=jobs.is_cut,
            searched_to=searched,
            conditions=where.conditions,
        )

    async def count_jobs(
        self, request: pb.CountJobsRequest, caller: Caller
    ) -> pb.CountJobsResponse:
        where = checks.converted(to.filter_of, request.where)
        caller.check_filter(where)
        counts = await self._store.counts(where)
        return results.counts_message(counts, where.conditions)

    async def count_jobs_by(
        self, request: pb.CountJobsByRequest, caller: Caller
    ) -> pb.CountJobsByResponse:
        where = checks.converted(to.filter_of, request.where)
        caller.check_filter(where)
        counts = await self._store.counts_by(where, checked_groups(request.by))
        return results.grouped_message(counts, where.conditions)

    async def list_failures(
        self, request: pb.ListFailuresRequest, caller: Caller
    ) -> pb.ListFailuresResponse:
        job_id = checks.job_id_of(request.job_id)
        await self._scopes.check_readable([job_id], caller)

        async def read(count: int, last: Failure | None) -> list[Failure]:
            after, before = request.after, values.maybe(request, "before")
            if last is not None:
                after, before = (
                    (last.lease_token, None) if before is None else (after, last.lease_token)
                )
            return await self._store.failures(job_id, after=after, before=before, limit=count)

        failures = SizedPage(to.failure_message, limit=max(0, request.limit) or None)
        await failures.fill_from(read)
        return pb.ListFailuresResponse(failures=failures.messages, cut=failures.is_cut)

    async def cancel_jobs(self, request: pb.JobIds, caller: Caller) -> pb.JobActs:
        ids = await self._ids(request, caller)
        are_children = await self._scopes.are_children(ids)
        if not are_children and not caller.roles & PRODUCE:
            raise denied(f"{caller.name} may cancel children of workflows, and no other jobs.")
        # A fan-out that cancels the rest of its children is no operator's act.
        is_workflow = are_children and not request.HasField("operator")
        by = None if is_workflow else operator_of(request, caller)
        statuses = await self._store.cancel(ids, by=by)
        return results.acts_message(
            {key: (is_cancelled(status), status) for key, status in statuses.items()}
        )

    async def replay_jobs(self, request: pb.JobIds, caller: Caller) -> pb.JobActs:
        ids = await self._ids(request, caller)
        by = operator_of(request, caller)
        return results.acts_message(await self._store.replay(ids, fresh=request.fresh, by=by))

    async def edit_job(self, request: pb.EditJobRequest, caller: Caller) -> pb.JobActs:
        job_id = checks.job_id_of(request.job_id)
        await self._scopes.check_readable([job_id], caller)
        checked_json("The payload", request.payload, is_object=True)
        by = operator_of(request, caller)
        return results.acts_message(
            await self._store.edit_and_replay(job_id, request.payload, fresh=request.fresh, by=by)
        )

    async def delete_jobs(self, request: pb.JobIds, caller: Caller) -> pb.JobActs:
        ids = await self._ids(request, caller)
        return results.acts_message(await self._store.delete(ids, by=operator_of(request, caller)))

    async def expedite_jobs(self, request: pb.JobIds, caller: Caller) -> pb.JobActs:
        ids = await self._ids(request, caller)
        return results.acts_message(
            await self._store.expedite(ids, by=operator_of(request, caller))
        )

    async def list_workers(
        self, request: pb.ListWorkersRequest, caller: Caller
    ) -> pb.ListWorkersResponse:
        workers = await self._store.workers()
        return pb.ListWorkersResponse(workers=map(to.worker_message, workers))

    async def ask_workers(
        self, request: pb.AskWorkersRequest, caller: Caller
    ) -> pb.ListWorkersResponse:
        ids, what = checks.asked_workers(request)
        workers = await self._store.ask_workers(ids, what, by=operator_of(request, caller))
        return pb.ListWorkersResponse(workers=map(to.worker_message, workers))

    async def get_backlog(
        self, request: pb.GetBacklogRequest, caller: Caller
    ) -> pb.GetBacklogResponse:
        lanes = await self._store.backlog()
        return pb.GetBacklogResponse(lanes=map(results.backlog_message, lanes))

    async def get_running(
        self, request: pb.GetRunningRequest, caller: Caller
    ) -> pb.GetRunningResponse:
        lanes = await self._store.running()
        return pb.GetRunningResponse(lanes=map(results.running_message, lanes))

    async def audit(self, request: pb.AuditRequest, caller: Caller) -> pb.AuditResponse:
        return results.audit_message(await self._store.audit(slack=request.slack_seconds))

    async def get_time(self, request: pb.GetTimeRequest, caller: Caller) -> pb.GetTimeResponse:
        return pb.GetTimeResponse(now=values.stamp(await self._store.now()))

    async def get_server(
        self, request: pb.GetServerRequest, caller: Caller
    ) -> pb.GetServerResponse:
        return self._describe()

    async def list_audit_log(
        self, request: pb.ListAuditLogRequest, caller: Caller
    ) -> pb.ListAuditLogResponse:
        entries = await self._store.audit_log(
            limit=checked_count("limit", request.limit, 1, LONGEST_LOG),
            since=values.maybe_instant(request, "since"),
            until=values.maybe_instant(request, "until"),
            before=checks.converted(to_audit.key_of, request.before)
            if request.HasField("before")
            else None,
            actor=values.maybe(request, "actor"),
        )
        return pb.ListAuditLogResponse(entries=map(to_audit.entry_message, entries))

    async def check_database(
        self, request: pb.CheckDatabaseRequest, caller: Caller
    ) -> pb.CheckDatabaseResponse:
        return pb.CheckDatabaseResponse(facts=await self._store.check())

    async def _ids(self, request: Any, caller: Caller) -> list[UUID]:
        """Return the ids of a request, if the caller may act on every one of them."""
        ids = await self._converted(checks.job_id_of, request.job_ids, request, caller)
        await self._scopes.check_readable(ids, caller)
        return ids


def _shown_to(caller: Caller) -> Callable[[JobRow], pb.Job]:
    """Return the conversion of a job for a caller: only an admin gets the lease's token."""
    if TokenRole.ADMIN in caller.roles:
        return to.job_message
    return lambda row: to.job_message(msgspec.structs.replace(row, lease_token=0))
