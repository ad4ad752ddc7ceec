"""Jobs that are claimed while those before them run: never more at once than there are slots."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from pulsed.engine.worker import pace
from pulsed.engine.worker import runs as runs_module
from pulsed.engine.worker.run import Run, StopReason
from pulsed.engine.worker.runs import QUICK_RUNS, Runner
from pulsed.model.outcome import Outcome, Released, Succeeded
from tests.support.workers import all_finished, submit_many, until, working
from tests.test_runner import some_runs

SLOTS = 5
AHEAD = 20


class Running:
    """A runner of few slots, and the outcomes of its runs."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome | None] = []
        self.runner = Runner(
            SLOTS, on_ended=self.note, on_free_slot=lambda: None, on_stuck=lambda: None
        )

    def note(self, runs: Sequence[Run]) -> None:
        self.outcomes += [run.outcome for run in runs]

    async def run_quickly(self, count: int) -> None:
        self.runner.start(some_runs(quick, count))
        await self.runner.until_idle()
        self.outcomes.clear()

    async def run_quickly_beside(self, count: int) -> None:
        """Run quick handlers while others wait."""
        self.runner.start(some_runs(quick, count))
        await until(lambda: len(self.outcomes) == count)
        self.outcomes.clear()


async def quick() -> None:
    pass


@pytest.fixture
async def running(monkeypatch):
    monkeypatch.setattr(runs_module, "SLICE", 3600)  # so that no machine is too slow…
    monkeypatch.setattr(runs_module, "AHEAD_WITHIN", 3600)  # …for as many ahead as there may be
    monkeypatch.setattr(runs_module, "MOST_AHEAD", AHEAD)
    it = Running()
    yield it
    await it.runner.close()


async def test_slots_of_runs_about_to_start_count_as_free_while_handlers_end_at_once(running):
    runner = running.runner
    await running.run_quickly(QUICK_RUNS - 1)
    assert (runner.room(), runner.room(SLOTS)) == (SLOTS, 0)
    await running.run_quickly(1)
    assert (runner.room(), runner.room(SLOTS)) == (SLOTS + AHEAD, AHEAD)
    runner.start(some_runs(quick, SLOTS + AHEAD))
    assert (runner.room(), runner.in_use) == (0, SLOTS)
    await runner.until_idle()


async def test_claims_ahead_are_large_or_wait(running):
    await running.run_quickly(QUICK_RUNS)
    half = (SLOTS + AHEAD) // 2
    assert (running.runner.room(half), running.runner.room(half + 1)) == (half + 1, 0)


async def test_a_claim_ahead_has_an_upper_bound(monkeypatch, running):
    await running.run_quickly(QUICK_RUNS)
    monkeypatch.setattr(runs_module, "CLAIM_AHEAD", SLOTS + 1)
    assert (running.runner.room(), running.runner.room(SLOTS)) == (SLOTS + 1, SLOTS + 1)


async def test_as_many_are_claimed_ahead_as_run_in_a_fiftieth_of_a_second(running, monkeypatch):
    runner = running.runner
    monkeypatch.setattr(runs_module, "AHEAD_WITHIN", 0.02)
    await running.run_quickly(QUICK_RUNS)
    runner._note_turn(seconds=0.02, runs=12)
    assert runner.room(SLOTS) == 12
    runner._note_turn(seconds=0.0, runs=1)  # a clock that did not advance
    assert runner.room(SLOTS) == AHEAD, "no more than that, however quick they are"
    runner._note_turn(seconds=0.0, runs=0)
    assert runner.room(SLOTS) == AHEAD, "a turn without runs says nothing"


async def test_the_pace_of_plain_functions_says_how_many_are_claimed_ahead(running, monkeypatch):
    monkeypatch.setattr(runs_module, "AHEAD_WITHIN", 0.02)
    monkeypatch.setattr(running.runner._pace, "end", lambda _now, runs: pace.Timed(runs, 0.002))
    running.runner.start(some_runs(lambda: None, 1))
    await running.runner.until_idle()
    running.runner._quick = QUICK_RUNS
    assert running.runner.room(SLOTS) == 10


async def test_a_slot_that_is_free_is_enough_to_claim_ahead(running):
    release = asyncio.Event()
    running.runner.start(some_runs(release.wait, SLOTS - 1))
    await until(lambda: not running.runner._ready)
    await running.run_quickly_beside(QUICK_RUNS)
    assert running.runner.room() == 1 + AHEAD
    running.runner.start(some_runs(release.wait, 1))
    running.runner._quick = QUICK_RUNS  # as it is until the loop has started that one
    assert running.runner.room() == AHEAD
    release.set()
    await running.runner.until_idle()


