"""How long finished jobs are kept: what a policy says, and what is refused."""

from datetime import timedelta

import pytest

from pulsed import Pulse, Retention, Status
from pulsed.client.prune import ages_for
from pulsed.engine.worker.options import WorkerOptions
from pulsed.errors import InvalidOption
from pulsed.model.retention import SHORTEST, described

DAY = 86_400.0


def test_by_default_dead_letters_are_kept_for_ever_and_all_else_for_a_week():
    assert Retention().ages == {Status.SUCCEEDED: 7 * DAY, Status.CANCELLED: 7 * DAY}
    assert WorkerOptions().retention == Pulse("sqlite://").retention == Retention()


def test_each_end_has_its_own_time():
    policy = Retention(succeeded=timedelta(hours=1), cancelled=None, dead_lettered=90 * DAY)
    assert policy.ages == {Status.SUCCEEDED: 3600.0, Status.DEAD_LETTERED: 90 * DAY}


def test_for_ever():
    assert Retention.forever().ages == {}


@pytest.mark.parametrize(
    "value", [-1, 0, SHORTEST - 1, float("nan"), float("inf"), 1e12, True, "7d", timedelta(-1)]
)
@pytest.mark.parametrize("field", ["succeeded", "cancelled", "dead_lettered"])
def test_what_is_no_time_to_keep_a_job_is_refused_where_it_is_written(field, value):
    with pytest.raises(InvalidOption, match=rf"keep finished jobs: {field} must be .*None is"):
        Retention(**{field: value})


@pytest.mark.parametrize("value", [7, timedelta(days=7), "7d", {"succeeded": 7}])
def test_an_app_takes_a_policy_and_nothing_else(value):
    with pytest.raises(InvalidOption, match=r"retention must be a Retention, such as"):
        Pulse("sqlite://", retention=value)
    app = Pulse("sqlite://")
    with pytest.raises(InvalidOption, match="retention must be a Retention"):
        app.retention = value
    with pytest.raises(InvalidOption, match="retention must be a Retention"):
        app.worker(retention=value)


def test_a_worker_goes_by_its_app_unless_it_is_told_otherwise():
    policy = Retention(succeeded=3600)
    app = Pulse("sqlite://", retention=policy)
    assert app.worker().options.retention == policy
    assert app.worker(retention=Retention.forever()).options.retention.ages == {}
    app.retention = Retention(cancelled=60)
    assert app.worker().options.retention == Retention(cancelled=60)


def test_it_can_be_said_in_a_few_words():
    policy = Retention(succeeded=1.5 * DAY, cancelled=7200, dead_lettered=90)
    assert described(policy.ages) == "SUCCEEDED 36 h, CANCELLED 2 h, DEAD_LETTERED 90 s"
    assert described({}) == "everything forever"


class TestAges:
    """What ``app.jobs.prune`` and ``pulsed jobs prune`` are about."""

    policy = Retention(succeeded=60, cancelled=None, dead_lettered=90)

    def test_without_an_age_the_policy_decides(self):
        assert ages_for(self.policy) == {Status.SUCCEEDED: 60.0, Status.DEAD_LETTERED: 90.0}
        assert ages_for(self.policy, status="dead_lettered") == {Status.DEAD_LETTERED: 90.0}
        assert ages_for(self.policy, status=Status.CANCELLED) == {}

    def test_an_age_alone_leaves_dead_letters_alone(self):
        for age in (5, timedelta(seconds=5)):
            assert ages_for(self.policy, older_than=age) == {
                Status.SUCCEEDED: 5.0,
                Status.CANCELLED: 5.0,
            }
        named = ages_for(self.policy, older_than=0, status=["DEAD_LETTERED", "CANCELLED"])
        assert named == {Status.DEAD_LETTERED: 0.0, Status.CANCELLED: 0.0}

    @pytest.mark.parametrize("status", ["PENDING", "running", [Status.SUCCEEDED, Status.WAITING]])
    def test_jobs_that_have_not_ended_cannot_be_pruned(self, status):
        with pytest.raises(InvalidOption, match="have not ended and cannot be pruned"):
            ages_for(self.policy, older_than=5, status=status)

    @pytest.mark.parametrize("age", [-1, "7d", float("nan")])
    def test_an_age_is_checked(self, age):
        with pytest.raises(InvalidOption, match="older_than must be"):
            ages_for(self.policy, older_than=age)
