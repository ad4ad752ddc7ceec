"""Which statement ends which run: decided without a database, and right whatever was decided."""

from typing import Any
from uuid import uuid4

import pytest

from pulsed.model.ids import new_job_id
from pulsed.model.job import Lease, Status
from pulsed.model.outcome import (
    Cancelled,
    Failed,
    Outcome,
    Released,
    Report,
    Snoozed,
    Succeeded,
    Successes,
)
from pulsed.model.step import StepKind
from pulsed.store.base import Store
from pulsed.store.results import Accepted
from pulsed.store.verbs.effects import Effects, Settled
from pulsed.store.verbs.settle import Ways, settle, ways
from tests.support.checkpoints import a_family, a_wait, suspended
from tests.support.jobs import ALICE, BOB, a_job, claim, row, running
from tests.support.statements import postgres_engine

KNOWN = [True, False, None]
every_knowledge = pytest.mark.parametrize("is_child", KNOWN, ids=["child", "no child", "unknown"])


def a_report(outcome: Outcome, is_child: bool | None = None, worker: Any = ALICE) -> Report:
    return Report(Lease(new_job_id(), 1, worker), outcome, is_child)


@every_knowledge
@pytest.mark.parametrize(
    "outcome",
    [Succeeded(discard_checkpoints=True), Failed("x"), Snoozed(1), Cancelled(), Released()],
    ids=lambda outcome: type(outcome).__name__,
)
def test_every_end_but_a_success_or_a_wait_goes_the_way_that_is_right_for_all(outcome, is_child):
    report = a_report(outcome, is_child)
    assert ways([report]) == Ways({}, {}, [], [report])


@every_knowledge
def test_a_wait_is_suspended(is_child):
    report = a_report(a_wait(StepKind.SLEEP, delay=1), is_child)
    assert ways([report]) == Ways({}, {}, [report], [])


def test_successes_go_by_worker_and_by_whether_they_are_children():
    reports = {
        (worker, is_child): a_report(Succeeded(), is_child, worker)
        for worker in (ALICE, BOB)
        for is_child in KNOWN
    }
    found = ways(reports.values())
    assert found.succeeded == {
        worker: [reports[worker, False], reports[worker, None]] for worker in (ALICE, BOB)
    }
    assert found.children == {worker: [reports[worker, True]] for worker in (ALICE, BOB)}
    assert found.waiting == found.others == []


def test_what_a_short_way_leaves_out_goes_the_way_that_is_right_for_all():
    plain, left_out, child, failed = reports = [
        a_report(Succeeded(), is_child=False),
        a_report(Succeeded(), is_child=False),
        a_report(Succeeded(), is_child=True),
        a_report(Failed("x")),
    ]
    settling = settle(postgres_engine(), reports)
    answers = [
        Accepted([plain.lease]),
        Accepted([child.lease]),
        Accepted([failed.lease, left_out.lease]),
    ]
    next(settling)
    settling.send(Settled(answers[0], Effects()))
    last = settling.send(Settled(answers[1], Effects()))
    script = last.script()
    next(script)  # families are locked: not all of these are known to have no parent
    ended = script.send([]).rows
    assert [values[0] for values in ended] == [failed.lease.job_id, left_out.lease.job_id]
    with pytest.raises(StopIteration) as finished:
        settling.send(Settled(answers[2], Effects()))
    assert finished.value.value == {report.lease for report in reports}


async def test_an_assignment_says_whose_child_it_is(store):
    parent, (child,) = await a_family(store, 1)
    assert (parent.parent_id, child.parent_id) == (None, parent.job_id)
    assert [Report.of(run, Released()).is_child for run in (parent, child)] == [False, True]


@every_knowledge
@pytest.mark.parametrize("outcome", [Succeeded("1"), Failed("x", final=True)], ids=["well", "ill"])
async def test_a_parent_wakes_whatever_the_reports_say_of_its_children(store, outcome, is_child):
    parent, runs = await a_family(store, 3)
    await suspended(store, parent, StepKind.FAN_OUT)
    reports = [Report(run.lease, outcome, is_child) for run in runs]
    assert await store.settle(reports) == {run.lease for run in runs}
    assert (await row(store, parent.job_id)).status is Status.PENDING


@every_knowledge
async def test_a_job_without_a_parent_ends_whatever_its_report_says(store, is_child):
    done, lost = await running(store), Lease(uuid4(), 1, ALICE)
    reports = [Report(lease, Succeeded("1"), is_child) for lease in (done.lease, lost)]
    assert await store.settle(reports) == {done.lease}
    found = await row(store, done.job_id)
    assert (found.status, found.result) == (Status.SUCCEEDED, "1")


# -- successes in columns -------------------------------------------------------------------------


def in_columns(runs: list[Lease], results: list[str | None] | None = None) -> Successes:
    return Successes(
        ALICE,
        [run.job_id for run in runs],
        [run.token for run in runs],
        results or ["1"] * len(runs),
    )


async def end_in_columns(store: Store, runs: list[Lease]) -> tuple[bool, set[Lease]]:
    """End runs as a server does: in columns and, if those were not all, by their reports."""
    if await store.settle_successes(in_columns(runs)):
        return True, set(runs)
    return False, await store.settle([Report(run, Succeeded("1")) for run in runs])


async def test_successes_in_columns_are_stored_as_single_ones_are(store, clock):
    await store.submit([a_job() for _ in range(3)])
    runs = [run.lease for run in await claim(store)]
    clock.advance(2)
    ended = await store.settle_successes(in_columns(runs, ["1", None, '"x"']))
    assert ended is not store.is_remote  # a remote store leaves them to ``settle``
    if ended:
        rows = [await row(store, run.job_id) for run in runs]
        assert [each.result for each in rows] == ["1", None, '"x"']
        for each in rows:
            assert (each.status, each.last_outcome) == (Status.SUCCEEDED, "SUCCEEDED")
            assert (each.completed_at, each.last_worker) == (clock.now, ALICE)
            assert (each.locked_by, each.lease_until) == (None, None)


async def test_successes_in_columns_may_be_repeated(store):
    await store.submit([a_job() for _ in range(3)])
    runs = [run.lease for run in await claim(store)]
    await store.settle_successes(in_columns(runs))
    assert await end_in_columns(store, runs) == (False, set(runs))


@pytest.mark.parametrize("spoil", ["token", "worker", "unknown", "twice"])
async def test_only_the_lease_that_a_job_has_ends_it_in_columns(store, spoil):
    await store.submit([a_job() for _ in range(3)])
    good, other, third = (run.lease for run in await claim(store))
    bad = {
        "token": other._replace(token=other.token + 1),
        "worker": (await running(store, BOB)).lease._replace(worker_id=ALICE),
        "unknown": Lease(uuid4(), 1, ALICE),
        "twice": good,
    }[spoil]
    assert await end_in_columns(store, [good, bad, third]) == (False, {good, third})
    assert (await row(store, other.job_id)).status is Status.RUNNING
    if spoil == "worker":
        assert (await row(store, bad.job_id)).status is Status.RUNNING


async def test_a_child_in_columns_is_left_to_its_report_which_wakes_the_parent(store):
    parent, (child, *_) = await a_family(store, 1)
    await suspended(store, parent, StepKind.FAN_OUT)
    assert await end_in_columns(store, [child.lease]) == (False, {child.lease})
    assert (await row(store, parent.job_id)).status is Status.PENDING