async def test_nothing_is_claimed_ahead_while_no_slot_is_free(running):
    release = asyncio.Event()
    running.runner.start(some_runs(release.wait, SLOTS))
    await until(lambda: not running.runner._ready)
    running.runner._quick = QUICK_RUNS
    assert running.runner.room() == 0
    release.set()
    await running.runner.until_idle()


async def test_no_job_is_claimed_ahead_after_a_handler_that_waits(running):
    async def waits() -> None:
        await asyncio.sleep(0)

    await running.run_quickly(QUICK_RUNS)
    running.runner.start(some_runs(waits, 1))
    await running.runner.until_idle()
    assert running.runner.room(SLOTS) == 0


async def test_jobs_are_claimed_ahead_while_plain_functions_end_quickly(running, monkeypatch):
    monkeypatch.setattr(pace, "QUICK", 3600)
    for _ in range(pace.RUNS):
        assert running.runner.room(SLOTS) == 0
        running.runner.start(some_runs(lambda: None, 1))
        await running.runner.until_idle()
    assert running.runner.room(SLOTS) == AHEAD


async def test_no_job_is_claimed_ahead_after_plain_functions_that_take_their_time(
    running, monkeypatch
):
    monkeypatch.setattr(pace, "QUICK", -1)
    await running.run_quickly(QUICK_RUNS)
    running.runner.start(some_runs(lambda: None, SLOTS))
    await running.runner.until_idle()
    assert running.runner.room(SLOTS) == AHEAD, "too few to tell"
    running.runner.start(some_runs(lambda: None, pace.RUNS - SLOTS))
    await running.runner.until_idle()
    assert running.runner.room(SLOTS) == 0


async def test_slots_of_plain_functions_count_as_free_while_those_end_quickly(running):
    release = threading.Event()
    await running.run_quickly(QUICK_RUNS)
    running.runner.start(some_runs(lambda: release.wait(30), SLOTS))
    assert running.runner.room() == AHEAD
    release.set()
    await running.runner.until_idle()


async def test_jobs_claimed_ahead_of_plain_functions_that_block_are_handed_back(
    running, monkeypatch
):
    monkeypatch.setattr(runs_module, "AHEAD_FOR", 0.0)
    release = threading.Event()
    await running.run_quickly(QUICK_RUNS)
    running.runner.start(some_runs(lambda: release.wait(30), SLOTS + 2))
    await until(lambda: running.outcomes == [Released()] * 2)
    assert (running.runner.in_use, running.runner.room()) == (SLOTS, 0)
    release.set()
    await running.runner.until_idle()


async def test_no_job_is_claimed_ahead_while_handlers_take_their_time(running, monkeypatch):
    monkeypatch.setattr(runs_module, "LONGEST_TURN", 3600)
    await running.run_quickly(QUICK_RUNS)
    monkeypatch.setattr(runs_module, "SLICE", -1)
    await running.run_quickly(1)
    assert running.runner.room(SLOTS) == AHEAD, "other work of the machine, perhaps"
    await running.run_quickly(1)
    assert running.runner.room(SLOTS) == 0


async def test_turns_that_are_too_long_now_and_then_do_not_end_claims_ahead(running, monkeypatch):
    monkeypatch.setattr(runs_module, "LONGEST_TURN", 3600)
    await running.run_quickly(QUICK_RUNS)
    for seconds in (-1, 3600, -1, 3600):
        monkeypatch.setattr(runs_module, "SLICE", seconds)
        await running.run_quickly(1)
        assert running.runner.room(SLOTS) == AHEAD


async def test_no_job_is_claimed_ahead_after_a_handler_that_blocks_the_loop(running, monkeypatch):
    await running.run_quickly(QUICK_RUNS)
    monkeypatch.setattr(runs_module, "SLICE", -1)
    monkeypatch.setattr(runs_module, "LONGEST_TURN", -1)
    await running.run_quickly(1)
    assert running.runner.room(SLOTS) == 0


async def test_jobs_claimed_ahead_wait_for_slots_and_are_handed_back(running, monkeypatch):
    monkeypatch.setattr(runs_module, "AHEAD_FOR", 0.0)
    release, begun = asyncio.Event(), []

    async def waits() -> None:
        begun.append(1)
        await release.wait()

    await running.run_quickly(QUICK_RUNS)
    running.runner.start(some_runs(waits, 2 * SLOTS))
    await until(lambda: len(running.outcomes) == len(begun) == SLOTS)
    assert running.outcomes == [Released()] * SLOTS
    assert running.runner.in_use == SLOTS
    release.set()
    await running.runner.until_idle()
    assert running.outcomes[SLOTS:] == [Succeeded("null")] * SLOTS
    assert len(begun) == SLOTS


