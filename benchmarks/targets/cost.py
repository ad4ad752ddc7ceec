"""What features and operation cost: the targets of limits, workflows, pages and footprint."""

from __future__ import annotations

from benchmarks.results import PULSED, Results, ratio
from benchmarks.targets.target import RATE, Figure, Target, plain, relative
from benchmarks.workloads.bulk_acts import ALONE as ALONE_OF_BULK
from benchmarks.workloads.bulk_acts import BESIDE
from benchmarks.workloads.footprint import AFTER, MOST
from benchmarks.workloads.limits import ALONE as ALONE_OF_LIMITS
from benchmarks.workloads.limits import BLOCKED, DISTINCT, ONE_KEY, UNLIMITED
from benchmarks.workloads.observed import COST, METRICS, OFF, STATISTICS
from benchmarks.workloads.operators import WAIT
from benchmarks.workloads.pages import (
    ALONE,
    COLD,
    MEMORY,
    MEMORY_AFTER,
    MEMORY_BEFORE,
    PICKUP,
    WATCHED,
)
from benchmarks.workloads.workflows import CHILDREN, COMMITS, ONE, PLAIN


def cost_targets(engine: str) -> list[Target]:
    return [
        *_limit_targets(engine),
        *_workflow_targets(engine),
        *_footprint_targets(engine),
        *_operator_targets(engine),
        *_page_targets(engine),
        *_observed_targets(engine),
    ]


def _limit_targets(engine: str) -> list[Target]:
    limits = (
        ("drain under a limit", ONE_KEY, UNLIMITED, 0.5),
        ("drain with a key for each job", DISTINCT, UNLIMITED, 0.4),
        ("drain beside a full key", BLOCKED, ALONE_OF_LIMITS, 0.9),
    )
    bulk = relative("bulk-acts", engine, BESIDE, ALONE_OF_BULK)
    return [
        Target("drain beside a bulk operation", engine, "the same alone", bulk, 0.8),
        *(
            Target(what, engine, base, relative("limits", engine, subject, base), goal)
            for what, subject, base, goal in limits
        ),
    ]


def _workflow_targets(engine: str) -> list[Target]:
    return [
        Target(
            "steps of one workflow",
            engine,
            "single commits",
            relative("steps", engine, ONE, COMMITS, "steps/s"),
            0.6,
        ),
        Target(
            "fan-out",
            engine,
            "plain jobs",
            relative("fan-out", engine, CHILDREN, PLAIN),
            0.6,
        ),
    ]


def _observed_targets(engine: str) -> list[Target]:
    return [
        Target(
            f"processor time of a job{mode.removeprefix(PULSED)}",
            engine,
            "without",
            relative("observed", engine, mode, OFF, COST),
            1.05,
            at_least=False,
        )
        for mode in (STATISTICS, METRICS)
    ]


def _operator_targets(engine: str) -> list[Target]:
    def slowest(results: Results) -> float | None:
        waits = [m.median for m in results.of("operators", engine) if m.metric == WAIT]
        return max(waits, default=None)

    what = "lists, counts and acts: the slowest answer"
    return [Target(what, engine, "", slowest, 200, at_least=False, unit="ms")]


def _page_targets(engine: str) -> list[Target]:
    def slowest(results: Results) -> float | None:
        pages = [m.median for m in results.of("pages", engine) if m.metric == COLD]
        return max(pages, default=None)

    def compared(ours: str, theirs: str, metric: str) -> Figure:
        return relative("pages", engine, ours, theirs, metric)

    memory = compared(MEMORY_AFTER, MEMORY_BEFORE, MEMORY)
    pickup = compared(WATCHED, ALONE, PICKUP)
    drain = compared(WATCHED, ALONE, RATE)
    alone = "without tabs"
    return [
        Target("pages: the slowest p95", engine, "", slowest, 150, at_least=False, unit="ms"),
        Target("dashboard memory, growth", engine, "at first", memory, 1.05, at_least=False),
        Target("pick-up beside ten tabs, p50", engine, alone, pickup, 1.3, at_least=False),
        Target("drain beside ten tabs", engine, alone, drain, 0.85),
    ]


def _footprint_targets(engine: str) -> list[Target]:
    cpu = plain("idle", engine, "% of a core")
    most = 60 if engine == "postgres" else 50
    resident = plain("memory", engine, "MB resident", MOST)
    found = [
        Target("idle worker, processor", engine, "", cpu, 1, at_least=False, unit="% of a core")
    ]
    if engine == "postgres":
        asked = plain("idle", engine, "queries/s")
        found.append(
            Target("idle worker, queries", engine, "", asked, 3, at_least=False, unit="per second")
        )
    return [
        *found,
        Target("worker memory", engine, "", resident, most, at_least=False, unit="MB resident"),
        Target(
            "worker memory, growth",
            engine,
            "that of the first fifth",
            _memory_growth(engine),
            1.05,
            at_least=False,
        ),
    ]


def _memory_growth(engine: str) -> Figure:
    """Compare the memory after all jobs with that after the first fifth, when caches are full."""

    def figure(results: Results) -> float | None:
        tenths = [m for m in results.of("memory", engine) if m.subject.startswith(AFTER)]
        return ratio(tenths[-1], tenths[1]) if tenths else None

    return figure
