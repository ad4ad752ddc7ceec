"""Whole fleets in simulated time: hundreds of seeds, and bugs that they must find.

`python3 dev.py simulate --seeds 10000` runs many more.
"""

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias
from unittest.mock import patch

import pytest

from pulsed.engine.upkeep import scheduler
from pulsed.engine.worker.leases import Leases
from pulsed.model.ids import new_job_id
from pulsed.rpc.messages.columnar import assignments_of
from pulsed.rpc.server.job_stream import JobStream
from pulsed.store.sqlite.dialect import in_parameters
from pulsed.store.sqlite.engine import SqliteEngine
from pulsed.store.sqlite.step_transaction import SqliteTransaction
from pulsed.store.verbs import suspend
from tests.simulation import database
from tests.simulation.__main__ import Part
from tests.simulation.faults import Fault, Kind
from tests.simulation.run import simulate
from tests.simulation.shrinking import minimal, shrunk
from tests.support.guards import unguarded

PARTS, SEEDS = 2, 100
WITHIN = 200
"""Seeds in which a planted bug must be found."""
MOST_FAULTS = 8
"""…and be shrunk to: none of them can be left out, but which few are left depends on the engine."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_invariant_holds_whatever_happens(part):
    verdicts = [simulate(seed) for seed in range(part, SEEDS, PARTS)]
    assert {v.seed: v.violations for v in verdicts if v.violations} == {}
    checked = sum((verdict.checked for verdict in verdicts), Counter[str]())
    assert checked.keys() == {f"I{number}" for number in range(1, 14)}  # each put to the test
    struck = {fault.kind for verdict in verdicts for fault in verdict.struck}
    assert struck >= {Kind.UNANSWERED, Kind.DIES_AFTER, Kind.FREEZES}
    assert {bool(verdict.counted["messages"]) for verdict in verdicts} == {False, True}


def test_a_seed_is_a_run():
    """In this process and in another one, whose sets have another order."""
    seeds = (19, 154)
    told = "from tests.simulation.run import simulate; print(*[simulate(s).digest for s in {}])"
    done = subprocess.run(
        [sys.executable, "-c", told.format(seeds)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [simulate(seed).digest for seed in seeds]
    assert len(set(done.stdout.split())) == len(seeds)


# -- bugs that are planted, and must be found -----------------------------------------------------


@contextlib.contextmanager
def an_unfenced_write() -> Iterator[SqliteEngine]:
    """A report ends whatever run its job has by now."""
    engine = SqliteEngine()
    for name in ("settle", "settle_succeeded", "settle_alike"):
        sql = getattr(engine.settling, name)
        for guard in ("AND j.locked_by = r.worker", "AND j.lease_token = r.token"):
            sql = unguarded(sql, in_parameters(guard) if name == "settle_alike" else guard)
        setattr(engine.settling, name, sql)
    yield engine


@contextlib.contextmanager
def a_lost_wake() -> Iterator[SqliteEngine]:
    """A run that suspends does not check whether what it waits for has happened already."""

    def no_wake(*_, **__):
        return frozenset()
        yield

    with patch.object(suspend, "wake", no_wake):
        yield SqliteEngine()


@contextlib.contextmanager
def a_double_fire() -> Iterator[SqliteEngine]:
    """A fire without any of its three defences."""
    engine = SqliteEngine()
    advance = unguarded(engine.schedules.advance, "AND (s.next_run_at = r.old_cursor) IS TRUE")
    engine.schedules.advance = advance
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(database._empty_database())
        connection.execute("DROP INDEX pulse_jobs_occurrence")
        content = connection.serialize()
    with (
        patch.object(scheduler, "occurrence_id", lambda *_: new_job_id()),
        patch.object(database, "_empty_database", lambda: content),
    ):
        yield engine


@contextlib.contextmanager
def a_leaked_slot() -> Iterator[SqliteEngine]:
    """The watchdog forgets jobs with a limit, so their slots are taken for ever."""
    engine = SqliteEngine()
    expired = engine.recovery.expired
    guarded = unguarded(expired, "lease_until <", "limit_key IS NULL AND lease_until <")
    engine.recovery.expired = guarded
    yield engine


@contextlib.contextmanager
def a_step_outside_its_transaction() -> Iterator[SqliteEngine]:
    """A step's COMMIT whose answer is lost counts as failed, and the step is made again."""

    async def never(*_):
        return False

    with patch.object(SqliteTransaction, "was_committed", never):
        yield SqliteEngine()


@contextlib.contextmanager
def jobs_given_back_that_arrived() -> Iterator[SqliteEngine]:
    """A server gives back the jobs of a write that failed, although they may have arrived."""
    write, left = JobStream._write, JobStream._left

    async def noted(self, message):
        try:
            await write(self, message)
        except BaseException:
            self._failed = message
            raise

    def also_failed(self):
        message = getattr(self, "_failed", None)
        failed = [] if message is None else assignments_of(message.batch, self._stream.worker_id)
        return [*left(self), *failed]

    with patch.object(JobStream, "_write", noted), patch.object(JobStream, "_left", also_failed):
        yield SqliteEngine()


@contextlib.contextmanager
def an_attempt_given_back_after_a_fence() -> Iterator[SqliteEngine]:
    """A worker gives back a run that it has begun, and stopped unconfirmed."""

    def not_held(self, stored):
        return [lease for lease in stored if not self.holds(lease)]

    with patch.object(Leases, "unknown", not_held):
        yield SqliteEngine()


Plant: TypeAlias = Callable[[], contextlib.AbstractContextManager[SqliteEngine]]


@pytest.mark.parametrize(
    "plant, invariant, last_found_by",
    [
        (an_unfenced_write, "I4", 9),
        (a_lost_wake, "I11", 6),
        (a_double_fire, "I7", 12),
        (a_leaked_slot, "I6", 169),
        (a_step_outside_its_transaction, "I9", 141),
        (jobs_given_back_that_arrived, "I5", 53),
        (an_attempt_given_back_after_a_fence, "I5", 70),
    ],
    ids=lambda value: getattr(value, "__name__", "").replace("_", " "),
)
def test_a_planted_bug_is_found_and_shrinks(plant: Plant, invariant: str, last_found_by: int):
    """By one of the first seeds; the one that found it last is only tried first."""
    with plant() as engine:
        verdicts = (simulate(seed, engine=engine) for seed in (last_found_by, *range(WITHIN)))
        found = next(verdict for verdict in verdicts if verdict.violations)
        small = shrunk(found, engine)
    assert any(violation.startswith(invariant) for violation in small.violations)
    assert len(small.faults) <= min(MOST_FAULTS, len(found.struck))
    assert simulate(found.seed, small.faults).violations == ()


def test_a_part_continues_where_it_was_ended(tmp_path):
    Part(100, 40, 2.5, Counter(seeds=20, jobs=7), ["seed 101: I1: lost"]).save(tmp_path)
    part = Part.load(tmp_path / "100.json")
    assert part.left == range(120, 140)
    assert (part.seconds, part.totals["jobs"], len(part.violations)) == (2.5, 7, 1)


def test_the_fewest_items_that_fail():
    faults = [Fault(call, Kind.REFUSED) for call in range(20)]
    needed = [faults[3], faults[17]]
    assert minimal(faults, lambda some: set(needed) <= set(some)) == needed
