"""What belongs to an event loop stays with it, and goes with it."""

import asyncio

from pulsed.store.per_loop import PerLoop


def test_each_loop_has_its_own_and_keeps_it():
    kept: PerLoop[object] = PerLoop()

    async def twice() -> tuple[object, object]:
        return kept.here(object), kept.here(object)

    with asyncio.Runner() as one, asyncio.Runner() as other:
        first, again = one.run(twice())
        theirs, _ = other.run(twice())
        assert first is again
        assert theirs is not first
        assert len(kept) == 2


def test_those_of_closed_loops_are_dropped_when_another_asks():
    kept: PerLoop[object] = PerLoop()

    async def ask() -> object:
        return kept.here(object)

    seen = [asyncio.run(ask()) for _ in range(5)]
    assert len(set(map(id, seen))) == 5  # also when a loop has the address of an earlier one
    assert len(kept) == 1


async def test_what_is_forgotten_is_made_anew():
    kept: PerLoop[object] = PerLoop()
    assert kept.forget_here() is None
    first = kept.here(object)
    assert kept.forget_here() is first
    second = kept.here(object)
    assert second is not first
    assert kept.forget_all() == [second]
    assert len(kept) == 0
