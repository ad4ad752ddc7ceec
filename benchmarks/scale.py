"""How much of everything a run does: enough for a figure, for a glance, or for a test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The sizes of a run."""

    repeat: int = 3
    """Samples of each figure, taken in turns with what it is compared to."""
    long_drain: int = 200_000
    """Jobs in a drain that is compared with the bare driver and with peers; slow ones get fewer."""
    drain: int = 40_000
    """Jobs in any other drain."""
    enqueue: int = 1_500
    """Jobs enqueued one by one."""
    bulk: int = 20_000
    """Jobs enqueued in bulk."""
    beside: int = 1_000_000
    """Rows that have nothing to do with what is measured."""
    under_snapshot: int = 100_000
    """Jobs drained under a held snapshot before the measurement."""
    steady_seconds: float = 5.0
    steady_rates: tuple[int, ...] = (100, 500, 1_000)
    """Jobs per second of the open-loop load."""
    pickups: int = 400
    """Jobs that an idle worker picks up; of a few, one moment of the disk decides the p99."""
    visits: int = 40
    """Requests of each page of the dashboard; of a few, one moment of the machine is the p95."""
    kills: int = 3
    """Workers killed to see when their jobs run elsewhere."""
    idle_seconds: float = 30.0
    """Long enough for several ticks of the watchdog, each of several queries."""
    phase_seconds: float = 90.0
    """Of each phase under a steady load."""
    observed: int = 300_000
    """Jobs drained with and without statistics and metrics, in turns."""
    memory: int = 200_000
    """Jobs over which the memory of a worker is watched."""
    steps: int = 1_000
    """Steps of one workflow."""
    children: int = 10_000
    """Children of a fan-out."""
    drain_limit: float = 45.0
    """Seconds after which a drain is cut off, and its rate taken from what was done."""
    peers: tuple[str, ...] = ()
    """The peers that drain in turns with pulsed."""


FIGURE = Scale()
LONG = Scale(memory=1_000_000)
GLANCE = Scale(
    repeat=1,
    long_drain=12_000,
    drain=6_000,
    enqueue=300,
    bulk=10_000,
    beside=50_000,
    under_snapshot=10_000,
    steady_seconds=2.0,
    steady_rates=(200,),
    pickups=40,
    visits=10,
    kills=1,
    idle_seconds=10.0,
    phase_seconds=6.0,
    observed=60_000,
    memory=20_000,
    steps=200,
    children=2_000,
    drain_limit=10.0,
)
