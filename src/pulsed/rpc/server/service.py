"""The unary methods of the contract, over any store.

Each method is a function of its request and its caller; what it raises is turned into a status in
one place (``server``). A caller who is limited to topics or queues is checked item by item, before
anything is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from typing import Any
from uuid import UUID

import msgspec

from pulsed.engine.upkeep.scheduler import template
from pulsed.errors import JobNotFound, ScheduleNotFound
from pulsed.handler.options import checked_count, checked_name
from pulsed.model.audit import LONGEST_LOG, Operator
from pulsed.model.job import Failure, JobRow, Status
from pulsed.model.lifecycle import is_cancelled
from pulsed.model.outcome import Released, Report
from pulsed.model.page import Page
from pulsed.model.schedule import ScheduleFilter, ScheduleKey, ScheduleRow
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import audit as to_audit
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages import schedules as to_schedule
from pulsed.rpc.messages import values
from pulsed.rpc.messages.errors import lost
from pulsed.rpc.server import checks
from pulsed.rpc.server.access import PRODUCE, Caller, Role, denied
from pulsed.rpc.server.json_text import checked_json
from pulsed.rpc.server.scopes import Scopes, is_own, owns_schedule
from pulsed.rpc.server.sized_page import M, Parcel
from pulsed.rpc.server.turns import Turns
from pulsed.rpc.server.workflow_methods import WorkflowMethods
from pulsed.store.base import Store
from pulsed.store.verbs.settle import may_be_a_child

LARGEST_PAGE = 10_000


class Service(WorkflowMethods):
    """What the server answers, apart from streams."""

    def __init__(
        self,
        store: Store,
        *,
        hint: Callable[[], None],
        describe: Callable[[], pb.GetServerResponse],
        largest_batch: int,
    ) -> None:
        self._store = store
        self._hint = hint
        """Called when jobs may wait that the store tells nobody of; it tells of all others."""
        self._describe = describe
        self._largest_batch = largest_batch
        self._turns = Turns()
        self._scopes = Scopes(store)

    # -- jobs -----------------------------------------------------------------------------------

    async def submit_jobs(self, request: Any, caller: Caller) -> Any:
        self._check_batch(request.jobs)
        jobs = await self._turns.each(checks.new_job, request.jobs, request, caller)
        await self._scopes.check_new(jobs, caller)
        await self._scopes.check_parents(jobs, caller)
        return pb.SubmitJobsResponse(inserted=await self._store.submit(jobs))

    async def get_job(self, request: Any, caller: Caller) -> Any:
        job_id = checks.job_id_of(request.job_id)
        await self._scopes.check_readable([job_id], caller)
        rows = await self._store.get([job_id])
        if job_id not in rows:
            raise JobNotFound(f"There is no job {job_id}.", job_id=job_id)
        return _shown_to(caller)(rows[job_id])

    async def get_jobs(self, request: Any, caller: Caller) -> Any:
        self._check_batch(request.job_ids)
        ids = await self._turns.each(checks.job_id_of, request.job_ids, request, caller)
        await self._scopes.check_readable(ids, caller)
        jobs = Parcel(_shown_to(caller))
        while ids and (count := jobs.wanted):
            rows = await self._store.get(ids[:count])
            ids = [*rows][jobs.fill(rows.values()) :] + ids[count:]
        return pb.GetJobsResponse(jobs=jobs.messages, left_off=map(str, ids))

    async def list_jobs(self, request: Any, caller: Caller) -> Any:
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

        jobs = Parcel(_shown_to(caller), limit=limit)
        await jobs.fill_from(read)
        searched = "" if jobs.is_cut else values.maybe_text(searched_to)
        return pb.ListJobsResponse(jobs=jobs.messages, cut=jobs.is_cut, searched_to=searched)

    async def count_jobs(self, request: Any, caller: Caller) -> Any:
        where = checks.converted(to.filter_of, request.where)
        caller.check_filter(where)
        counts = await self._store.counts(where)
        return _counts(counts, counts.at_least)

    async def list_failures(self, request: Any, caller: Caller) -> Any:
        job_id = checks.job_id_of(request.job_id)
        await self._scopes.check_readable([job_id], caller)

        async def read(count: int, last: Failure | None) -> list[Failure]:
            after = request.after if last is None else last.lease_token
            return await self._store.failures(job_id, after=after, limit=count)

        failures = Parcel(to.failure_message, limit=max(0, request.limit) or None)
        await failures.fill_from(read)
        return pb.ListFailuresResponse(failures=failures.messages, cut=failures.is_cut)

    async def cancel_jobs(self, request: Any, caller: Caller) -> Any:
        ids = await self._ids(request, caller)
        if not caller.roles & PRODUCE:
            await self._scopes.check_children(ids, caller)
        # A fan-out that cancels the rest of its children is nobody's act.
        is_workflow = not request.HasField("operator") and all(map(may_be_a_child, ids))
        by = None if is_workflow else _operator(request, caller)
        statuses = await self._store.cancel(ids, by=by)
        return _acts({key: (is_cancelled(status), status) for key, status in statuses.items()})

    async def replay_jobs(self, request: Any, caller: Caller) -> Any:
        ids = await self._ids(request, caller)
        by = _operator(request, caller)
        return _acts(await self._store.replay(ids, fresh=request.fresh, by=by))

    async def delete_jobs(self, request: Any, caller: Caller) -> Any:
        ids = await self._ids(request, caller)
        return _acts(await self._store.delete(ids, by=_operator(request, caller)))

    async def list_workers(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        workers = await self._store.workers()
        return pb.ListWorkersResponse(workers=map(to.worker_message, workers))

    async def get_backlog(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        return pb.GetBacklogResponse(
            lanes=[
                pb.GetBacklogResponse.Lane(
                    queue=lane.queue,
                    topic=lane.topic,
                    due=lane.due,
                    oldest=values.stamp(lane.oldest),
                )
                for lane in await self._store.backlog()
            ]
        )

    async def audit(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        found = await self._store.audit(slack=request.slack_seconds)
        return pb.AuditResponse(
            running=found.running,
            leaseless=found.leaseless,
            overspent=found.overspent,
            overdue=found.overdue,
            last_tick=values.maybe_stamp(found.last_tick),
            in_grace=found.in_grace,
            reasonless=found.reasonless,
            overslept=found.overslept,
            untold=found.untold,
        )

    async def get_time(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        return pb.GetTimeResponse(now=values.stamp(await self._store.now()))

    async def get_server(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        return self._describe()

    async def list_audit_log(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        entries = await self._store.audit_log(
            limit=checked_count("limit", request.limit, 1, LONGEST_LOG),
            since=values.maybe_instant(request, "since"),
            until=values.maybe_instant(request, "until"),
            actor=values.maybe(request, "actor"),
        )
        return pb.ListAuditLogResponse(entries=map(to_audit.entry_message, entries))

    async def check_database(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        return pb.CheckDatabaseResponse(facts=await self._store.check())

    # -- work -----------------------------------------------------------------------------------

    async def report_result(self, request: Any, caller: Caller) -> Any:
        (report,) = await self._turns.each(checks.report_of, [request], request, caller)
        await self._scopes.check_reports([report], caller)
        if report.lease not in await self._store.settle([report]):
            raise lost(report.lease.job_id)
        return pb.ReportResultResponse()

    async def report_results(self, request: Any, caller: Caller) -> Any:
        self._check_batch(request.reports)
        self._check_batch(request.succeeded.results)
        reports = await self._turns.each(checks.report_of, request.reports, request, caller)
        if request.HasField("succeeded"):
            (more,) = await self._turns.each(
                checks.successes_of, [request.succeeded], request, caller
            )
            reports += more
        return await self._settle(reports, caller, skip_locked=request.skip_locked)

    async def release(self, request: Any, caller: Caller) -> Any:
        self._check_batch(request.leases)
        leases = await self._turns.each(checks.lease, request.leases, request, caller)
        return await self._settle([Report(lease, Released()) for lease in leases], caller)

    async def _settle(
        self, reports: list[Report], caller: Caller, *, skip_locked: bool = False
    ) -> Any:
        await self._scopes.check_reports(reports, caller)
        if skip_locked:
            accepted, locked = await self._store.settle_free(reports)
        else:
            accepted, locked = await self._store.settle(reports), set()
        if any(type(report.outcome) is Released for report in reports):
            self._hint()  # somebody else can have it at once
        if len(accepted) == len(reports):
            return pb.ReportResultsResponse(accepted=[True] * len(reports))
        return pb.ReportResultsResponse(
            accepted=[each.lease in accepted for each in reports],
            locked=[place for place, each in enumerate(reports) if each.lease in locked],
        )

    async def heartbeat(self, request: Any, caller: Caller, within: float | None = None) -> Any:
        self._check_batch(request.leases)
        leases = await self._turns.each(checks.lease, request.leases, request, caller)
        await self._scopes.check_leases(leases, caller, urgent=True)
        answers = await self._store.beat([*dict.fromkeys(leases)], within=within)
        return pb.HeartbeatResponse(answers=[to.BEAT_NUMBERS[answers[each]] for each in leases])

    async def list_leases(self, request: Any, caller: Caller) -> Any:
        worker_id = checks.job_id_of(request.worker_id)
        leases = await self._store.held(worker_id, asked_to_stop=request.asked_to_stop)
        if caller.is_limited:
            places = await self._store.places([lease.job_id for lease in leases])
            leases = [lease for lease in leases if is_own(places.get(lease.job_id), caller)]
        return pb.ListLeasesResponse(leases=map(to.lease_message, leases))

    async def progress(self, request: Any, caller: Caller) -> Any:
        lease = checks.lease(request.lease)
        checked_json("The progress", request.progress)
        await self._scopes.check_leases([lease], caller)
        accepted = await self._store.set_progress(lease, request.progress)
        return pb.ProgressResponse(accepted=accepted)

    async def register_worker(self, request: Any, caller: Caller) -> Any:
        checks.check_worker(request)
        caller.check_lanes(request.topics, request.queues)
        await self._scopes.check_worker(checks.job_id_of(request.id), caller)
        await self._store.announce(to.worker_of(request))
        return pb.RegisterWorkerResponse()

    async def retire_worker(self, request: Any, caller: Caller) -> Any:
        worker_id = checks.job_id_of(request.worker_id)
        await self._scopes.check_worker(worker_id, caller)
        await self._store.retire(worker_id)
        return pb.RetireWorkerResponse()

    # -- schedules ------------------------------------------------------------------------------

    async def put_schedule(self, request: Any, caller: Caller) -> Any:
        name = checked_name("name of the schedule", request.name)
        spec = checks.spec(request.spec)
        caller.check_job(spec.topic, spec.queue)
        if caller.is_limited and (old := await self._schedule(request)) is not None:
            _check_schedule(old, caller)
        seen = None
        if request.HasField("seen"):
            seen = checks.converted(to_schedule.version_of, request.seen)
        put = await self._store.put_schedule(
            _app(request),
            name,
            spec,
            declared=request.declared,
            seen=seen,
            by=_operator(request, caller),
        )
        return pb.PutScheduleResponse(
            schedule=to_schedule.schedule_message(put.row), effect=put.effect
        )

    async def edit_schedule(self, request: Any, caller: Caller) -> Any:
        await self._existing(request, caller)
        return await self.put_schedule(request, caller)

    async def sync_schedules(self, request: Any, caller: Caller) -> Any:
        self._check_batch(request.schedules)
        specs = {
            checked_name("name of the schedule", each.name): checks.spec(each.spec)
            for each in request.schedules
        }
        app = _app(request)
        for name, spec in specs.items():
            caller.check_job(spec.topic, spec.queue)
            if caller.is_limited and (old := await self._store.get_schedule(app, name)) is not None:
                _check_schedule(old, caller)
        removed = [] if request.partial else await self._undeclared(app, specs, caller)
        answer = pb.SyncSchedulesResponse(removed=removed)
        by = _operator(request, caller)
        effects = await self._store.declare_schedules(app, specs, by=by)
        for name, effect in effects.items():
            getattr(answer, effect).append(name)
        for name in removed if request.pause_removed else ():
            await self._store.pause_schedule(app, name, by=by)
        return answer

    async def _undeclared(self, app: str, specs: Container[str], caller: Caller) -> list[str]:
        return [
            row.name
            async for row in self._store.each_schedule(ScheduleFilter(app))
            if row.declared and row.name not in specs and owns_schedule(row, caller)
        ]

    async def get_schedule(self, request: Any, caller: Caller) -> Any:
        if not request.id:
            return to_schedule.schedule_message(await self._existing(request, caller))
        row = await self._store.find_schedule(checks.job_id_of(request.id))
        if row is None:
            raise ScheduleNotFound(f"There is no schedule {request.id}.")
        _check_schedule(row, caller)
        return to_schedule.schedule_message(row)

    async def list_schedules(self, request: Any, caller: Caller) -> Any:
        where = checks.converted(to_schedule.filter_of, request)
        limit = checked_count("limit", request.limit or LARGEST_PAGE, 1, LARGEST_PAGE)
        begin = ScheduleKey(request.after_app, request.after_name) if request.after_app else None

        async def read(count: int, last: ScheduleRow | None) -> list[ScheduleRow]:
            """Read so many that the caller may see, unless there are no more."""
            after = begin if last is None else last.key
            own: list[ScheduleRow] = []
            while len(own) < count:
                rows = await self._store.list_schedules(where, limit=count, after=after)
                own += (row for row in rows if owns_schedule(row, caller))
                if len(rows) < count:
                    break
                after = rows[-1].key
            return own[:count]

        found = Parcel(to_schedule.schedule_message, limit=limit)
        await found.fill_from(read)
        return pb.ListSchedulesResponse(schedules=found.messages, cut=found.is_cut)

    async def pause_schedule(self, request: Any, caller: Caller) -> Any:
        await self._existing(request, caller)
        by = _operator(request, caller)
        row = await self._store.pause_schedule(_app(request), request.name, by=by)
        return to_schedule.schedule_message(_there(row, request))

    async def resume_schedule(self, request: Any, caller: Caller) -> Any:
        await self._existing(request, caller)
        by = _operator(request, caller)
        row = await self._store.resume_schedule(_app(request), request.name, by=by)
        return to_schedule.schedule_message(_there(row, request))

    async def delete_schedule(self, request: Any, caller: Caller) -> Any:
        await self._existing(request, caller)
        by = _operator(request, caller)
        await self._store.delete_schedule(_app(request), request.name, by=by)
        return pb.DeleteScheduleResponse()

    async def run_schedule_now(self, request: Any, caller: Caller) -> Any:
        job_id = checks.job_id_of(request.job_id)
        row = await self._existing(request, caller)
        job = template(row, row.spec, job_id)
        by = _operator(request, caller)
        await self._store.run_schedule(_app(request), request.name, job, by=by)
        return pb.RunScheduleNowResponse(job_id=str(job_id))

    async def list_schedule_jobs(self, request: Any, caller: Caller) -> Any:
        jobs = await self._fires(request, caller, to.job_message)
        return pb.ListScheduleJobsResponse(jobs=jobs.messages, cut=jobs.is_cut)

    async def list_schedule_fires(self, request: Any, caller: Caller) -> Any:
        fires = await self._fires(request, caller, to_schedule.fired_message)
        return pb.ListScheduleFiresResponse(fires=fires.messages, cut=fires.is_cut)

    async def _fires(
        self, request: Any, caller: Caller, pack: Callable[[JobRow], M]
    ) -> Parcel[JobRow, M]:
        schedule_id = checks.job_id_of(request.schedule_id)
        jobs = Parcel(pack, limit=checked_count("limit", request.limit, 1, LARGEST_PAGE))
        before = values.maybe_instant(request, "before")
        before_id = checks.job_id_of(request.before_id) if request.before_id else None

        async def read(count: int, last: JobRow | None) -> list[JobRow]:
            moment, job_id = (before, before_id) if last is None else (last.moment, last.id)
            rows = await self._store.fires(
                schedule_id, limit=count, before=moment, before_id=job_id
            )
            if not all(caller.may_use(row.topic, row.queue) for row in rows):
                raise denied(f"{caller.name} may not see the jobs of this schedule.")
            return rows

        await jobs.fill_from(read)
        return jobs

    async def _schedule(self, request: Any) -> ScheduleRow | None:
        return await self._store.get_schedule(_app(request), request.name)

    async def _existing(self, request: Any, caller: Caller) -> ScheduleRow:
        row = _there(await self._schedule(request), request)
        _check_schedule(row, caller)
        return row

    # -- upkeep ---------------------------------------------------------------------------------

    async def watchdog(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        tick = await self._store.watchdog(limit=limit)
        return pb.WatchdogResponse(
            in_grace=tick.in_grace,
            reaped=[
                pb.WatchdogResponse.Reaped(
                    job_id=str(job.job_id),
                    topic=job.topic,
                    status=to.STATUS_NUMBERS[job.status],
                    worker_id=str(job.worker_id),
                )
                for job in tick.reaped
            ],
        )

    async def list_due_schedules(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        due = await self._store.due_schedules(limit, skip=max(0, request.skip))
        schedules = Parcel(to_schedule.schedule_message)
        schedules.fill(due.rows)
        return pb.ListDueSchedulesResponse(
            schedules=schedules.messages,
            next_run_at=values.maybe_stamp(due.next_run_at),
            now=values.stamp(due.now),
        )

    async def fire_schedules(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        fires = [checks.converted(to_schedule.fire_of, message) for message in request.fires]
        jobs = await self._store.fire(fires)
        return pb.FireSchedulesResponse(job_ids=[str(job.id) for job in jobs])

    async def park_schedule(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        await self._store.park_schedule(to_schedule.schedule_of(request.schedule), request.reason)
        return pb.ParkScheduleResponse()

    async def take_turn(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        taken = await self._store.take_turn(length=request.length_seconds)
        return pb.TakeTurnResponse(taken=taken)

    async def prune_jobs(self, request: Any, caller: Caller) -> Any:
        since = {
            to.STATUSES[age.status]: values.instant(age.since)
            for age in request.ages
            if age.HasField("since")
        }
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        # Without upkeep of the server's own, workers prune through it, by themselves.
        is_upkeep = not request.HasField("operator") and not self._describe().does_upkeep
        by = None if is_upkeep else _operator(request, caller)
        ages = checks.converted(_ages, request)
        pruned = await self._store.prune(ages, limit=limit, since=since, by=by)
        return pb.PruneJobsResponse(
            removed=[
                pb.PruneJobsResponse.Removed(
                    status=to.STATUS_NUMBERS[status],
                    jobs=jobs,
                    reached=values.maybe_stamp(pruned.reached.get(status)),
                )
                for status, jobs in pruned.removed.items()
            ]
        )

    async def count_prunable(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        counts = await self._store.prunable(checks.converted(_ages, request))
        return _counts(counts, counts.at_least)

    async def cascade(self, request: Any, caller: Caller) -> Any:  # noqa: ARG002
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        return pb.CascadeResponse(parents=await self._store.cascade(limit=limit))

    # -- limits ---------------------------------------------------------------------------------

    def _check_batch(self, items: Any) -> None:
        checks.checked_batch(items, self._largest_batch)

    async def _ids(self, request: Any, caller: Caller) -> list[UUID]:
        """Return the ids of an act, when the caller may act on every one of them."""
        self._check_batch(request.job_ids)
        ids = await self._turns.each(checks.job_id_of, request.job_ids, request, caller)
        await self._scopes.check_readable(ids, caller)
        return ids


def _operator(request: Any, caller: Caller) -> Operator:
    """Return who acts: the caller, by its token, and what it says of itself."""
    said = request.operator
    roles = ", ".join(sorted(caller.roles))
    return Operator(caller.name, roles, claimed=said.name, detail=said.detail)


def _app(request: Any) -> str:
    return request.app or "default"


def _there(row: ScheduleRow | None, request: Any) -> ScheduleRow:
    if row is None:
        raise ScheduleNotFound(f"The app {_app(request)!r} has no schedule {request.name!r}.")
    return row


def _check_schedule(row: ScheduleRow, caller: Caller) -> None:
    if not owns_schedule(row, caller):
        raise denied(f"{caller.name} may not use schedule {row.name!r}.")


def _shown_to(caller: Caller) -> Callable[[JobRow], pb.Job]:
    """Return how a job is shown: without what proves a lease, unless to an admin."""
    if Role.ADMIN in caller.roles:
        return to.job_message
    return lambda row: to.job_message(msgspec.structs.replace(row, lease_token=0))


def _counts(counts: Mapping[Status, int], at_least: Collection[Status] = ()) -> Any:
    return pb.CountJobsResponse(
        counts=[
            pb.CountJobsResponse.Count(
                status=to.STATUS_NUMBERS[status], jobs=number, at_least=status in at_least
            )
            for status, number in counts.items()
        ]
    )


def _ages(request: Any) -> dict[Status, float]:
    return {to.STATUSES[age.status]: age.seconds for age in request.ages}


def _acts(answers: dict[UUID, tuple[bool, Status]]) -> pb.JobActs:
    return pb.JobActs(
        acts=[
            pb.JobActs.Act(job_id=str(job_id), done=done, status=to.STATUS_NUMBERS[status])
            for job_id, (done, status) in answers.items()
        ]
    )
