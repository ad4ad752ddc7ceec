"""Waiting times: a job's backoff and the storage retry policy."""

import math
from typing import Any

import click
import pytest

from pulsed import Backoff, RetryPolicy
from pulsed.app import Pulse
from pulsed.cli.options.retry import retry_policy
from pulsed.engine.worker.options import WorkerOptions
from pulsed.errors import ConfigError, InvalidOption, NoRetry, RetryAfter, Snooze

LOWEST, MIDDLE, HIGHEST = (lambda: 0.0), (lambda: 0.5), (lambda: 1.0)


def delays(policy: Backoff | RetryPolicy, count: int) -> list[float]:
    return [round(policy.delay(n, MIDDLE), 9) for n in range(1, count + 1)]


class TestBackoff:
    def test_quadratic_is_1_4_9(self) -> None:
        assert delays(Backoff.quadratic(), 4) == [1, 4, 9, 16]

    def test_linear_adds_thirty_seconds_each_time(self) -> None:
        assert delays(Backoff.linear(), 3) == [30, 60, 90]

    def test_fixed_stays_the_same(self) -> None:
        assert delays(Backoff.fixed(7), 3) == [7, 7, 7]

    def test_exponential_doubles_up_to_its_cap(self) -> None:
        assert delays(Backoff.exponential(cap=10), 6) == [1, 2, 4, 8, 10, 10]

    def test_jitter_moves_a_delay_by_its_fraction_either_way(self) -> None:
        backoff = Backoff.exponential(cap=100, jitter=0.1)
        assert backoff.delay(20, LOWEST) == pytest.approx(90)
        assert backoff.delay(20, HIGHEST) == pytest.approx(110)
        assert all(90 <= backoff.delay(20) <= 110 for _ in range(1_000))

    def test_without_a_base_there_is_no_wait(self) -> None:
        assert delays(Backoff.fixed(0), 3) == [0, 0, 0]

    @pytest.mark.parametrize("attempts", [10_000, 2**31, 10**18])
    @pytest.mark.parametrize(
        "backoff",
        [
            Backoff.quadratic(1e8),
            Backoff.exponential(1e8, factor=100, cap=86_400),
            Backoff(1e8, power=10, factor=100),
        ],
    )
    def test_huge_numbers_of_attempts_hit_the_cap_and_do_not_overflow(
        self, backoff: Backoff, attempts: int
    ) -> None:
        assert backoff.delay(attempts, MIDDLE) == 86_400

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1, 10**400, True, "1", None])
    @pytest.mark.parametrize("field", ["base", "power", "factor", "cap", "jitter"])
    def test_numbers_that_make_no_sense_are_refused(self, field: str, bad: object) -> None:
        with pytest.raises(InvalidOption, match=f"Backoff {field}"):
            Backoff(**{"base": 1.0, field: bad})  # type: ignore[arg-type]

    def test_a_factor_below_one_would_shrink_and_is_refused(self) -> None:
        with pytest.raises(InvalidOption):
            Backoff.exponential(factor=0.5)


class TestRetryPolicy:
    def test_storage_defaults_double_from_a_tenth_of_a_second(self) -> None:
        policy = RetryPolicy()
        assert policy.max_attempts == 5
        assert delays(policy, 6) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]

    def test_growth_ends_at_the_cap(self) -> None:
        assert delays(RetryPolicy(), 8)[-2:] == [5.0, 5.0]
        assert RetryPolicy().delay(10**9, MIDDLE) == 5.0

    def test_dequeue_is_more_patient(self) -> None:
        policy = RetryPolicy.dequeue()
        assert policy == RetryPolicy(3, initial=0.5, max=10.0, multiplier=2.0, jitter=0.2)

    def test_jitter_is_a_tenth_either_way(self) -> None:
        policy = RetryPolicy(initial=1.0)
        assert policy.delay(1, LOWEST) == pytest.approx(0.9)
        assert policy.delay(1, HIGHEST) == pytest.approx(1.1)
        assert all(0.9 <= policy.delay(1) <= 1.1 for _ in range(1_000))

    def test_disabled_tries_once(self) -> None:
        assert RetryPolicy.disabled().max_attempts == 1

    @pytest.mark.parametrize("bad", [0, -1, 1.5, 10**6, None, True])
    def test_the_number_of_attempts_must_make_sense(self, bad: object) -> None:
        with pytest.raises(InvalidOption, match="max_attempts"):
            RetryPolicy(max_attempts=bad)  # type: ignore[arg-type]


