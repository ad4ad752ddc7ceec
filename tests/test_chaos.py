"""A short storm in every run of the suite, and a test of the checks it ends with."""

from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from tests import chaos, chaos_crashes, chaos_schedules
from tests.support.programs import python


def storm(*options: str) -> str:
    """Run a storm of a few seconds, which must end well; returns what it says."""
    return python("-m", "tests.chaos", "--seconds", "2.5", *options, seconds=150).stdout


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_nothing_is_lost_while_workers_are_killed(engine: str):
    said = storm("--engine", engine, "--jobs", "500", "--workers", "3")
    assert "500 jobs" in said
    assert "every invariant held" in said


def test_nothing_is_lost_while_workers_and_servers_are_killed():
    said = storm("--engine", "postgres", "--server", "--jobs", "500", "--workers", "3")
    # Without the exact number: an enqueue that found no server for seconds was refused.
    assert "servers killed" in said
    assert " 0 servers killed" not in said
    assert "every invariant held" in said


def test_nobody_pays_for_jobs_that_kill_their_worker():
    """One of 111, with real processes under a supervisor.

    It crashes three times if the second crash has neighbours, too, and twice if not.
    """
    said = storm("--crashes", "--engine", "sqlite", "--jobs", "111", "--workers", "2")
    assert " crashes by 1 jobs; of 110 others " in said
    assert "and 0 paid" in said
    assert "every promise was kept" in said


CRASHED = [
    (UUID(int=1), "neighbour", "SUCCEEDED", 1, 3, {"n": 0}),
    (UUID(int=2), "crash", "DEAD_LETTERED", 1, 1, {"n": 1}),
]
RUNS = {0: 3, 1: 3}


@pytest.mark.parametrize(
    "rows, runs, said",
    [
        (CRASHED, RUNS, []),
        (CRASHED[1:], RUNS, ["1 acknowledged jobs are not there", "no neighbour was ever"]),
        (CRASHED, {0: 3, 1: 4}, ["1 crashing jobs ran too often"]),
        (CRASHED, {0: 1, 1: 3}, ["no neighbour was ever interrupted"]),
        ([(*CRASHED[0][:3], 2, 3, {"n": 0}), CRASHED[1]], RUNS, ["1 neighbours lost an attempt"]),
        ([(*CRASHED[0][:3], 2, 3, {"n": 0}), CRASHED[1]], {0: 4, 1: 3}, []),
        (
            [(*CRASHED[0][:2], "RUNNING", 1, 3, {"n": 0}), CRASHED[1]],
            RUNS,
            ["1 neighbours have not succeeded"],
        ),
        (
            [CRASHED[0], (*CRASHED[1][:2], "PENDING", 0, None, {"n": 1})],
            {0: 2, 1: 2},
            ["1 crashing jobs are not parked"],
        ),
    ],
)
def test_who_paid_for_a_crash_is_noticed(rows: Any, runs: dict[int, int], said: list[str]):
    promised = [row[0] for row in CRASHED]
    found, told = chaos_crashes.violations(lambda _: rows, promised, Counter(runs))
    assert len(found) == len(said)
    assert all(line.startswith(part) for line, part in zip(found, said, strict=True))
    assert "crashes by 1 jobs" in told


