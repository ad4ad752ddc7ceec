"""The peers, as data: how each is got and run, and what it does for a job."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Promise:
    """What a queue does for a job that has run, with the settings measured."""

    row: str
    """What happens to its row."""
    result: str
    """Whether the handler's result can be read."""
    commit: str
    """How many jobs a commit reports."""
    late: str
    """What a worker's report does after the job went to another worker."""


@dataclass(frozen=True)
class Peer:
    """How to get and run one."""

    title: str
    script: str
    packages: tuple[str, ...]
    promise: Promise
    engine: str = "postgres"
    """The engine whose drain it takes turns with."""
    broker: str = "postgres"
    """Where its jobs are."""
    share: float = 1.0
    """Its share of the jobs: minutes of a slow drain show no more than seconds."""
    arguments: tuple[str, ...] = ()

    def size(self, all_jobs: int) -> int:
        """Return how many jobs it drains."""
        return max(1, int(all_jobs * self.share))


OURS = Promise("kept", "kept", "a batch", "refused, by token")
_PG_BOSS = Promise("kept", "not in batches", "a batch", "accepted while the job runs")
_IN_MEMORY = "a snapshot now and then: Redis as shipped loses what came after the last one"


def _huey(threads: int, *, results: bool) -> Peer:
    several = "" if threads == 1 else "s"
    stored = "kept until read" if results else "none"
    return Peer(
        f"Huey, {threads} thread{several}" + ("" if results else ", no results"),
        "huey_sqlite.py",
        ("huey",),
        Promise("deleted before the run", stored, "one job", "no other worker gets it"),
        engine="sqlite",
        broker="sqlite",
        share=0.02,
        arguments=(str(threads), "results" if results else "none"),
    )


GRAPHILE = Peer(
    "graphile-worker",
    "graphile-worker.mjs",
    ("graphile-worker",),
    Promise("deleted", "none", "a batch", "accepted"),
)
GRAPHILE_MANY = replace(GRAPHILE, title="graphile-worker addJobs", arguments=("enqueue",))
"""Writes its jobs in one call, and drains none."""
PG_BOSS_WORK = Peer(
    "pg-boss, work()", "pg-boss.mjs", ("pg-boss@12.35",), _PG_BOSS, arguments=("work",)
)
PG_BOSS_BY_HAND = Peer(
    "pg-boss, fetched by hand without its worker",
    "pg-boss.mjs",
    ("pg-boss@12.35",),
    _PG_BOSS,
    arguments=("hand",),
)

PEERS = {
    "graphile-worker": GRAPHILE,
    "pg-boss": PG_BOSS_WORK,
    "pg-boss-by-hand": PG_BOSS_BY_HAND,
    "pgqueuer": Peer(
        "PgQueuer",
        "pgqueuer_worker.py",
        ("pgqueuer", "asyncpg", "uvloop"),
        Promise("moved to a log, without payload", "none", "a batch", "accepted"),
        share=0.1,
    ),
    "awa": Peer(
        "awa",
        "awa_worker.py",
        ("awa-pg",),
        Promise("kept", "none", "a batch", "refused, by lease"),
        share=0.1,
    ),
    "saq": Peer(
        "SAQ on Redis",
        "saq_worker.py",
        ("saq", "redis", "hiredis", "typing_extensions", "uvloop"),
        Promise("kept for ten minutes", "kept for ten minutes", _IN_MEMORY, "accepted"),
        broker="redis",
        share=0.05,
    ),
    "taskiq": Peer(
        "taskiq on Redis",
        "taskiq_worker.py",
        ("taskiq", "taskiq-redis", "hiredis", "uvloop"),
        Promise("acknowledged, kept in the stream", "none", _IN_MEMORY, "accepted"),
        broker="redis",
        share=0.05,
    ),
    "chancy": Peer(
        "Chancy",
        "chancy_worker.py",
        ("chancy",),
        Promise("kept", "none", "a batch, about a second later", "refused, by claim"),
        share=0.02,
    ),
    "procrastinate": Peer(
        "Procrastinate",
        "procrastinate_worker.py",
        ("procrastinate",),
        Promise("kept", "none", "one job", "accepted while the job runs or waits"),
        share=0.0025,
    ),
    "dbos": Peer(
        "DBOS",
        "dbos_queue.py",
        ("dbos",),
        Promise("kept", "kept", "one job", "refused, by owner"),
        share=0.0025,
    ),
    "absurd": Peer(
        "Absurd",
        "absurd_worker.py",
        ("absurd-sdk", "absurdctl"),
        Promise("kept", "kept", "one job", "refused, by run"),
        share=0.0025,
    ),
    "huey-1": _huey(1, results=True),
    "huey-1-no-results": _huey(1, results=False),
    "huey-4": _huey(4, results=True),
    "huey-4-no-results": _huey(4, results=False),
}


def _huey_pickup(title: str, delay: float) -> Peer:
    packages, promise = ("huey",), PEERS["huey-1"].promise
    script = "huey_pickup_sqlite.py"
    return Peer(title, script, packages, promise, "sqlite", "sqlite", arguments=(str(delay),))


HUEY_PICKUP = (
    _huey_pickup("Huey, as it comes: polls every 0.1 s", 0.1),
    _huey_pickup("Huey, polls every 1 ms", 0.001),
)
"""The peer on SQLite, picking up single jobs."""

STEPS = Peer(
    "DBOS",
    "dbos_steps_queue.py",
    ("dbos",),
    Promise("kept", "kept", "one step", "refused, by owner"),
)
"""The peer that has durable steps."""