async def test_nothing_is_handed_back_while_slots_are_free(running):
    await running.run_quickly(QUICK_RUNS)
    runs = some_runs(quick, 2 * SLOTS)
    running.runner.start(runs)
    running.runner._hand_back(runs[-1])
    assert running.outcomes == []
    await running.runner.until_idle()
    assert running.outcomes == [Succeeded("null")] * 2 * SLOTS


async def test_only_what_has_waited_for_long_is_handed_back(running, monkeypatch):
    monkeypatch.setattr(runs_module, "AHEAD_FOR", 3600)
    first, second = asyncio.Event(), asyncio.Event()
    await running.run_quickly(QUICK_RUNS)
    early = some_runs(first.wait, 2 * SLOTS)
    running.runner.start(early)
    await until(lambda: len(running.runner._ready) == SLOTS)
    running.runner.start(some_runs(second.wait, SLOTS))
    first.set()
    await until(lambda: len(running.outcomes) == 2 * SLOTS and not running.runner._ready)
    running.runner.start(some_runs(second.wait, SLOTS))
    running.runner._hand_back(early[-1])
    assert len(running.runner._ready) == SLOTS, "those have just come"
    assert running.runner._handing_back is not None, "but may have to be handed back later"
    running.runner._hand_back(running.runner._ready[-1])
    assert running.outcomes[2 * SLOTS :] == [Released()] * SLOTS
    second.set()
    await running.runner.until_idle()


async def test_jobs_claimed_ahead_start_when_slots_become_free_in_time(running, monkeypatch):
    monkeypatch.setattr(runs_module, "AHEAD_FOR", 3600)
    release, now, most = asyncio.Event(), 0, 0

    async def waits() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await release.wait()
        now -= 1

    await running.run_quickly(QUICK_RUNS)
    running.runner.start(some_runs(waits, 2 * SLOTS))
    await until(lambda: now == SLOTS)
    release.set()
    await running.runner.until_idle()
    assert running.outcomes == [Succeeded("null")] * 2 * SLOTS
    assert most == SLOTS


async def test_plain_functions_claimed_ahead_wait_for_slots_too(running, monkeypatch):
    monkeypatch.setattr(runs_module, "AHEAD_FOR", 3600)
    release, lock, now, most = threading.Event(), threading.Lock(), 0, 0

    def blocks() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        release.wait(30)
        with lock:
            now -= 1

    await running.run_quickly(QUICK_RUNS)
    running.runner.start(some_runs(blocks, 2 * SLOTS))
    await until(lambda: now == SLOTS)
    release.set()
    await running.runner.until_idle()
    assert running.outcomes == [Succeeded("null")] * 2 * SLOTS
    assert most == SLOTS


async def test_a_job_claimed_ahead_that_lost_its_lease_is_not_reported(running, monkeypatch):
    monkeypatch.setattr(runs_module, "AHEAD_FOR", 0.0)
    release = asyncio.Event()
    await running.run_quickly(QUICK_RUNS)
    runs = some_runs(release.wait, SLOTS + 1)
    running.runner.start(runs)
    runs[-1].tell_to_stop(StopReason.LOST)
    await until(lambda: len(running.outcomes) == 1)
    assert running.outcomes == [None]
    release.set()
    await running.runner.until_idle()


async def test_what_a_worker_hands_back_runs_later_with_all_its_attempts(store, monkeypatch):
    monkeypatch.setattr(runs_module, "SLICE", 3600)
    monkeypatch.setattr(runs_module, "QUICK_RUNS", 1)
    monkeypatch.setattr(runs_module, "AHEAD_FOR", 0.0)
    release, now, most = asyncio.Event(), 0, 0

    async def wait_last(n: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if n >= 40:
            await release.wait()
        now -= 1

    ids = await submit_many(store, "wait_last", 60)
    async with working(store, wait_last, concurrency=4) as it:
        await until(lambda: it.worker.describe().running == 4 and now == 4)
        await until(lambda: len(it.worker._runner.runs) == 4)
        assert it.worker._free_slots() == 0
        release.set()
        jobs = await all_finished(store, ids)
    assert most == 4
    assert {(job.status, job.attempts) for job in jobs} == {("SUCCEEDED", 1)}
