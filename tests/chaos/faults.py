"""What is broken. A fault is a generator: it yields how long it lasts, and heals in the end."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import disk
from tests.chaos.fleet import Fleet
from tests.chaos.load import LEASE, LONG_LEASE
from tests.chaos.proxy import FaultyProxy
from tests.chaos.tables import reading
from tests.support.scratch_postgres import ScratchPostgres

KILLED = "worker killed"
Course = Generator[float, None, None]
Strike = Callable[[], Course]


@dataclass(frozen=True)
class Fault:
    """One kind of fault, as a storm picks it."""

    name: str
    strike: Strike
    weight: int = 4
    is_outage: bool = False
    """Nobody can work meanwhile: there is one at a time, and calm between them."""
    may: Callable[[], bool] = lambda: True
    """Whether it may come now."""


def of_workers(
    fleet: Fleet, what: str = "worker", may: Callable[[], bool] | None = None
) -> list[Fault]:
    """Processes die, and hang for less and for more than a lease; only while they ``may``.

    Otherwise a storm on a busy machine would have only processes that are about to start.
    """
    may = may or fleet.is_at_work

    def kill() -> Course:
        fleet.kill()
        yield 0.0

    def freeze(seconds: float) -> Strike:
        def strike() -> Course:
            with fleet.freezing():
                yield seconds

        return strike

    return [
        Fault(KILLED.replace("worker", what), kill, 12, may=may),
        Fault(f"{what} frozen for a moment", freeze(LEASE / 3), 3, may=may),
        Fault(f"{what} frozen for longer than its lease", freeze(LEASE * 2), 4, may=may),
        Fault(f"{what} frozen for longer than every lease", freeze(LONG_LEASE * 1.5), 1, may=may),
    ]


def of_postgres(server: ScratchPostgres, rng: random.Random) -> list[Fault]:
    """The database crashes, restarts, hangs, and ends sessions."""

    def crash() -> Course:
        yield from _away(server, server.kill)

    def immediate() -> Course:
        yield from _away(server, server.halt)

    def _away(server: ScratchPostgres, end: Callable[[], None]) -> Course:
        end()
        try:
            yield rng.uniform(0.0, 2 * LEASE)
        finally:
            server.start()

    def restart() -> Course:
        server.restart()
        yield 0.0

    def freeze() -> Course:
        server.freeze()
        try:
            yield rng.uniform(0.5, 3 * LEASE)
        finally:
            server.thaw()

    def terminate(which: str) -> Strike:
        def strike() -> Course:
            with contextlib.suppress(Exception), reading(server.url, patience=2) as query:
                query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    f"WHERE application_name LIKE 'pulsed%' AND {which}"
                )
            yield 0.0

        return strike

    return [
        Fault("database killed", crash, 2, is_outage=True),
        Fault("database stopped, -m immediate", immediate, 2, is_outage=True),
        Fault("database restarted", restart, 1, is_outage=True),
        Fault("database frozen", freeze, 2, is_outage=True),
        Fault("all sessions terminated", terminate("true"), 2),
        Fault("some sessions terminated", terminate("random() < 0.3"), 4),
        Fault("listening sessions terminated", terminate("query LIKE 'LISTEN%'"), 2),
    ]


def of_network(proxy: FaultyProxy, rng: random.Random, what: str) -> list[Fault]:
    """Connections drop, are slow, go silent, and lose the answers to what was sent."""

    def drop() -> Course:
        proxy.drop()
        yield 0.0

    def cut() -> Course:
        proxy.cut_answers(rng.randint(1, 20))
        yield 0.5
        proxy.cut_answers(0)

    def slow() -> Course:
        proxy.delay = rng.uniform(0.02, 0.15)
        try:
            yield 1.0
        finally:
            proxy.delay = 0.0

    def silent() -> Course:
        proxy.swallows = True
        try:
            yield rng.uniform(0.5, 3 * LEASE)
        finally:
            proxy.swallows = False

    return [
        Fault(f"connections to {what} dropped", drop, 4),
        Fault(f"answers of {what} cut off after COMMIT", cut, 6),
        Fault(f"connections to {what} slow", slow, 2),
        Fault(f"connections to {what} silent", silent, 2, is_outage=True),
    ]


def of_disk(folder: Path, after: Callable[[], None] = lambda: None) -> Fault:
    """The disk of the database is full for a while."""

    def strike() -> Course:
        ballast = disk.fill(folder)
        try:
            yield 1.5
        finally:
            ballast.unlink(missing_ok=True)
            after()

    return Fault("disk full", strike, 1, is_outage=True)


def of_file(url: str) -> Fault:
    """A foreign process keeps SQLite's write lock."""

    def strike() -> Course:
        with reading(url) as query, contextlib.suppress(Exception):
            query("BEGIN IMMEDIATE")
            yield 1.0
            query("ROLLBACK")

    return Fault("write lock held by another program", strike, 2, is_outage=True)
