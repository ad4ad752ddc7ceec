"""How quickly plain functions end: timed by the hundred, while any of them runs."""

import pytest

from pulsed.engine.worker.pace import QUICK, RUNS, Pace


def all_ended(pace: Pace, now: float) -> list[bool | None]:
    return [is_quick(pace, now) for _ in range(pace.running)]


def is_quick(pace: Pace, now: float, runs: int = 1) -> bool | None:
    """Note that runs have ended; returns whether they were quick, if there are enough to tell."""
    timed = pace.end(now, runs)
    return None if timed is None else timed.is_quick


def test_a_hundred_runs_are_quick_or_not_as_a_whole():
    pace = Pace()
    pace.begin(RUNS, 10.0)
    assert all_ended(pace, 10.0 + 0.9 * QUICK) == [None] * (RUNS - 1) + [True]
    pace.begin(RUNS, 20.0)
    assert all_ended(pace, 20.0 + 1.1 * QUICK) == [None] * (RUNS - 1) + [False]


def test_the_time_in_which_none_runs_does_not_count():
    pace = Pace()
    pace.begin(RUNS - 1, 10.0)
    assert all_ended(pace, 10.0 + 0.4 * QUICK) == [None] * (RUNS - 1)
    pace.begin(1, 500.0)
    timed = pace.end(500.0 + 0.4 * QUICK)
    assert timed is not None
    assert timed.runs == RUNS
    assert timed.seconds == pytest.approx(0.8 * QUICK)


def test_each_hundred_is_timed_anew_while_others_run_on():
    pace = Pace()
    pace.begin(2 * RUNS, 0.0)
    assert [is_quick(pace, 1.1 * QUICK) for _ in range(RUNS)][-1] is False
    assert [is_quick(pace, 2.0 * QUICK) for _ in range(RUNS)][-1] is True
    assert pace.running == 0


def test_runs_that_begin_while_others_run_do_not_restart_the_clock():
    pace = Pace()
    pace.begin(1, 0.0)
    pace.begin(RUNS - 1, QUICK)
    assert all_ended(pace, 1.1 * QUICK)[-1] is False


def test_runs_that_end_together_are_judged_together():
    pace = Pace()
    pace.begin(5 * RUNS, 10.0)
    assert is_quick(pace, 10.0 + 1.9 * QUICK, 2 * RUNS) is True
    assert is_quick(pace, 10.0 + 5.1 * QUICK, 3 * RUNS) is False
    assert pace.running == 0
