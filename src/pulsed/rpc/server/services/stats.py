"""The methods with which workers record statistics, and clients read them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pulsed.handler.options import checked_count, checked_due
from pulsed.model.job import JobFilter
from pulsed.model.rollup import HOUR, MOST_ERROR_KINDS, OTHERS, By, RollupFilter
from pulsed.rpc.generated import pulse_pb2 as pb
from pulsed.rpc.messages import rollups as to
from pulsed.rpc.messages import values
from pulsed.rpc.messages.errors import invalid
from pulsed.rpc.server.access import Caller
from pulsed.rpc.server.checks import items as checks
from pulsed.rpc.server.checks import rollups as rollup_checks
from pulsed.rpc.server.services.backend import Backend

LONGEST_STEP = 366 * 24 * HOUR
MOST_ROWS = 5_000
"""Rows in one request."""


class StatsService:
    """The methods of this name in the contract."""

    def __init__(self, backend: Backend) -> None:
        self._store = backend.store
        self._converted = backend.converted

    async def record_stats(
        self, request: pb.RecordStatsRequest, caller: Caller
    ) -> pb.RecordStatsResponse:
        recorder = checks.job_id_of(request.recorder)
        for items in (request.rollups, request.errors):
            checks.checked_batch(items, MOST_ROWS)
        rollups = await self._converted(rollup_checks.rollup, request.rollups, request, caller)
        errors = await self._converted(rollup_checks.error, request.errors, request, caller)
        lanes = {(each.topic or "", each.queue or "") for each in rollups}
        lanes |= {(each.topic, each.queue) for each in errors}
        for topic, queue in lanes - {(OTHERS, OTHERS)}:
            caller.check_job(topic, queue)
        now = await self._store.rollups.record(recorder, rollups, errors)
        return pb.RecordStatsResponse(now=values.stamp(now))

    async def get_series(
        self, request: pb.GetSeriesRequest, caller: Caller
    ) -> pb.GetSeriesResponse:
        step = request.step_seconds or None
        if step is not None:
            checked_count("step_seconds", step, 1, LONGEST_STEP)
        by: list[By] = ["queue"] if request.by_queue else []
        by += ["topic"] if request.by_topic else []
        found = await self._store.rollups.series(_filter_of(request, caller), step, by=by)
        return pb.GetSeriesResponse(
            since=values.stamp(found.range.since),
            until=values.stamp(found.range.until),
            step_seconds=found.range.step,
            span_seconds=found.range.span,
            rollups=map(to.rollup_message, found.rollups),
            cut=found.is_cut,
        )

    async def get_totals(
        self, request: pb.GetTotalsRequest, caller: Caller
    ) -> pb.GetTotalsResponse:
        found = await self._store.rollups.totals(_filter_of(request, caller))
        return pb.GetTotalsResponse(rollups=map(to.rollup_message, found), cut=found.is_cut)

    async def list_errors(
        self, request: pb.ListErrorsRequest, caller: Caller
    ) -> pb.ListErrorsResponse:
        where = _filter_of(request, caller)
        limit = checked_count("limit", request.limit, 1, MOST_ERROR_KINDS)
        found = await self._store.rollups.errors(where, limit=limit)
        return pb.ListErrorsResponse(errors=map(to.error_message, found), cut=found.is_cut)


def _filter_of(request: Any, caller: Caller) -> RollupFilter:
    """Return what to read; a caller with scopes has to name a queue or topic of its own."""
    since, until = _time_of(request)
    queue, topic = values.maybe(request, "queue"), values.maybe(request, "topic")
    caller.check_filter(JobFilter(queue=queue, topic=topic))
    return RollupFilter(since, until, queue, topic)


def _time_of(request: Any) -> tuple[datetime, datetime | None]:
    if not request.HasField("since"):
        raise invalid("since is required.")
    since = checked_due("since", checks.converted(values.instant, request.since))
    if not request.HasField("until"):
        return since, None
    return since, checked_due("until", checks.converted(values.instant, request.until))
