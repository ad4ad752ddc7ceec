"""The loop around every tick."""

import asyncio
import logging
from typing import Any

import pytest

from pulsed.engine.forever import Alarm, forever
from pulsed.errors import TransientStorageError
from tests.support.workers import until

log = logging.getLogger("pulsed.test")


class Sleeps:
    """Stands in for sleeping."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def run(*answers: float | Exception | None, **options: Any) -> list[float]:
    """Run a loop whose ticks come to these answers; returns its pauses."""
    sleeps, left = Sleeps(), list(answers)

    async def tick() -> float | None:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    after_failure = options.pop("after_failure", lambda failures: 10.0 * failures)
    await forever(tick, "ticking", log=log, after_failure=after_failure, sleep=sleeps, **options)
    assert not left
    return sleeps.seconds


async def test_a_tick_says_how_long_to_pause_and_none_ends_the_loop():
    assert await run(3.0, 0.0, 2.5, None) == [3.0, 0.0, 2.5]


async def test_no_error_ends_it_and_failures_in_a_row_are_counted(caplog):
    away = TransientStorageError("away")
    with caplog.at_level(logging.WARNING, "pulsed.test"):
        assert await run(away, ValueError("odd"), 1.0, away, None) == [10.0, 20.0, 1.0, 10.0]
    assert [record.message for record in caplog.records] == [
        "ticking failed (away); again in 10 s",
        "ticking failed (odd); again in 20 s",
        "ticking failed (away); again in 10 s",
    ]
    # A database that is down needs no traceback; an unexpected error does.
    assert [record.exc_info is not None for record in caplog.records] == [False, True, False]


async def test_how_loudly_it_fails_is_the_callers_choice(caplog):
    def level(_error: Exception, failures: int) -> int:
        return logging.WARNING if failures == 1 else logging.DEBUG

    away = TransientStorageError("away")
    with caplog.at_level(logging.DEBUG, "pulsed.test"):
        await run(away, away, None, level=level)
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG"]


async def test_a_cancelled_loop_ends():
    async def tick() -> float:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await forever(tick, "ticking", log=log, after_failure=lambda _: 0.0)


async def test_an_alarm_ends_a_pause_and_also_the_one_to_come():
    alarm = Alarm()
    alarm.ring()
    await alarm.sleep(3600)
    pausing = asyncio.create_task(alarm.sleep(3600))
    await asyncio.sleep(0)
    assert not pausing.done()
    alarm.ring()
    await pausing


async def test_an_alarm_forgets_what_it_was_told_to():
    alarm = Alarm()
    alarm.ring()
    alarm.reset()
    pausing = asyncio.create_task(alarm.sleep(0.01))
    await asyncio.sleep(0)
    assert not pausing.done()
    await pausing


async def test_hints_within_the_debounce_time_count_as_one():
    alarm, ended = Alarm(), 0

    async def loop() -> None:
        nonlocal ended
        while True:
            await alarm.sleep(3600, debounce=0.02)
            ended += 1

    looping = asyncio.create_task(loop())
    for _ in range(20):
        alarm.ring()
        await asyncio.sleep(0)
    assert ended == 0
    await until(lambda: ended > 0)
    looping.cancel()
    assert ended == 1
