"""The targets, as data, and whether a run reached them.

A target is a ratio of two figures of the same run wherever possible, so that it means the same on
any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.results import PULSED, Results, ratio
from benchmarks.workloads.bulk_acts import ALONE as ALONE_OF_BULK
from benchmarks.workloads.bulk_acts import BESIDE
from benchmarks.workloads.drain import our_name, raw_name
from benchmarks.workloads.enqueue import at_once
from benchmarks.workloads.flatness import CLEAN, CONTROL, HELD, KINDS
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
from benchmarks.workloads.phases import PHASES, phase
from benchmarks.workloads.recovery import BOUND
from benchmarks.workloads.server import DIRECT, SLOTS, THROUGH, direct, through
from benchmarks.workloads.workflows import CHILDREN, COMMITS, ONE, PLAIN

Figure = Callable[[Results], float | None]
RATE = "jobs/s"


@dataclass(frozen=True)
class Target:
    """A line of the table."""

    what: str
    engine: str
    compared: str
    """With what, in words."""
    figure: Figure
    bound: float
    at_least: bool = True
    unit: str = "×"

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    @property
    def wanted(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.bound:g} {self.unit} {self.compared}".strip()


def _relative(workload: str, engine: str, ours: str, theirs: str, metric: str = RATE) -> Figure:
    return lambda results: ratio(
        results.find(workload, engine, ours, metric),
        results.find(workload, engine, theirs, metric),
    )


def _plain(workload: str, engine: str, metric: str, subject: str = PULSED) -> Figure:
    def figure(results: Results) -> float | None:
        found = results.find(workload, engine, subject, metric)
        return None if found is None else found.median

    return figure


def _beside_peers(engine: str, ours: str) -> Figure:
    """Compare a drain with the fastest of the peers that alternated with it."""

    def figure(results: Results) -> float | None:
        peers = [
            found
            for found in results.of("peers", engine)
            if found.metric == RATE and not found.subject.startswith(PULSED)
        ]
        fastest = max(peers, key=lambda peer: peer.median, default=None)
        return ratio(results.find("peers", engine, ours, RATE), fastest)

    return figure


def _memory_growth(engine: str) -> Figure:
    """Compare the memory after all jobs with that after the first fifth, when caches are full."""

    def figure(results: Results) -> float | None:
        tenths = [m for m in results.of("memory", engine) if m.subject.startswith(AFTER)]
        return ratio(tenths[-1], tenths[1]) if tenths else None

    return figure


def _targets() -> list[Target]:
    found: list[Target] = []
    best = {"postgres": "asyncpg", "sqlite": "sqlite3"}
    bounds = {"postgres": (0.7, 0.95, 0.35), "sqlite": (0.25, 0.8, 0.08)}
    for engine, driver in best.items():
        one, two, plain = bounds[engine]
        raw_100, raw_500 = raw_name(driver, 100), raw_name(driver, 500)
        for slots, raw in ((100, raw_100), (500, raw_500)):
            found += [
                Target(
                    f"drain, one process, {slots} slots",
                    engine,
                    raw,
                    _relative("drain", engine, our_name(1, slots), raw),
                    one,
                ),
                Target(
                    f"drain, two processes, {slots} slots",
                    engine,
                    "one process",
                    _relative("drain", engine, our_name(2, slots), our_name(1, slots)),
                    two,
                ),
            ]
        found.append(
            Target(
                "drain, plain functions",
                engine,
                raw_100,
                _relative("drain", engine, f"{PULSED}, plain functions", raw_100),
                plain,
            )
        )
        found.append(
            Target(
                "drain beside a bulk operation",
                engine,
                "the same alone",
                _relative("bulk-acts", engine, BESIDE, ALONE_OF_BULK),
                0.8,
            )
        )
        found += [
            Target(
                what,
                engine,
                base,
                _relative("limits", engine, subject, base),
                goal,
            )
            for what, subject, base, goal in (
                ("drain under a limit", ONE_KEY, UNLIMITED, 0.5),
                ("drain with a key for each job", DISTINCT, UNLIMITED, 0.4),
                ("drain beside a full key", BLOCKED, ALONE_OF_LIMITS, 0.9),
            )
        ]
        found += _peer_targets(engine)
        found += _server_targets(engine)
        found += _enqueue_targets(engine)
        found += _latency_targets(engine)
        found += _flatness_targets(engine)
        found += _workflow_targets(engine)
        found += _footprint_targets(engine)
        found += _operator_targets(engine)
        found += _page_targets(engine)
        found += _observed_targets(engine)
    return found


def _peer_targets(engine: str) -> list[Target]:
    if engine == "sqlite":
        figure = _beside_peers(engine, our_name(1, 100))
        return [Target("drain, one process, 100 slots", engine, "Huey", figure, 12)]
    what = {
        "drain, one process, 100 slots": our_name(1, 100),
        "drain, one process, 500 slots": our_name(1, 500),
        "drain, one process, 2,000 slots": our_name(1, 2_000),
        "drain, two processes, 100 slots": our_name(2, 100),
    }
    return [
        Target(name, engine, "the fastest peer", _beside_peers(engine, ours), 1)
        for name, ours in what.items()
    ]


def _server_targets(engine: str) -> list[Target]:
    if engine == "sqlite":
        return []
    drains = [
        Target(
            f"drain through the server, {slots} slots",
            engine,
            "the database directly",
            _relative("server", engine, through(slots), direct(slots)),
            0.5,
        )
        for slots in SLOTS
    ]
    pickup = Target(
        "idle pick-up through the server, p99",
        engine,
        "the database directly",
        _relative("server-pickup", engine, THROUGH, DIRECT, "p99 ms"),
        2,
        at_least=False,
    )
    return [*drains, pickup]


def _enqueue_targets(engine: str) -> list[Target]:
    if engine == "postgres":
        single, many = ("raw psycopg", 0.85), ("raw asyncpg unnest", 0.5)
        alone = ("raw asyncpg", 0.8)
    else:
        single, many = ("raw sqlite3", 0.8), ("raw sqlite3 executemany", 0.35)
        alone = ("raw sqlite3", 0.6)
    return [
        Target(
            "enqueue one by one",
            engine,
            single[0],
            _relative("enqueue", engine, PULSED, single[0]),
            single[1],
        ),
        Target(
            "aenqueue one by one",
            engine,
            alone[0],
            _relative("aenqueue", engine, at_once(1), alone[0]),
            alone[1],
        ),
        Target(
            "aenqueue, 100 callers at once",
            engine,
            "one caller",
            _relative("aenqueue", engine, at_once(100), at_once(1)),
            8,
        ),
        *(
            Target(
                f"bulk enqueue, {call}",
                engine,
                many[0],
                _relative("bulk", engine, f"{PULSED} {call}", many[0]),
                many[1],
            )
            for call in ("enqueue_many", "enqueue_iter", "aenqueue_many")
        ),
    ]


def _latency_targets(engine: str) -> list[Target]:
    recovery = Target(
        "recovery after SIGKILL",
        engine,
        "lease and tick",
        _relative("recovery", engine, PULSED, BOUND, "s after the kill"),
        1,
        at_least=False,
    )
    if engine == "sqlite":
        p50 = _plain("pickup", engine, "p50 ms")
        return [
            Target("idle pick-up, p50", engine, "", p50, 2.5, at_least=False, unit="ms"),
            recovery,
        ]
    return [
        Target(
            f"idle pick-up, p{percent}",
            engine,
            "raw LISTEN/NOTIFY",
            _relative("pickup", engine, PULSED, "raw LISTEN/NOTIFY", f"p{percent} ms"),
            bound,
            at_least=False,
        )
        for percent, bound in ((50, 1.3), (99, 2))
    ] + [recovery]


def _flatness_targets(engine: str) -> list[Target]:
    words = {
        "future": "drain beside future jobs",
        "finished": "drain beside finished jobs",
        "foreign": "drain beside due jobs without a handler",
    }
    found = [
        Target(
            words[kind],
            engine,
            "the clean rate",
            _relative("beside", engine, subject, CLEAN),
            0.85,
        )
        for kind, subject in KINDS.items()
    ]
    if engine == "postgres":
        held = _relative("snapshot", engine, HELD, CONTROL)
        found.append(Target("drain under a held snapshot", engine, "the control", held, 0.85))
        clean, idle = (phase(name) for name in PHASES[:2])
        beside = _relative("phases", engine, idle, clean)
        found.append(
            Target("steady load beside an idle transaction", engine, "the clean phase", beside, 0.9)
        )
    return found


def _workflow_targets(engine: str) -> list[Target]:
    return [
        Target(
            "steps of one workflow",
            engine,
            "single commits",
            _relative("steps", engine, ONE, COMMITS, "steps/s"),
            0.6,
        ),
        Target(
            "fan-out",
            engine,
            "plain jobs",
            _relative("fan-out", engine, CHILDREN, PLAIN),
            0.6,
        ),
    ]


def _observed_targets(engine: str) -> list[Target]:
    return [
        Target(
            f"processor time of a job{mode.removeprefix(PULSED)}",
            engine,
            "without",
            _relative("observed", engine, mode, OFF, COST),
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

    def relative(ours: str, theirs: str, metric: str) -> Figure:
        return _relative("pages", engine, ours, theirs, metric)

    memory = relative(MEMORY_AFTER, MEMORY_BEFORE, MEMORY)
    pickup = relative(WATCHED, ALONE, PICKUP)
    drain = relative(WATCHED, ALONE, RATE)
    alone = "without tabs"
    return [
        Target("pages: the slowest p95", engine, "", slowest, 150, at_least=False, unit="ms"),
        Target("dashboard memory, growth", engine, "at first", memory, 1.05, at_least=False),
        Target("pick-up beside ten tabs, p50", engine, alone, pickup, 1.3, at_least=False),
        Target("drain beside ten tabs", engine, alone, drain, 0.85),
    ]


def _footprint_targets(engine: str) -> list[Target]:
    cpu = _plain("idle", engine, "% of a core")
    most = 60 if engine == "postgres" else 50
    resident = _plain("memory", engine, "MB resident", MOST)
    found = [
        Target("idle worker, processor", engine, "", cpu, 1, at_least=False, unit="% of a core")
    ]
    if engine == "postgres":
        asked = _plain("idle", engine, "queries/s")
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


TARGETS = _targets()
