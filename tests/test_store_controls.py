"""Controls: what governs queues, topics and limits, as stores keep it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pulsed.errors import InvalidOption
from pulsed.model.audit import Operator
from pulsed.model.control import Control, ControlKey, ControlScope, Numbers
from pulsed.model.limit import MOST_RUNNING, MOST_WEIGHTS
from pulsed.model.rate import Rate
from tests.support.jobs import claim, submitted
from tests.test_audit import acts

ANNA = Operator("anna@desk")
QUEUE = (ControlScope.QUEUE, "encode")
FOUR = Numbers(running=4, rate=Rate(60, per=60, burst=10), age=30.0)


async def test_what_nothing_governs_has_a_neutral_control(store):
    found = await store.controls.get(*QUEUE)
    assert found == Control(scope=ControlScope.QUEUE, name="encode")
    assert found.is_neutral
    assert await store.controls.list_page() == []


async def test_a_pause_says_by_whom_and_since_when(store, clock):
    paused = await store.controls.pause(*QUEUE, by=ANNA)
    assert (paused.paused, paused.paused_at) == (True, clock.now)
    assert "anna@desk" in paused.paused_by or store.is_remote
    clock.advance(60)
    again = await store.controls.pause(*QUEUE, by=Operator("bert@desk"))
    assert again == paused, "the first pause stands"
    assert await store.controls.get(*QUEUE) == paused


async def test_a_resumed_control_leaves_no_row(store, backend):
    await store.controls.pause(*QUEUE)
    assert (await store.controls.resume(*QUEUE)).is_neutral
    assert backend.execute("SELECT * FROM pulse_controls") == []


async def test_an_operators_numbers_count_instead_of_the_declared_ones(store):
    assert await store.controls.declare(ControlScope.QUEUE, {"encode": FOUR}) == {
        "encode": "changed"
    }
    assert await store.controls.declare(ControlScope.QUEUE, {"encode": FOUR}) == {
        "encode": "unchanged"
    }
    assert (await store.controls.get(*QUEUE)).numbers == FOUR
    one = Numbers(running=1)
    found = await store.controls.override(*QUEUE, one)
    assert (found.numbers, found.declared) == (one, FOUR)
    await store.controls.declare(ControlScope.QUEUE, {"encode": Numbers(running=8)})
    assert (await store.controls.get(*QUEUE)).numbers == one, "a deploy does not undo it"
    assert (await store.controls.clear(*QUEUE)).numbers == Numbers(running=8)


async def test_only_the_numbers_that_are_named_change(store):
    await store.controls.declare(ControlScope.QUEUE, {"encode": FOUR})
    found = await store.controls.override(*QUEUE, Numbers(running=2), fields=["running"])
    assert found.numbers == Numbers(running=2, rate=FOUR.rate, age=FOUR.age)
    found = await store.controls.override(*QUEUE, Numbers(), fields=["rate"])
    assert found.numbers == Numbers(running=2, age=FOUR.age)
    with pytest.raises(InvalidOption, match="no number 'walking'"):
        await store.controls.override(*QUEUE, Numbers(), fields=["walking"])


async def test_no_limits_at_all_are_numbers_too(store):
    await store.controls.declare(ControlScope.QUEUE, {"encode": FOUR})
    found = await store.controls.override(*QUEUE, Numbers())
    assert found.override == found.numbers == Numbers()


async def test_a_program_that_declares_no_numbers_takes_its_own_back(store, backend):
    await store.controls.declare(ControlScope.QUEUE, {"encode": FOUR, "mail": Numbers(running=1)})
    effects = await store.controls.declare(ControlScope.QUEUE, {"encode": Numbers()})
    assert effects == {"encode": "changed"}
    assert backend.execute("SELECT name FROM pulse_controls") == [("mail",)]


async def test_controls_are_listed_by_scope_and_name_page_by_page(store):
    for scope, name in (
        (ControlScope.TOPIC, "b"),
        (ControlScope.QUEUE, "c"),
        (ControlScope.QUEUE, "a"),
    ):
        await store.controls.pause(scope, name)
    weighted = Numbers(running=3, sequential=True, weights={"acme": 3})
    await store.controls.declare(ControlScope.LIMIT, {"openai": weighted})
    first = await store.controls.list_page(limit=2)
    rest = await store.controls.list_page(limit=10, after=first[-1].key)
    assert [row.key for row in first + rest] == [
        ControlKey(ControlScope.LIMIT, "openai"),
        ControlKey(ControlScope.QUEUE, "a"),
        ControlKey(ControlScope.QUEUE, "c"),
        ControlKey(ControlScope.TOPIC, "b"),
    ]
    assert first[0].numbers == weighted
    assert [row.name for row in await store.controls.list_page(ControlScope.TOPIC)] == ["b"]


async def test_every_act_of_an_operator_is_in_the_audit_log(store, clock):
    for act in (store.controls.pause, store.controls.pause, store.controls.resume):
        await act(*QUEUE, by=ANNA)
        clock.advance(1)
    await store.controls.override(*QUEUE, Numbers(running=2), by=ANNA)
    clock.advance(1)
    await store.controls.clear(*QUEUE, by=ANNA)
    clock.advance(1)
    await store.controls.pause(ControlScope.TOPIC, "email", by=ANNA)
    assert await acts(store) == [
        ("pause queue", 1, "encode"),
        ("resume queue", 1, "encode"),
        ("limit queue", 1, "encode: running 2"),
        ("clear queue", 1, "encode: no limits"),
        ("pause topic", 1, "email"),
    ]


async def test_the_number_of_controls_is_bounded(store, monkeypatch):
    monkeypatch.setattr("pulsed.store.verbs.controls.MOST_CONTROLS", 2)
    for name in ("a", "b"):
        await store.controls.pause(ControlScope.QUEUE, name)
    with pytest.raises(InvalidOption, match="2 queues, topics and limits are governed already"):
        await store.controls.pause(ControlScope.QUEUE, "c")
    await store.controls.override(ControlScope.QUEUE, "a", Numbers(running=1))
    assert len(await store.controls.list_page()) == 2


async def test_numbers_that_no_program_of_ours_wrote_are_an_error_that_says_so(store, backend):
    await store.controls.pause(*QUEUE)
    backend.execute("""UPDATE pulse_controls SET override = '{"running": -1}'""")
    with pytest.raises(InvalidOption, match="cannot be read"):
        await store.controls.get(*QUEUE)
    await submitted(store, queue="encode")
    assert await claim(store, queue="encode") == [], "nothing starts, and no claim fails"
    assert (await store.controls.clear(*QUEUE)).is_neutral
    assert len(await claim(store, queue="encode")) == 1


@pytest.mark.parametrize(
    "numbers",
    [
        {"running": 0},
        {"running": True},
        {"running": MOST_RUNNING + 1},
        {"age": 0},
        {"age": float("nan")},
        {"rate": 5},
        {"weights": {"acme": 0}},
        {"weights": {"acme": 1.5}},
        {"weights": {str(n): 1 for n in range(MOST_WEIGHTS + 1)}},
    ],
)
def test_numbers_out_of_range_are_refused(numbers):
    with pytest.raises(InvalidOption):
        Numbers(**numbers)


@pytest.mark.parametrize(
    "given", [(0,), (1, 0), (1, 1, 0), (1.5,), (True,), (10**6, 0.001), (1, float("inf"))]
)
def test_rates_out_of_range_are_refused(given):
    with pytest.raises(InvalidOption):
        Rate(*given)


def test_a_rate_takes_a_timedelta():
    assert Rate(5, per=timedelta(minutes=1)) == Rate(5, per=60.0)
