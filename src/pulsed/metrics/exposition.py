"""The metrics of a process, in the text formats of Prometheus and OpenMetrics.

Needs the extra ``metrics``. Every metric is made here, when it is scraped, from
``ProcessCounts``, from the state of the process and from what was read of the database. Labels are
bounded: queues, topics, limits and operations up to a number, outcomes; never an id.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from pulsed.metrics.counts import NAMES, ProcessCounts
from pulsed.metrics.endpoint import Answer
from pulsed.metrics.load import Loads
from pulsed.metrics.process import ProcessState
from pulsed.model.buckets import BOUNDS
from pulsed.model.control import ControlScope
from pulsed.model.rollup import Durations
from pulsed.version import __version__

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
LANE = ("queue", "topic")


def encoded(metrics: Iterable[Metric], headers: Mapping[str, str]) -> Answer:
    """Return metrics in the format that a scraper accepts."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_Made(list(metrics)))
    if "application/openmetrics-text" in headers.get("accept", ""):
        text = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
        return Answer(HTTPStatus.OK, text, openmetrics.CONTENT_TYPE_LATEST)
    return Answer(HTTPStatus.OK, generate_latest(registry), PLAIN)


class _Made(Collector):
    """Metrics that have been made already."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def metrics_of(counts: ProcessCounts, state: ProcessState, loads: Loads) -> Iterator[Metric]:
    """Make all metrics."""
    build = {"version": __version__, "python": platform.python_version()}
    yield InfoMetricFamily("pulsed_build", "The running version of pulsed.", value=build)
    yield from _of_runs(counts)
    yield from _of_engine(counts)
    yield from _of_process(state)
    yield from _of_database(loads)
    yield from _of_controls(loads)


# -- counted ---------------------------------------------------------------------------------------


def _of_runs(counts: ProcessCounts) -> Iterator[Metric]:
    lanes = list(counts.lanes.items())
    enqueued = CounterMetricFamily(
        "pulsed_jobs_enqueued", "Jobs that this process enqueued.", labels=LANE
    )
    attempts = CounterMetricFamily(
        "pulsed_attempts",
        "Runs that have ended, by how they ended.",
        labels=(*LANE, "outcome"),
    )
    dead = CounterMetricFamily("pulsed_dead_letters", "Jobs that became dead letters.", labels=LANE)
    expired = CounterMetricFamily(
        "pulsed_jobs_expired",
        "Jobs that this process ended because no worker had started them in time.",
        labels=LANE,
    )
    waits = HistogramMetricFamily(
        "pulsed_job_wait_seconds", "Time from when a job was due until it started.", labels=LANE
    )
    runs = HistogramMetricFamily(
        "pulsed_job_run_seconds",
        "Time that a run took which succeeded, failed or was cancelled.",
        labels=LANE,
    )
    for labels, lane in lanes:
        enqueued.add_metric(labels, lane.enqueued)
        for name, number in zip(NAMES, lane.outcomes, strict=True):
            attempts.add_metric((*labels, name), number)
        dead.add_metric(labels, lane.dead_lettered)
        expired.add_metric(labels, lane.expired)
        _add_histogram(waits, labels, lane.wait)
        _add_histogram(runs, labels, lane.run)
    yield from (enqueued, attempts, dead, expired, waits, runs)


def _of_engine(counts: ProcessCounts) -> Iterator[Metric]:
    claimed = CounterMetricFamily(
        "pulsed_jobs_claimed", "Jobs that this process claimed.", labels=["queue"]
    )
    claims = HistogramMetricFamily(
        "pulsed_claim_seconds", "Time that claims took, storage retries included.", labels=["queue"]
    )
    for queue, each in list(counts.claims.items()):
        claimed.add_metric([queue], each.jobs)
        _add_histogram(claims, [queue], each.took)
    retries = CounterMetricFamily(
        "pulsed_storage_retries",
        "Operations of the database that failed and were tried again.",
        labels=["operation"],
    )
    for operation, number in list(counts.retries.items()):
        retries.add_metric([operation], number[0])
    expired = CounterMetricFamily(
        "pulsed_leases_expired",
        "Runs that this process ended because their workers went silent.",
        value=counts.leases_expired,
    )
    yield from (claimed, claims, retries, expired)
    if counts.listening is not None:
        yield GaugeMetricFamily(
            "pulsed_listener_connected",
            "Whether notifications of new jobs arrive; without them, workers poll.",
            value=counts.listening,
        )


def _add_histogram(
    family: HistogramMetricFamily, labels: Iterable[str], durations: Durations
) -> None:
    sums = accumulate(durations.counts)
    bounds = (*map(str, BOUNDS), "+Inf")
    family.add_metric(list(labels), list(zip(bounds, sums, strict=True)), durations.seconds)


# -- now -------------------------------------------------------------------------------------------


def _of_process(state: ProcessState) -> Iterator[Metric]:
    gauge = GaugeMetricFamily
    yield gauge(
        "pulsed_draining", "Whether this process takes no more work.", value=state.is_draining
    )
    if (worker := state.worker) is not None:
        yield gauge("pulsed_worker_slots", "Jobs that this worker can run.", value=worker.slots)
        yield gauge("pulsed_worker_slots_used", "Slots that run a job.", value=worker.running)
        yield gauge(
            "pulsed_worker_slots_stuck", "Slots whose job does not stop.", value=worker.stuck
        )
        yield gauge(
            "pulsed_worker_failing",
            "Whether the worker's last claims failed.",
            value=worker.state == "failing",
        )
    if (server := state.server) is not None:
        yield gauge(
            "pulsed_server_streams", "Workers connected to this server.", value=server.streams
        )
        yield CounterMetricFamily(
            "pulsed_server_calls_refused", "Calls that this server refused.", value=server.refused
        )


def _of_database(loads: Loads) -> Iterator[Metric]:
    gauge = GaugeMetricFamily
    yield gauge(
        "pulsed_database_up",
        "Whether the database answered in time; if not, numbers of queues are old or missing.",
        value=loads.is_up,
    )
    due = gauge(
        "pulsed_queue_due_jobs", "Jobs that are due; of a long queue a lower bound.", labels=LANE
    )
    capped = gauge(
        "pulsed_queue_due_capped", "Whether there are more due jobs than counted.", labels=LANE
    )
    oldest = gauge(
        "pulsed_queue_oldest_due_seconds", "For how long the oldest job has been due.", labels=LANE
    )
    running = gauge("pulsed_queue_running_jobs", "Jobs that run, on any worker.", labels=LANE)
    total = gauge(
        "pulsed_queue_load_jobs",
        "Jobs that are due or run: what to scale workers by.",
        labels=["queue"],
    )
    if loads.age is not None:
        yield gauge(
            "pulsed_database_read_age_seconds", "Age of the numbers of queues.", value=loads.age
        )
        for lane, load in loads.lanes.items():
            due.add_metric(lane, load.due)
            capped.add_metric(lane, load.at_least)
            oldest.add_metric(lane, load.oldest)
            running.add_metric(lane, load.running)
        for queue, number in loads.by_queue.items():
            total.add_metric([queue], number)
    yield from (due, capped, oldest, running, total)


def _of_controls(loads: Loads) -> Iterator[Metric]:
    gauge = GaugeMetricFamily
    paused = gauge("pulsed_queue_paused", "Whether the queue is paused.", labels=["queue"])
    most = gauge(
        "pulsed_queue_running_limit", "Jobs of the queue that may run at once.", labels=["queue"]
    )
    queues = loads.controls(ControlScope.QUEUE)
    for name in sorted({*loads.by_queue, *(queue.name for queue in queues)}):
        paused.add_metric([name], any(each.name == name and each.paused for each in queues))
    for queue in queues:
        if queue.numbers.running is not None:
            most.add_metric([queue.name], queue.numbers.running)
    topics = gauge(
        "pulsed_topic_paused", "Whether the topic is paused, in all queues.", labels=["topic"]
    )
    for topic in loads.controls(ControlScope.TOPIC):
        topics.add_metric([topic.name], topic.paused)
    yield from (paused, most, topics, *_of_limits(loads))


def _of_limits(loads: Loads) -> Iterator[Metric]:
    def gauge(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, text, labels=["limit"])

    paused = gauge("pulsed_limit_paused", "Whether the limit is paused.")
    running = gauge("pulsed_limit_running_jobs", "Jobs of the limit that run, of all its keys.")
    waiting = gauge(
        "pulsed_limit_waiting_jobs",
        "Jobs of the limit that have to start; of very many a lower bound.",
    )
    most = gauge("pulsed_limit_running_limit", "Jobs that may run at once, of each key.")
    full = gauge(
        "pulsed_limit_full_keys", "Keys, of the busiest ones, that are full while jobs wait."
    )
    for limit in loads.limits:
        paused.add_metric([limit.name], limit.paused)
        running.add_metric([limit.name], limit.running)
        waiting.add_metric([limit.name], limit.waiting)
        full.add_metric([limit.name], len(limit.full))
        if limit.most_running is not None:
            most.add_metric([limit.name], limit.most_running)
    yield from (paused, running, waiting, most, full)
