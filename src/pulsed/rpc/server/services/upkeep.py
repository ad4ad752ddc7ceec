"""The methods with which a worker does the upkeep for a server that does none."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pulsed.engine.enqueuing import publish_enqueued
from pulsed.errors import checked_seconds
from pulsed.handler import clean_text
from pulsed.handler.options import checked_count
from pulsed.model.audit import Operator
from pulsed.model.job import Status
from pulsed.model.retention import LONGEST, SHORTEST_STATS
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import jobs as to
from pulsed.rpc.messages import results, values
from pulsed.rpc.messages import schedules as to_schedule
from pulsed.rpc.server.access import Caller
from pulsed.rpc.server.checks import items as checks
from pulsed.rpc.server.services.backend import LARGEST_PAGE, Backend, operator_of
from pulsed.rpc.server.sized_page import SizedPage


class UpkeepService:
    """The methods of this name in the contract."""

    def __init__(self, backend: Backend) -> None:
        self._store = backend.store
        self._describe = backend.describe

    async def watchdog(self, request: pb.WatchdogRequest, caller: Caller) -> pb.WatchdogResponse:
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        return results.tick_message(await self._store.watchdog(limit=limit))

    async def list_due_schedules(
        self, request: pb.ListDueSchedulesRequest, caller: Caller
    ) -> pb.ListDueSchedulesResponse:
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        due = await self._store.schedules.due(limit, skip=max(0, request.skip))
        schedules = SizedPage(to_schedule.schedule_message)
        schedules.fill(due.rows)
        return pb.ListDueSchedulesResponse(
            schedules=schedules.messages,
            next_run_at=values.maybe_stamp(due.next_run_at),
            now=values.stamp(due.now),
        )

    async def fire_schedules(
        self, request: pb.FireSchedulesRequest, caller: Caller
    ) -> pb.FireSchedulesResponse:
        fires = [checks.fire(message) for message in request.fires]
        jobs = await self._store.schedules.fire(fires)
        publish_enqueued(self._store.events, jobs)
        return pb.FireSchedulesResponse(job_ids=[str(job.id) for job in jobs])

    async def set_schedule_error(
        self, request: pb.SetScheduleErrorRequest, caller: Caller
    ) -> pb.SetScheduleErrorResponse:
        row = checks.seen_schedule(request.schedule)
        await self._store.schedules.set_error(row, clean_text(request.reason))
        return pb.SetScheduleErrorResponse()

    async def take_turn(self, request: pb.TakeTurnRequest, caller: Caller) -> pb.TakeTurnResponse:
        length = checked_seconds("length_seconds", request.length_seconds, most=LONGEST)
        taken = await self._store.take_turn(length=length)
        return pb.TakeTurnResponse(taken=taken)

    async def prune_jobs(
        self, request: pb.PruneJobsRequest, caller: Caller
    ) -> pb.PruneJobsResponse:
        since = checks.converted(_since, request)
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        ages = checks.converted(_ages, request)
        by = self._pruning_operator(request, caller)
        pruned = await self._store.prune(ages, limit=limit, since=since, by=by)
        return results.pruned_message(pruned)

    async def prune_schedules(
        self, request: pb.PruneSchedulesRequest, caller: Caller
    ) -> pb.PruneSchedulesResponse:
        age = checked_seconds("age_seconds", request.age_seconds, most=LONGEST)
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        by = self._pruning_operator(request, caller)
        removed = await self._store.schedules.prune(age, limit=limit, by=by)
        return pb.PruneSchedulesResponse(removed=removed)

    def _pruning_operator(
        self, request: pb.PruneJobsRequest | pb.PruneSchedulesRequest, caller: Caller
    ) -> Operator | None:
        """Return the operator who prunes; None if a worker does it for a server without upkeep."""
        is_upkeep = not request.HasField("operator") and not self._describe().does_upkeep
        return None if is_upkeep else operator_of(request, caller)

    async def count_prunable(
        self, request: pb.PruneJobsRequest, caller: Caller
    ) -> pb.CountJobsResponse:
        counts = await self._store.prunable(checks.converted(_ages, request))
        return results.counts_message(counts)

    async def cascade(self, request: pb.CascadeRequest, caller: Caller) -> pb.CascadeResponse:
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        return pb.CascadeResponse(parents=await self._store.workflows.cascade(limit=limit))

    async def expire_jobs(
        self, request: pb.ExpireJobsRequest, caller: Caller
    ) -> pb.ExpireJobsResponse:
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        expired = await self._store.expire(limit=limit)
        return pb.ExpireJobsResponse(expired=map(results.expired_message, expired))

    async def fold_stats(
        self, request: pb.FoldStatsRequest, caller: Caller
    ) -> pb.FoldStatsResponse:
        limit = checked_count("limit", request.limit, 1, LARGEST_PAGE)
        keep = values.maybe(request, "keep_seconds")
        if keep is not None:
            checked_seconds("keep_seconds", keep, least=SHORTEST_STATS, most=LONGEST)
        return pb.FoldStatsResponse(rows=await self._store.rollups.fold(keep=keep, limit=limit))


def _since(request: pb.PruneJobsRequest) -> dict[Status, datetime]:
    """Return the watermarks of a prune."""
    return {
        to.STATUSES[age.status]: values.instant(age.since)
        for age in request.ages
        if age.HasField("since")
    }


def _ages(request: Any) -> dict[Status, float]:
    return {
        to.STATUSES[age.status]: checked_seconds("seconds", age.seconds, most=LONGEST)
        for age in request.ages
    }