class Tables:
    """What the database would say after a storm in which all went well."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, dict[str, Any]] = {}
        self.failures: list[tuple[UUID, str]] = []
        for number, kind in enumerate([*chaos.KINDS, chaos.poison], 1):
            parked = kind.topic in chaos.PARKED
            self.jobs[UUID(int=number)] = {
                "topic": kind.topic,
                "status": "DEAD_LETTERED" if parked else "SUCCEEDED",
                "attempts": 3 if parked else 1,
                "max_attempts": 3,
                "token": 9,
                "payload": {"n": 7},
                "result": None if parked else 7,
                "leased": False,
                "error": "worker lease expired" if parked else None,
            }
            self.failures += [(UUID(int=number), "worker lease expired")] * (3 if parked else 0)
        together = f"worker lease expired; {chaos.GIVEN_BACK}"
        self.failures.insert(0, (UUID(int=1), together))

    @property
    def job(self) -> dict[str, Any]:
        """One that succeeded."""
        return self.jobs[UUID(int=1)]

    def __call__(self, sql: str) -> list[tuple[Any, ...]]:
        if sql.startswith("SELECT id"):
            return [(job_id, *job.values()) for job_id, job in self.jobs.items()]
        if sql.startswith("SELECT job_id"):
            return list(self.failures)
        if "pulse_failures" in sql:
            return [(sum(error == "worker lease expired" for _, error in self.failures),)]
        return [(sum(job["status"] == "PENDING" for job in self.jobs.values()),)]


def judged(tables: Tables, promised: list[UUID]) -> str:
    return "\n".join(chaos.violations(tables, promised, refused=0, killed=1))


def test_a_storm_without_losses_passes():
    tables = Tables()
    assert judged(tables, list(tables.jobs)) == ""


def lose(tables: Tables) -> None:
    del tables.jobs[UUID(int=1)]


def leave(tables: Tables) -> None:
    tables.job.update(status="PENDING")


def lease(tables: Tables) -> None:
    tables.job.update(leased=True)


def overrun(tables: Tables) -> None:
    tables.job.update(attempts=4)


def mix_up(tables: Tables) -> None:
    tables.job.update(result=8)


def forget_a_failure(tables: Tables) -> None:
    tables.failures.pop()


def never_expire(tables: Tables) -> None:
    tables.failures = [(job_id, "another error") for job_id, _ in tables.failures]


DAMAGE: list[tuple[Callable[[Tables], None], str]] = [
    (lose, "1 acknowledged jobs that are not there"),
    (leave, "1 jobs that have not ended"),
    (leave, "1 jobs wait for a worker"),
    (lease, "1 leases on jobs that do not run"),
    (overrun, "1 jobs with too many attempts"),
    (mix_up, "1 jobs that ended otherwise"),
    (forget_a_failure, "1 attempts that are neither"),
    (never_expire, "no lease ever expired"),
]


@pytest.mark.parametrize("damage, said", DAMAGE)
def test_every_loss_is_noticed(damage: Callable[[Tables], None], said: str):
    tables = Tables()
    promised = list(tables.jobs)
    damage(tables)
    assert said in judged(tables, promised)


def test_a_storm_that_put_nothing_to_the_test_fails():
    tables = Tables()
    tables.jobs.clear()
    tables.failures.clear()
    assert "nothing was found" in judged(tables, [])


# -- schedules ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_every_occurrence_is_fired_once_while_the_schedulers_are_killed(engine: str):
    said = storm("--schedules", "--engine", engine, "--every", "0.2", "--workers", "5")
    assert "every occurrence exactly once" in said


FIRED = list(range(1_100, 2_000, 100))


@pytest.mark.parametrize(
    "fired, said",
    [
        (FIRED, []),
        (FIRED[::-1], []),
        (FIRED[1:], ["1 occurrences missing"]),
        (FIRED[:-2], ["2 occurrences missing"]),
        ([*FIRED, 1_300], ["1 occurrences fired twice"]),
        ([*FIRED, 1_301], ["1 occurrences fired and not due"]),
        ([*FIRED, 2_000], ["1 occurrences fired and not due"]),
    ],
)
def test_every_occurrence_that_is_lost_or_doubled_is_noticed(fired: list[int], said: list[str]):
    assert chaos_schedules.unlike(1_000, 2_000, 100, fired) == said


def test_a_storm_around_schedules_that_put_nothing_to_the_test_fails():
    def nothing(sql: str) -> list[tuple[Any, ...]]:
        return []

    found = chaos_schedules.violations(nothing, every=1, seconds=5, killed=0)
    assert len(found) == 2
