"""A handler that blocks the event loop is named, with its file and line."""

import asyncio
import logging
import re
import time

import pytest

from pulsed.engine.worker import loop_watch
from pulsed.engine.worker.loop_watch import BLOCKED_AFTER, REPEAT_AFTER, LoopWatch
from pulsed.store.base import Store
from tests.support.workers import finished, registry_of, submit, working


def nap(until):
    while not until():
        time.sleep(0.01)


async def test_a_blocked_loop_names_the_handler_and_its_line(store: Store, caplog, monkeypatch):
    monkeypatch.setattr(loop_watch, "PING_EVERY", 0.002)
    monkeypatch.setattr(loop_watch, "BLOCKED_AFTER", 0.004)
    monkeypatch.setattr(loop_watch, "REPEAT_AFTER", 0.0)

    def blocked() -> list[str]:
        return [text for text in caplog.messages if " by selfish (" in text]

    async def selfish() -> None:
        give_up_at = time.monotonic() + 60
        await asyncio.sleep(0)
        nap(lambda: blocked() or time.monotonic() > give_up_at)

    job_id = await submit(store, "selfish")
    async with working(store, selfish):
        await finished(store, job_id)
    assert re.search(r"by selfish \(test_loop_watch\.py:\d+[,)]", blocked()[0])
    assert "plain `def`" in blocked()[0]
    assert "the event loop is free again" in caplog.text


@pytest.fixture
async def watch() -> LoopWatch:
    return LoopWatch(registry_of(), lambda: True)


async def test_a_blocked_loop_is_logged_once_in_a_while(watch: LoopWatch, caplog):
    caplog.set_level(logging.WARNING, "pulsed.worker")
    watch.tick(100.0)  # sends a ping; the loop does not get to answer it below
    for now, lines in [
        (100.0 + BLOCKED_AFTER - 0.1, 0),
        (100.0 + BLOCKED_AFTER, 1),
        (101.0 + BLOCKED_AFTER, 1),
        (100.0 + BLOCKED_AFTER + REPEAT_AFTER, 2),
    ]:
        watch.tick(now)
        assert len(caplog.messages) == lines


async def test_a_loop_that_answers_is_not_blocked(watch: LoopWatch, caplog):
    for now in range(100, 200):
        watch.tick(float(now))
        await asyncio.sleep(0)
    assert not caplog.messages


async def test_an_idle_worker_is_not_pinged():
    watch = LoopWatch(registry_of(), lambda: False)
    watch.tick(100.0)
    assert watch._pinged_at is None
