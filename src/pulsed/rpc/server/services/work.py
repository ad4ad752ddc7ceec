"""The methods of workers, apart from the stream that brings them jobs."""

from __future__ import annotations

from pulsed.model.job import Lease
from pulsed.model.outcome import Released, Report
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages.errors import lost
from pulsed.rpc.server.access import Caller
from pulsed.rpc.server.checks import items as checks
from pulsed.rpc.server.json_text import checked_json
from pulsed.rpc.server.scopes import is_own
from pulsed.rpc.server.services.backend import Backend


class WorkService:
    """The methods of this name in the contract."""

    def __init__(self, backend: Backend) -> None:
        self._store = backend.store
        self._scopes = backend.scopes
        self._converted = backend.converted
        self._check_batch = backend.check_batch
        self._hint = backend.hint

    async def report_result(self, request: pb.Report, caller: Caller) -> pb.ReportResultResponse:
        (report,) = await self._converted(checks.report_of, [request], request, caller)
        await self._scopes.check_reports([report], caller)
        if report.lease not in await self._store.settle([report]):
            raise lost(report.lease.job_id)
        return pb.ReportResultResponse()

    async def report_results(
        self, request: pb.ReportResultsRequest, caller: Caller
    ) -> pb.ReportResultsResponse:
        self._check_batch(request.succeeded.results)
        reports = await self._converted(checks.report_of, request.reports, request, caller)
        columns = [request.succeeded] if request.HasField("succeeded") else []
        runs = None
        if columns and not request.skip_locked:
            (runs,) = await self._converted(checks.successes_of, columns, request, caller)
        if runs is not None:
            await self._scopes.check_reports(reports, caller, also=runs.job_ids)
            if await self._store.settle_successes(runs):
                return await self._settle(reports, also=len(runs.job_ids))
        for more in await self._converted(checks.reports_of, columns, request, caller):
            reports += more
        await self._scopes.check_reports(reports, caller)
        return await self._settle(reports, skip_locked=request.skip_locked)

    async def release(self, request: pb.ReleaseRequest, caller: Caller) -> pb.ReportResultsResponse:
        leases = await self._converted(checks.lease, request.leases, request, caller)
        await self._scopes.check_leases(leases, caller)
        return await self._settle([Report(lease, Released()) for lease in leases])

    async def _settle(
        self, reports: list[Report], *, also: int = 0, skip_locked: bool = False
    ) -> pb.ReportResultsResponse:
        """Settle checked reports; ``also`` so many runs in columns were accepted before them."""
        if not reports:
            return pb.ReportResultsResponse(accepted=[True] * also)
        if skip_locked:
            accepted, locked = await self._store.settle_free(reports)
        else:
            accepted, locked = await self._store.settle(reports), set()
        if any(type(report.outcome) is Released for report in reports):
            self._hint()  # another worker can claim it at once
        if len(accepted) == len(reports) and not accepted.cancelled:
            return pb.ReportResultsResponse(accepted=[True] * (len(reports) + also))
        return pb.ReportResultsResponse(
            accepted=[each.lease in accepted for each in reports] + [True] * also,
            locked=_places(reports, locked),
            cancelled=_places(reports, accepted.cancelled),
        )

    async def heartbeat(
        self, request: pb.HeartbeatRequest, caller: Caller, within: float | None = None
    ) -> pb.HeartbeatResponse:
        leases = await self._converted(checks.lease, request.leases, request, caller)
        await self._scopes.check_leases(leases, caller, urgent=True)
        answers = await self._store.beat([*dict.fromkeys(leases)], within=within)
        return pb.HeartbeatResponse(answers=[to.BEAT_NUMBERS[answers[each]] for each in leases])

    async def list_leases(
        self, request: pb.ListLeasesRequest, caller: Caller
    ) -> pb.ListLeasesResponse:
        worker_id = checks.job_id_of(request.worker_id)
        leases = await self._store.held(worker_id, asked_to_stop=request.asked_to_stop)
        if caller.is_limited:
            places = await self._store.places([lease.job_id for lease in leases])
            leases = [lease for lease in leases if is_own(places.get(lease.job_id), caller)]
        return pb.ListLeasesResponse(
            leases=map(to.lease_message, leases), asked_to_stop=request.asked_to_stop
        )

    async def progress(self, request: pb.ProgressRequest, caller: Caller) -> pb.ProgressResponse:
        lease = checks.lease(request.lease)
        checked_json("The progress", request.progress)
        await self._scopes.check_leases([lease], caller)
        accepted = await self._store.set_progress(lease, request.progress)
        return pb.ProgressResponse(accepted=accepted)

    async def register_worker(
        self, request: pb.Worker, caller: Caller
    ) -> pb.RegisterWorkerResponse:
        checks.check_worker(request)
        caller.check_topics_and_queues(request.topics, request.queues)
        await self._scopes.check_worker(checks.job_id_of(request.id), caller)
        return pb.RegisterWorkerResponse(request=await self._store.announce(to.worker_of(request)))

    async def retire_worker(
        self, request: pb.RetireWorkerRequest, caller: Caller
    ) -> pb.RetireWorkerResponse:
        worker_id = checks.job_id_of(request.worker_id)
        await self._scopes.check_worker(worker_id, caller)
        await self._store.retire(worker_id)
        return pb.RetireWorkerResponse()


def _places(reports: list[Report], leases: set[Lease]) -> list[int]:
    return [place for place, each in enumerate(reports) if each.lease in leases]
