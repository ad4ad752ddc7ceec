"""Limits as values: keys from payloads, rates, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from pulsed import Limit, Rate
from pulsed.errors import InvalidOption
from pulsed.model.limit import LONGEST_LIMIT_KEY, LimitRule, checked_limit_key, split_key
from pulsed.store.verbs.rotation import Rotation

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "rule, payload, key",
    [
        (LimitRule("mail"), '{"tenant": "acme"}', "mail"),
        (LimitRule("mail", "tenant"), '{"tenant": "acme"}', "mail,acme"),
        (LimitRule("mail", "tenant"), '{"tenant": "a,b"}', "mail,a,b"),
        (LimitRule("mail", "tenant"), '{"tenant": "\\u0061"}', "mail,a"),
        (LimitRule("mail", "tenant"), '{"tenant": 7}', "mail,7"),
        (LimitRule("mail", "tenant"), '{"tenant": true}', "mail,true"),
        (LimitRule("mail", "tenant"), '{"tenant": {"b": 1, "a": [2]}}', 'mail,{"a":[2],"b":1}'),
        (LimitRule("mail", "order.tenant"), '{"order": {"tenant": "x"}}', "mail,x"),
        (LimitRule("mail", "order.tenant"), '{"order": ["x"]}', "mail,"),
        (LimitRule("mail", "tenant"), '{"tenant": null}', "mail,"),
        (LimitRule("mail", "tenant"), "{}", "mail,"),
        (LimitRule("mail", "tenant"), "[1]", "mail,"),
        (LimitRule("mail", "tenant"), "no json", "mail,"),
        (LimitRule("mail", "tenant", '"free"'), "{}", "mail,free"),
        (LimitRule("mail", "tenant", '"free"'), '{"tenant": "acme"}', "mail,acme"),
    ],
)
def test_the_key_of_a_job_follows_from_its_payload(rule: LimitRule, payload: str, key: str) -> None:
    assert rule.key_of(payload) == key


def test_a_long_value_is_replaced_by_its_digest() -> None:
    rule = LimitRule("m" * 200, "tenant")
    one, other = (rule.key_of(f'{{"tenant": "{"x" * 100_000}{end}"}}') for end in "ab")
    assert one != other
    assert max(len(one), len(other)) <= LONGEST_LIMIT_KEY


def test_a_value_that_no_database_stores_is_replaced_by_its_digest() -> None:
    key = LimitRule("mail", "tenant").key_of('{"tenant": "a\\u0000b"}')
    assert checked_limit_key(key) == key


def test_a_key_is_not_skipped_if_a_run_ended_after_it_was_counted() -> None:
    rotation = Rotation(lambda: 0.0)
    rotation.begin()
    rotation.unblock(["mail"])
    rotation.block("mail")
    assert rotation.blocked() == set()
    rotation.begin()
    rotation.block("mail")
    assert rotation.blocked() == {"mail"}


def test_a_key_is_split_at_its_first_comma() -> None:
    assert split_key("mail,a,b") == ("mail", "a,b")
    assert split_key("mail") == ("mail", None)


def test_permits_are_saved_up_to_the_burst_and_then_come_at_an_even_pace() -> None:
    rate = Rate(10, per=1, burst=3)
    assert rate.permits(None, NOW) == rate.permits(NOW - timedelta(days=1), NOW) == 3
    full_at = rate.after(None, NOW, 3)
    assert rate.permits(full_at, NOW) == 0
    assert rate.wait(full_at, NOW) == pytest.approx(0.1)
    later = NOW + timedelta(seconds=0.2)
    assert rate.permits(full_at, later) == 2
    assert rate.wait(full_at, later) == 0.0


@pytest.mark.parametrize("burst", [1, 2, 7, 30])
def test_in_no_period_do_more_jobs_start_than_the_rate_and_its_burst_allow(burst: int) -> None:
    rate = Rate(7, per=2, burst=burst)
    full_at, now, starts = None, NOW, list[datetime]()
    for step in range(400):  # all that is allowed, at odd moments
        permits = rate.permits(full_at, now)
        if permits:
            starts += [now] * permits
            full_at = rate.after(full_at, now, permits)
        now += timedelta(milliseconds=3 + step * 37 % 101)
    for place, start in enumerate(starts):
        within = [each for each in starts[place:] if each < start + timedelta(seconds=2)]
        assert len(within) <= 7 + burst
    assert all(one <= other for one, other in pairwise(starts))
    expected = burst + (now - NOW).total_seconds() * 3.5
    assert 0.85 * expected <= len(starts) <= expected  # a burst of 1 loses what it is late for


def test_without_a_burst_a_tenth_of_a_second_is_saved_up() -> None:
    assert [Rate(count, per=1).at_once for count in (1, 60, 1000)] == [1, 6, 100]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"name": "a,b", "running": 1},
        {"name": "", "running": 1},
        {"running": 0},
        {"running": True},
        {"rate": 60},
        {"per": "no path"},
        {"per": "a..b"},
        {"per": lambda: "tenant"},
        {"running": 1, "weights": {"acme": 2}},
        {"per": "tenant", "weights": {"acme": 0}},
        {"per": "tenant", "weights": {1: 1}},
        {"per": "tenant", "weights": 3},
        {"running": 2, "sequential": True},
    ],
)
def test_a_wrong_limit_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        Limit(**wrong)


@pytest.mark.parametrize(
    "count, per, burst",
    [(0, 1, None), (1, 0, None), (1, float("nan"), None), (1, 1, 0), (1.5, 1, 1), (1, "1", 1)],
)
def test_a_wrong_rate_is_refused(count: Any, per: Any, burst: Any) -> None:
    with pytest.raises(InvalidOption):
        Rate(count, per=per, burst=burst)
