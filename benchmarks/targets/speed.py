"""How fast jobs go in and out: the targets of drains, enqueueing, pick-up and flatness."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.peers.peer import GRAPHILE, GRAPHILE_MANY, HUEY_PICKUP, PEERS, PG_BOSS_WORK
from benchmarks.results import PULSED
from benchmarks.targets.target import Target, beside_fastest, plain, relative
from benchmarks.workloads.drain import PLAIN, SLOTS, bare_name, one_connection_name, our_name
from benchmarks.workloads.enqueue import BARE, BARE_ASYNC, BARE_MANY, at_once
from benchmarks.workloads.flatness import CLEAN, CONTROL, HELD, KINDS
from benchmarks.workloads.latency import ASYNC
from benchmarks.workloads.latency import BARE as BARE_PICKUP
from benchmarks.workloads.phases import PHASES, phase
from benchmarks.workloads.recovery import BOUND
from benchmarks.workloads.server import DIRECT, THROUGH, direct, through

TITLES = {peer.title for peer in PEERS.values()}


def speed_targets(engine: str) -> list[Target]:
    return [
        *_drain_targets(engine),
        *_peer_targets(engine),
        *_process_targets(engine),
        *_server_targets(engine),
        *_enqueue_targets(engine),
        *_pickup_targets(engine),
        *_flatness_targets(engine),
    ]


def _drain_targets(engine: str) -> list[Target]:
    """Compare with the driver alone, which claims as many at a time, and with it at its best.

    On PostgreSQL that is on two connections; a loop on one is the simplest that a program can have.
    """
    wanted = {"postgres": (0.7, 0.6, 0.45), "sqlite": (0.2, 0.18, 0.15)}
    many, few, plain_functions = wanted[engine]
    lines = (
        (f"drain, {SLOTS[1]} slots", our_name(1, SLOTS[1]), SLOTS[1], many),
        (f"drain, {SLOTS[0]} slots", our_name(1, SLOTS[0]), SLOTS[0], few),
        (f"drain, {SLOTS[0]} slots", our_name(1, SLOTS[0]), SLOTS[1], few),
        ("drain, plain functions", PLAIN, SLOTS[0], plain_functions),
        ("drain, plain functions", PLAIN, SLOTS[1], plain_functions),
    )
    loops: list[Callable[[int], str]] = [partial(bare_name, engine)]
    if engine == "postgres":
        loops.insert(0, one_connection_name)
    return [
        Target(what, engine, loop(batch), relative("drain", engine, ours, loop(batch)), bound)
        for what, ours, batch, bound in lines
        for loop in loops
    ]


def _peer_targets(engine: str) -> list[Target]:
    def drain(slots: int, rival: str, is_rival: set[str], bound: float = 1) -> Target:
        ours = our_name(1, slots)
        figure = beside_fastest("drain", engine, ours, is_rival=is_rival.__contains__)
        return Target(f"drain, {slots} slots", engine, rival, figure, bound, rival=True)

    if engine == "sqlite":
        return [drain(slots, "Huey at its fastest", TITLES, 10) for slots in SLOTS]
    rivals = {
        GRAPHILE.title: {GRAPHILE.title},
        PG_BOSS_WORK.title: {PG_BOSS_WORK.title},
        "the fastest peer": TITLES,
    }
    return [drain(slots, name, those, 1) for slots in SLOTS for name, those in rivals.items()]


def _process_targets(engine: str) -> list[Target]:
    bound = 0.95 if engine == "postgres" else 0.8
    return [
        Target(
            f"drain, two processes, {slots} slots",
            engine,
            "one process",
            relative("processes", engine, our_name(2, slots), our_name(1, slots)),
            bound,
        )
        for slots in SLOTS
    ]


def _server_targets(engine: str) -> list[Target]:
    if engine == "sqlite":
        return []
    drains = [
        Target(
            f"drain through the server, {slots} slots",
            engine,
            "the database directly",
            relative("server", engine, through(slots), direct(slots)),
            0.65,
        )
        for slots in SLOTS
    ]
    pickup = Target(
        "idle pick-up through the server, p99",
        engine,
        "the database directly",
        relative("server-pickup", engine, THROUGH, DIRECT, "p99 ms"),
        1.8,
        at_least=False,
    )
    return [*drains, pickup]


def _enqueue_targets(engine: str) -> list[Target]:
    alone, alone_async, many = BARE[engine], BARE_ASYNC[engine], BARE_MANY[engine]
    singly = {"postgres": 0.8, "sqlite": 0.6}[engine]
    found = [
        Target(
            "enqueue one by one",
            engine,
            alone,
            relative("enqueue", engine, PULSED, alone),
            0.8,
        ),
        Target(
            "aenqueue one by one",
            engine,
            alone_async,
            relative("aenqueue", engine, at_once(1), alone_async),
            singly,
        ),
        Target(
            "aenqueue, 100 callers at once",
            engine,
            "one caller",
            relative("aenqueue", engine, at_once(100), at_once(1)),
            8,
        ),
    ]
    found += [
        Target(
            f"bulk enqueue, {call}",
            engine,
            many,
            relative("bulk", engine, f"{PULSED} {call}", many),
            0.5,
        )
        for call in ("enqueue_many", "enqueue_iter", "aenqueue_many")
    ]
    if engine == "postgres":
        theirs = GRAPHILE_MANY.title
        figure = relative("bulk", engine, f"{PULSED} aenqueue_many", theirs)
        found.append(Target("bulk enqueue, aenqueue_many", engine, theirs, figure, 1, rival=True))
    return found


def _pickup_targets(engine: str) -> list[Target]:
    recovery = Target(
        "recovery after SIGKILL",
        engine,
        "lease and tick",
        relative("recovery", engine, PULSED, BOUND, "s after the kill"),
        1,
        at_least=False,
    )
    if engine == "postgres":
        theirs, bounds, rival = BARE_PICKUP, {50: 1.4, 99: 1.5}, False
    else:
        theirs, bounds, rival = HUEY_PICKUP[0].title, {50: 1, 99: 1}, True
    found = [
        Target(
            f"idle pick-up{ours.removeprefix(PULSED)}, p{percent}",
            engine,
            theirs,
            relative("pickup", engine, ours, theirs, f"p{percent} ms"),
            bound,
            at_least=False,
            rival=rival,
        )
        for ours in (PULSED, ASYNC)
        for percent, bound in bounds.items()
    ]
    if engine == "sqlite":
        p50 = plain("pickup", engine, "p50 ms")
        found.append(Target("idle pick-up, p50", engine, "", p50, 2.5, at_least=False, unit="ms"))
    return [*found, recovery]


def _flatness_targets(engine: str) -> list[Target]:
    words = {
        "future": "drain beside future jobs",
        "finished": "drain beside finished jobs",
        "foreign": "drain beside due jobs without a handler",
    }
    found = [
        Target(
            words[kind], engine, "the clean rate", relative("beside", engine, subject, CLEAN), 0.9
        )
        for kind, subject in KINDS.items()
    ]
    if engine == "postgres":
        held = relative("snapshot", engine, HELD, CONTROL)
        found.append(Target("drain under a held snapshot", engine, "the control", held, 0.9))
        clean, idle = (phase(name) for name in PHASES[:2])
        beside = relative("phases", engine, idle, clean)
        found.append(
            Target("steady load beside an idle transaction", engine, "the clean phase", beside, 0.9)
        )
    return found
