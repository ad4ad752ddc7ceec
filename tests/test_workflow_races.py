"""Workflows on PostgreSQL: concurrent ends, signals and suspensions never lose a wake-up.

Two transactions, stopped before each of their statements, in every order in which they can meet.
The longest pairs have thousands: of those, the ones in which the turn is taken away at most twice
or three times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replaced

from pulsed.model.job import Assignment, Status
from pulsed.model.outcome import Failed, Released, Report, Succeeded
from pulsed.model.step import StepKind
from pulsed.store.blocking import run_blocking as now
from tests.support.backends import PostgresBackend
from tests.support.checkpoints import (
    CHILDREN_ONLY,
    a_family,
    a_wait,
    children_of,
    claimed_children,
    send,
    statuses,
    suspended,
)
from tests.support.interleaving import Act, Explorer, exploring
from tests.support.jobs import POLICIES, a_worker_id, claim, reap, row, running, settle, submitted
from tests.support.statements import owner_of

STAYS = 10_000_000.0
"""Seconds of a lease that no watchdog of these tests ends."""


@pytest.fixture
def explorer(postgres_url, clock) -> Iterator[Explorer]:
    with exploring(PostgresBackend(postgres_url, clock)) as made:
        yield made


def settling(run: Any, outcome: Any) -> Act:
    return lambda store: settle(store, run, outcome)


def suspending(run: Any, kind: StepKind, **says: Any) -> Act:
    return lambda store: suspended(store, run, kind, **says)


def woken(explorer: Explorer) -> int:
    return sum(actor.woken for actor in explorer.actors)


def explore(
    explorer: Explorer, prepare: Callable[[], list[Act]], look: Callable[[], None], **most: int
) -> list[str]:
    """Go through every order; returns those after which the check ``look`` fails."""
    bad = []
    for order in explorer.every_order(prepare, **most):
        for actor in explorer.actors:
            actor.result()
        try:
            look()
        except AssertionError:
            bad.append(order)
    assert explorer.orders > 1
    return bad


# -- the last two children ------------------------------------------------------------------------

ENDS: dict[str, Callable[[Any], Act]] = {
    "settle": lambda run: settling(run, Succeeded()),
    "fail": lambda run: settling(run, Failed("no", final=True)),
    "reap": lambda _: reap,
    "cancel": lambda run: lambda store: store.cancel([run.job_id]),
}


class LastTwo:
    """A parent that waits for two children, each of which ends in its own way."""

    def __init__(self, explorer: Explorer, ways: tuple[str, str]) -> None:
        self.explorer = explorer
        self.ways = ways

    def prepare(self) -> list[Act]:
        calm, clock = self.explorer.calm, self.explorer.backend.clock
        lease = [1.0 if way == "reap" else STAYS for way in self.ways]
        parent = now(running(calm, lease=STAYS))
        children = children_of(parent.job_id, 2, max_attempts=1)
        made = zip(children, lease, strict=True)
        now(
            calm.workflows.add_children(
                parent.lease, [replaced(one, lease=until) for one, until in made]
            )
        )
        # Each has a worker to itself: one that dies in company is not charged for it.
        each = (claim(calm, a_worker_id(), limit=1, topics=CHILDREN_ONLY) for _ in children)
        claimed = {run.job_id: run for (run,) in map(now, each)}
        runs = [claimed[child.id] for child in children]
        now(suspended(calm, parent, StepKind.FAN_OUT))
        for run, way in zip(runs, self.ways, strict=True):
            if way == "cancel":
                now(settle(calm, run, Released()))
        clock.advance(10)
        self.parent = parent.job_id
        self.children = [run.job_id for run in runs]
        return [ENDS[way](run) for run, way in zip(runs, self.ways, strict=True)]

    def look(self) -> None:
        calm, wakes = self.explorer.calm, woken(self.explorer)
        if "reap" in self.ways and not wakes:  # it leaves a family that is locked to the next tick
            assert now(statuses(calm, [self.parent])) == [Status.WAITING]
            now(reap(calm))
            wakes = 1
        assert now(statuses(calm, [self.parent])) == [Status.PENDING]
        assert wakes == 1


PAIRS = [
    ("settle", "settle"), ("settle", "fail"), ("settle", "cancel"), ("settle", "reap"),
    ("reap", "cancel"), ("cancel", "cancel"),
]  # fmt: skip


@pytest.mark.parametrize("ways", PAIRS, ids=" and ".join)
def test_the_last_two_children_wake_their_parent_once_in_every_order(explorer, ways):
    race = LastTwo(explorer, ways)
    switches = 2 if "reap" in ways else 9
    assert explore(explorer, race.prepare, race.look, switches=switches) == []


# -- and without the protocol ---------------------------------------------------------------------


def test_without_the_lock_on_the_parent_there_is_an_order_that_leaves_it_asleep(explorer):
    for actor in explorer.actors:
        remove_locks(actor.store, "lock", "lock_families", "settle_children")
    race = LastTwo(explorer, ("settle", "settle"))
    assert explore(explorer, race.prepare, race.look, switches=2) != []


def remove_locks(store: Any, *statements: str) -> None:
    for name in statements:
        owner = owner_of(store.engine, name)
        sql = getattr(owner, name)
        assert "FOR NO KEY UPDATE" in sql.text
        text = sql.text.replace("FOR NO KEY UPDATE OF k", "").replace("FOR NO KEY UPDATE", "")
        setattr(owner, name, replace(sql, text=text))


def test_a_child_that_is_settled_and_reaped_at_once(explorer):
    """Both may be late: the report came when the lease was over. One of them ends the job.

    A watchdog waits for no job, so it cannot lock whole families in their order: here the two may
    deadlock, and the one that is rolled back tries again.
    """

    def prepare() -> list[Act]:
        parent, (run,) = now(a_family(explorer.calm, 1, max_attempts=1, lease=1.0))
        now(suspended(explorer.calm, parent, StepKind.FAN_OUT))
        explorer.backend.clock.advance(10)
        made.update(parent=parent.job_id, child=run.job_id)
        return [settling(run, Succeeded()), reap]

    def look() -> None:
        accepted, reaped = (actor.result() for actor in explorer.actors)
        assert accepted != bool(reaped)
        assert now(statuses(explorer.calm, [made["parent"]])) == [Status.PENDING]
        assert any(actor.deadlocks for actor in explorer.actors) or woken(explorer) == 1

    made: dict[str, Any] = {}
    assert explore(explorer, prepare, look, switches=2) == []


# -- signals --------------------------------------------------------------------------------------


def test_a_signal_that_meets_the_suspension_is_not_slept_over(explorer):
    def prepare() -> list[Act]:
        run = now(running(explorer.calm))
        made["run"] = run.job_id
        return [suspending(run, StepKind.SIGNAL, key="go"), lambda store: send(store, run.job_id)]

    def look() -> None:
        assert now(statuses(explorer.calm, [made["run"]])) == [Status.PENDING]
        assert woken(explorer) == 1

    made: dict[str, Any] = {}
    assert explore(explorer, prepare, look) == []


def test_two_signals_wake_a_job_once(explorer):
    def prepare() -> list[Act]:
        run = now(running(explorer.calm))
        now(suspended(explorer.calm, run, StepKind.SIGNAL, key="go"))
        made["run"] = run.job_id
        return [lambda store: send(store, run.job_id)] * 2

    def look() -> None:
        assert now(statuses(explorer.calm, [made["run"]])) == [Status.PENDING]
        assert woken(explorer) == 1

    made: dict[str, Any] = {}
    assert explore(explorer, prepare, look) == []


# -- waiting for another job ----------------------------------------------------------------------


@pytest.mark.parametrize("end", ["success", "failure", "cancel", "delete"])
def test_a_job_that_ends_while_somebody_begins_to_wait_for_it(explorer, end):
    """From before the waiter records what it waits for until after it has been suspended."""

    def prepare() -> list[Act]:
        calm = explorer.calm
        waiter = now(running(calm))
        if end in ("cancel", "delete"):
            target = now(submitted(calm, delay=60))
        else:
            run = now(running(calm))
            target = run.job_id
        made.update(waiter=waiter.job_id)

        async def wait(store: Any) -> str:
            found = await store.workflows.watch(waiter.lease, target)
            if found is None or found.status not in (Status.PENDING, Status.RUNNING):
                return "ended"
            await suspended(store, waiter, StepKind.JOB, key=str(target))
            return "suspended"

        acts: dict[str, Act] = {
            "cancel": lambda store: store.cancel([target]),
            "delete": lambda store: store.delete([target]),
        }
        if end in acts:
            return [wait, acts[end]]
        return [wait, settling(run, Succeeded() if end == "success" else Failed("x", final=True))]

    def look() -> None:
        how, _ = (actor.result() for actor in explorer.actors)
        expected = Status.PENDING if how == "suspended" else Status.RUNNING
        assert now(statuses(explorer.calm, [made["waiter"]])) == [expected]
        assert woken(explorer) == (how == "suspended")
        seen.add(how)

    made: dict[str, Any] = {}
    seen: set[str] = set()
    assert explore(explorer, prepare, look, switches=2) == []
    assert seen == {"ended", "suspended"}


# -- suspending, cancelling, resuming -------------------------------------------------------------


def test_the_last_child_that_ends_as_its_parent_is_suspended(explorer):
    def prepare() -> list[Act]:
        parent, (run,) = now(a_family(explorer.calm, 1))
        made["parent"] = parent.job_id
        return [suspending(parent, StepKind.FAN_OUT), settling(run, Succeeded())]

    def look() -> None:
        assert now(statuses(explorer.calm, [made["parent"]])) == [Status.PENDING]
        assert woken(explorer) == 1

    made: dict[str, Any] = {}
    assert explore(explorer, prepare, look) == []


def test_cancelling_a_parent_as_its_last_child_completes(explorer):
    def prepare() -> list[Act]:
        parent, (run,) = now(a_family(explorer.calm, 1))
        now(suspended(explorer.calm, parent, StepKind.FAN_OUT))
        made.update(parent=parent.job_id, child=run.job_id)
        cancel: Act = lambda store: store.cancel([parent.job_id])  # noqa: E731
        return [cancel, settling(run, Succeeded())]

    def look() -> None:
        both = [made["parent"], made["child"]]
        assert now(statuses(explorer.calm, both)) == [Status.CANCELLED, Status.SUCCEEDED]
        assert not any(actor.deadlocks for actor in explorer.actors)

    made: dict[str, Any] = {}
    assert explore(explorer, prepare, look, switches=3) == []


@pytest.mark.parametrize("outcome", [Failed("x"), Succeeded()], ids=["badly", "well"])
def test_cancelling_a_child_as_it_completes(explorer, outcome):
    def prepare() -> list[Act]:
        parent, (run,) = now(a_family(explorer.calm, 1))
        now(suspended(explorer.calm, parent, StepKind.FAN_OUT))
        made["parent"] = parent.job_id
        return [lambda store: store.cancel([run.job_id]), settling(run, outcome)]

    def look() -> None:
        found = now(statuses(explorer.calm, [made["parent"]]))
        assert found in ([Status.PENDING], [Status.WAITING])  # a retry is still to come
        assert woken(explorer) == (found == [Status.PENDING])
        assert not any(actor.deadlocks for actor in explorer.actors)

    made: dict[str, Any] = {}
    assert explore(explorer, prepare, look, switches=3) == []


def test_a_parent_whose_deadline_passes_as_its_last_child_ends_runs_once(explorer):
    def prepare() -> list[Act]:
        calm = explorer.calm
        parent, (run,) = now(a_family(calm, 1, lease=STAYS))
        now(suspended(calm, parent, StepKind.FAN_OUT, delay=5))
        explorer.backend.clock.advance(10)
        made["parent"] = parent.job_id
        return [lambda store: claim(store, topics=POLICIES), settling(run, Succeeded())]

    def look() -> None:
        claimed = len(explorer.actors[0].result())
        found = now(row(explorer.calm, made["parent"]))
        assert found.status is (Status.RUNNING if claimed else Status.PENDING)
        assert found.attempts == claimed
        assert woken(explorer) <= 1
        assert claimed or woken(explorer) == 1

    made: dict[str, Any] = {}
    assert explore(explorer, prepare, look) == []


# -- locks ----------------------------------------------------------------------------------------


def families_that_meet(
    explorer: Explorer, outcome: Any, report: Callable[..., Report] = Report.of
) -> Callable[[], list[Act]]:
    """Two batches: each ends a child of a parent that the other batch ends, or its sibling."""

    def prepare() -> list[Act]:
        calm = explorer.calm
        first, (a, b) = now(a_family(calm, 2, lease=STAYS))
        second, (c, d) = now(a_family(calm, 2, lease=STAYS))
        one = [report(run, outcome) for run in (a, c)]
        other = [report(run, outcome) for run in (d, b)]
        one.append(report(second, Succeeded(discard_checkpoints=True)))
        other.append(report(first, Succeeded(discard_checkpoints=True)))
        return [lambda store: store.settle(one), lambda store: store.settle(other)]

    return prepare


def a_workflow_that_ends_before_its_children(explorer: Explorer) -> Callable[[], list[Act]]:
    """One ends a workflow that is a child; the other, in one batch, its child and its sibling."""

    def prepare() -> list[Act]:
        calm = explorer.calm
        top, (inner, sibling) = now(a_family(calm, 2, lease=STAYS))
        now(calm.workflows.add_children(inner.lease, children_of(inner.job_id, 1, lease=STAYS)))
        (left,) = now(claimed_children(calm, inner.job_id, 1))
        now(suspended(calm, inner, StepKind.FAN_OUT, delay=5))
        now(suspended(calm, top, StepKind.FAN_OUT))
        explorer.backend.clock.advance(10)
        (again,) = now(claim(calm, topics=CHILDREN_ONLY))
        assert again.job_id == inner.job_id
        leaves = [Report.of(run, Succeeded()) for run in (left, sibling)]
        return [settling(again, Succeeded()), lambda store: store.settle(leaves)]

    return prepare


def a_family_that_is_cancelled(explorer: Explorer) -> Callable[[], list[Act]]:
    """One ends two children; the other cancels them and their parent."""

    def prepare() -> list[Act]:
        calm = explorer.calm
        parent, runs = now(a_family(calm, 2))
        now(suspended(calm, parent, StepKind.FAN_OUT))
        reports = [Report.of(run, Succeeded()) for run in runs]
        everybody = [parent.job_id, *(run.job_id for run in runs)]
        return [lambda store: store.settle(reports), lambda store: store.cancel(everybody)]

    return prepare


def deadlocks(explorer: Explorer, prepare: Callable[[], list[Act]], switches: int) -> int:
    found = 0
    for _ in explorer.every_order(prepare, switches=switches):
        for actor in explorer.actors:
            actor.result()
        found += sum(actor.deadlocks for actor in explorer.actors)
        if found:
            break
    return found


@pytest.mark.parametrize("outcome", [Succeeded(), Failed("no", final=True)], ids=["well", "badly"])
def test_batches_that_mix_parents_and_children_of_each_other_do_not_deadlock(explorer, outcome):
    assert not deadlocks(explorer, families_that_meet(explorer, outcome), switches=3)


def test_reports_that_do_not_say_who_is_a_child_do_not_deadlock(explorer):
    def report(run: Assignment, outcome: Any) -> Report:
        return Report(run.lease, outcome)

    badly = Failed("no", final=True)
    assert not deadlocks(explorer, families_that_meet(explorer, badly, report), switches=3)


def test_without_the_lock_on_whole_families_they_would(explorer):
    def report(run: Assignment, outcome: Any) -> Report:
        return Report(run.lease, outcome, is_child=False)  # parents are locked last

    badly = Failed("no", final=True)
    assert deadlocks(explorer, families_that_meet(explorer, badly, report), switches=3)


def test_a_workflow_that_ends_beside_its_child_and_its_sibling_does_not_deadlock(explorer):
    prepare = a_workflow_that_ends_before_its_children(explorer)
    assert not deadlocks(explorer, prepare, switches=3)


def test_cancelling_a_whole_family_as_its_children_complete_does_not_deadlock(explorer):
    assert not deadlocks(explorer, a_family_that_is_cancelled(explorer), switches=3)


def test_a_child_that_is_cancelled_by_its_own_suspension_meets_another_cancel(explorer):
    def prepare() -> list[Act]:
        calm = explorer.calm
        parent, (run, other) = now(a_family(calm, 2))
        now(suspended(calm, parent, StepKind.FAN_OUT))
        now(settle(calm, other, Released()))
        now(calm.cancel([run.job_id]))  # a request
        both = [run.job_id, other.job_id]
        return [
            lambda store: store.settle([Report.of(run, a_wait(StepKind.SLEEP, delay=9))]),
            lambda store: store.cancel(both),
        ]

    assert not deadlocks(explorer, prepare, switches=3)