class TestRetryOptionsOfAnApp:
    def test_the_shorthand_keeps_the_other_defaults(self) -> None:
        settings = Pulse(retry_attempts=10)._settings
        assert settings.retry == RetryPolicy(max_attempts=10)
        assert settings.dequeue_retry == RetryPolicy.dequeue()

    def test_disabling_turns_dequeue_retry_off_as_well(self) -> None:
        settings = Pulse(retry=RetryPolicy.disabled())._settings
        assert (settings.retry.max_attempts, settings.dequeue_retry.max_attempts) == (1, 1)

    def test_dequeue_retry_can_be_set_apart(self) -> None:
        dequeue = RetryPolicy(max_attempts=7)
        settings = Pulse(retry=RetryPolicy.disabled(), dequeue_retry=dequeue)._settings
        assert (settings.retry.max_attempts, settings.dequeue_retry) == (1, dequeue)

    def test_one_attempt_is_not_the_same_as_disabled(self) -> None:
        for settings in (
            Pulse(retry_attempts=1)._settings,
            Pulse(retry=RetryPolicy(max_attempts=1))._settings,
        ):
            assert settings.retry.max_attempts == 1
            assert settings.dequeue_retry == RetryPolicy.dequeue()

    def test_a_worker_may_have_its_own(self) -> None:
        def own(**options: Any) -> tuple[Any, Any]:
            return WorkerOptions(**options).own_retry

        dequeue = RetryPolicy(max_attempts=7)
        assert own() == (None, None)
        assert own(retry_attempts=9) == (RetryPolicy(max_attempts=9), None)
        assert own(retry_attempts=1, dequeue_retry=dequeue) == (RetryPolicy(1), dequeue)
        assert own(retry=RetryPolicy.disabled()) == (RetryPolicy(1), RetryPolicy(1))
        with pytest.raises(ConfigError, match="give one"):
            own(retry=dequeue, retry_attempts=3)

    @pytest.mark.parametrize(
        "text, policy",
        [
            ("off", RetryPolicy.disabled()),
            ("10", RetryPolicy(10)),
            ("attempts=5,initial=200ms,max=30s", RetryPolicy(5, 0.2, 30.0)),
            ("multiplier=3,jitter=0", RetryPolicy(multiplier=3, jitter=0)),
        ],
    )
    def test_on_the_command_line(self, text: str, policy: RetryPolicy) -> None:
        assert retry_policy(text) == policy

    @pytest.mark.parametrize("text", ["", "many", "attempts=x", "initial=soon", "tries=3"])
    def test_the_command_line_refuses_what_it_does_not_understand(self, text: str) -> None:
        with pytest.raises(click.BadParameter):
            retry_policy(text)

    def test_saying_it_twice_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="give one"):
            Pulse(retry=RetryPolicy(), retry_attempts=3)


class TestDirectives:
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -1, 10**400, True])
    @pytest.mark.parametrize("directive", [RetryAfter, Snooze])
    def test_a_handler_cannot_ask_for_a_senseless_wait(
        self, directive: type[RetryAfter | Snooze], bad: float
    ) -> None:
        with pytest.raises(InvalidOption, match=directive.__name__):
            directive(bad)

    def test_they_say_why(self) -> None:
        assert str(NoRetry("no such user")) == "no such user"
        assert "90 s" in str(RetryAfter(90))
