"""Reads that pages share: each page gets what it asked for, and equal reads are made once."""

from itertools import permutations
from typing import Any

import pytest

from pulsed import Pulse
from pulsed.engine.shared_reads import SharedReads
from pulsed.web import Local, dashboard
from pulsed.web.live import Hub
from tests.support.jumping_loop import run_jumping
from tests.support.visits import Tab

LISTS = ("/", "/jobs", "/queues", "/workers", "/workflows", "/schedules")


@pytest.mark.parametrize("paths", list(permutations(LISTS, 2)), ids=" then ".join)
async def test_a_page_is_the_same_after_another_one(tmp_path: Any, paths: tuple[str, str]):
    """Within a tick, the second one gets what the first has read."""
    async with Pulse(f"sqlite:///{tmp_path / 'jobs.db'}") as app:
        await app.aenqueue("send", {"to": "ada"})
        tab = Tab(dashboard(app, access=Local()))
        for path in paths:
            assert (await tab.get(path)).status == 200


async def test_equal_reads_are_made_once_a_tick():
    now = 0.0
    shared = SharedReads(2.0, lambda: now)
    reads: list[int] = []

    async def read() -> int:
        reads.append(1)
        return len(reads)

    async def read_at(second: float) -> int:
        nonlocal now
        now = second
        return await shared.get("key", read)

    assert [await read_at(second) for second in (0.0, 1.0, 1.9, 2.1)] == [1, 1, 1, 2]


async def test_an_answer_that_has_expired_is_dropped():
    """It may have megabytes of payloads, and its page may never be opened again."""
    now = 0.0
    shared = SharedReads(2.0, lambda: now)

    async def read() -> int:
        return 1

    for page in range(10):
        now = float(page)
        await shared.get(page, read)
    assert len(shared) == 2
    await shared.get("statistics", read, seconds=10)
    now = 15.0
    await shared.get("another", read)
    assert len(shared) == 2


async def test_a_failed_read_is_not_kept():
    shared = SharedReads()

    async def fail() -> int:
        raise ValueError

    async def read() -> int:
        return 1

    with pytest.raises(ValueError):
        await shared.get("key", fail)
    assert await shared.get("key", read) == 1


def test_a_stream_ends_after_a_while_and_says_that_another_may_be_opened():
    """Else an application that mounts the dashboard could not stop while a tab is open."""

    async def read() -> dict[str, int]:
        return {"n": 1}

    async def story() -> list[list[bytes]]:
        hub = Hub(read, tick=3600)
        streams = [[event async for event in hub.stream()] for _ in range(2)]
        assert hub.streams == 0
        await hub.close()
        return streams

    summary, again = b'event: summary\ndata: {"n":1}\n\n', b"event: again\ndata: {}\n\n"
    assert run_jumping(story()) == [[summary, again]] * 2
