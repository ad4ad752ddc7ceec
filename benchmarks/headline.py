"""Where pulsed is ahead and where it is not, in three sentences made from the figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.peers.peer import GRAPHILE_MANY, HUEY_PICKUP, PEERS
from benchmarks.results import PULSED, Results, ratio, readable
from benchmarks.targets import TARGETS
from benchmarks.workloads.drain import SLOTS, bare_name, our_name
from benchmarks.workloads.enqueue import BARE, BARE_ASYNC, BARE_MANY, at_once
from benchmarks.workloads.latency import BARE as BARE_PICKUP

ENGINES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
MANY = SLOTS[1]
TIE = 0.02
"""What is closer than this to the rival is not called ahead."""
NAMED = 3
"""Rivals named for one figure; of more than these the closest are named, and the others counted."""


@dataclass(frozen=True)
class Rivalry:
    """pulsed and other queues, by one figure of one part."""

    what: str
    workload: str
    engine: str
    ours: str
    rivals: tuple[str, ...]
    metric: str = "jobs/s"

    def shares(self, results: Results) -> dict[str, float]:
        """Return how many times as good as each rival pulsed is; above 1 it is ahead."""
        mine = results.find(self.workload, self.engine, self.ours, self.metric)
        found: dict[str, float] = {}
        for rival in self.rivals:
            theirs = results.find(self.workload, self.engine, rival, self.metric)
            if (share := ratio(mine, theirs)) is not None and share > 0:
                found[rival] = 1 / share if self.metric.endswith("ms") else share
        return dict(sorted(found.items(), key=lambda pair: pair[1]))

    def said(self, results: Results, shares: dict[str, float]) -> str:
        """Put some of the shares into words."""
        mine = results.find(self.workload, self.engine, self.ours, self.metric)
        assert mine is not None
        named = list(shares.items()) if len(shares) <= NAMED else list(shares.items())[: NAMED - 1]
        those = [f"{_times(share)} {name}" for name, share in named]
        if others := list(shares.values())[len(named) :]:
            those.append(f"{_number(others[0])} to {_times(others[-1])} {len(others)} others")
        quantile, _, unit = self.metric.rpartition(" ")
        own = f"{quantile} {readable(mine.median)} {unit}".strip()
        return f"{self.what} on {ENGINES[self.engine]} ({own}) {', '.join(those)}"


def _peers(engine: str) -> tuple[str, ...]:
    return tuple(peer.title for peer in PEERS.values() if peer.engine == engine)


RIVALRIES = (
    *(
        Rivalry(f"drain with {MANY} slots", "drain", engine, our_name(1, MANY), _peers(engine))
        for engine in ENGINES
    ),
    Rivalry("bulk enqueue", "bulk", "postgres", f"{PULSED} aenqueue_many", (GRAPHILE_MANY.title,)),
    *(
        Rivalry(
            "pick-up",
            "pickup",
            "sqlite",
            PULSED,
            tuple(peer.title for peer in HUEY_PICKUP),
            f"p{percent} ms",
        )
        for percent in (50, 99)
    ),
)


def headline(results: Results) -> str:
    """Return one line each about where it is ahead, where not, and how far from the driver."""
    lines = [_ahead(results), _behind(results), _ceiling(results)]
    return "\n".join(f"- {line}" for line in lines if line)


def _times(share: float) -> str:
    return f"{_number(share)} ×"


def _number(share: float) -> str:
    return f"{share:.2f}" if share < 10 else f"{share:.0f}"


def _ahead(results: Results) -> str:
    found = _sorted_out(results, ahead=True)
    return f"**Ahead of other queues**, how many times as fast: {found}." if found else ""


def _behind(results: Results) -> str:
    if not any(rivalry.shares(results) for rivalry in RIVALRIES):
        return ""
    found = _sorted_out(results, ahead=False)
    return f"**Not ahead**: {found or 'of none that was measured here'}."


def _sorted_out(results: Results, *, ahead: bool) -> str:
    parts = []
    for rivalry in RIVALRIES:
        shares = rivalry.shares(results).items()
        if those := {name: share for name, share in shares if (share > 1 + TIE) == ahead}:
            parts.append(rivalry.said(results, those))
    return "; ".join(parts)


def _ceiling(results: Results) -> str:
    """Compare with the bare driver, which promises nothing, and count the targets."""
    shares = "; ".join(filter(None, (_shares(results, engine) for engine in ENGINES)))
    values = [
        (target, value) for target in TARGETS if (value := target.figure(results)) is not None
    ]
    met = sum(target.met(value) for target, value in values)
    counted = f"{met} of {len(values)} targets below are met" if values else ""
    beside = f"**Beside the bare driver**, which promises nothing: {shares}" if shares else ""
    return f"{'. '.join(filter(None, (beside, counted)))}." if beside or counted else ""


def _shares(results: Results, engine: str) -> str:
    pairs: Iterable[tuple[str, str, str, str, str]] = (
        *(
            (f"drain with {slots} slots", "drain", our_name(1, slots), bare_name(engine, slots), "")
            for slots in reversed(SLOTS)
        ),
        ("enqueue", "enqueue", PULSED, BARE[engine], ""),
        ("aenqueue", "aenqueue", at_once(1), BARE_ASYNC[engine], ""),
        ("aenqueue_many", "bulk", f"{PULSED} aenqueue_many", BARE_MANY[engine], ""),
        ("the time of a pick-up (p50)", "pickup", PULSED, BARE_PICKUP, "p50 ms"),
    )
    found = []
    for what, workload, ours, theirs, metric in pairs:
        mine = results.find(workload, engine, ours, metric or "jobs/s")
        share = ratio(mine, results.find(workload, engine, theirs, metric or "jobs/s"))
        if share is not None:
            found.append(f"{share:.2f} × {what}")
    return f"{ENGINES[engine]} {', '.join(found)}" if found else ""
