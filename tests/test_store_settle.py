"""Ending a run: one guarded statement decides between success, retry and dead letter."""

import random
import threading
from datetime import datetime
from typing import Any

import pytest

from pulsed.model.backoff import Backoff
from pulsed.model.ids import new_job_id
from pulsed.model.job import Lease, Status
from pulsed.model.lifecycle import outcome_name
from pulsed.model.outcome import Cancelled, Failed, Outcome, Released, Report, Snoozed, Succeeded
from pulsed.store.blocking import run_blocking
from pulsed.store.results import Accepted, Partly
from tests.support.backends import close_blocking
from tests.support.jobs import (
    ALICE,
    BOB,
    DEAD_LETTERS,
    NO_WAIT,
    a_job,
    a_policy,
    claim,
    claim_one,
    reap,
    row,
    running,
    settle,
    submitted,
)

# -- success --------------------------------------------------------------------------------------


async def test_success_is_terminal_and_keeps_its_result(store, clock):
    run = await running(store)
    clock.advance(5)
    assert await settle(store, run, Succeeded('{"sent":true}'))
    found = await row(store, run.job_id)
    assert (found.status, found.result) == (Status.SUCCEEDED, '{"sent":true}')
    assert found.completed_at == clock.now
    assert (found.locked_by, found.lease_until) == (None, None)
    assert (found.last_worker, found.last_outcome) == (ALICE, "SUCCEEDED")


async def test_success_leaves_no_failure_row_and_no_error(store, clock):
    job_id = await submitted(store, backoff=NO_WAIT)
    await settle(store, await claim_one(store), Failed("first"))
    await settle(store, await claim_one(store), Succeeded())
    assert (await row(store, job_id)).last_error is None
    assert [failure.error for failure in await store.failures(job_id)] == ["first"]


# -- failure: retry or dead letter ----------------------------------------------------------------


async def test_a_failure_with_attempts_left_is_retried(store, clock):
    run = await running(store, max_attempts=2)
    assert await settle(store, run, Failed("boom", "Traceback …"))
    found = await row(store, run.job_id)
    assert (found.status, found.last_error) == (Status.RETRYING, "boom")
    assert (found.locked_by, found.lease_until, found.completed_at) == (None, None, None)
    assert (found.last_worker, found.last_outcome) == (ALICE, "FAILED")
    assert found.attempts == 1


async def test_the_last_failure_is_dead_lettered_with_its_error(store, clock):
    job_id = await submitted(store, max_attempts=2, backoff=NO_WAIT)
    await settle(store, await claim_one(store), Failed("first"))
    clock.advance(7)
    await settle(store, await claim_one(store), Failed("second"))
    found = await row(store, job_id)
    assert (found.status, found.last_error) == (Status.DEAD_LETTERED, "second")
    assert found.completed_at == clock.now
    assert (found.attempts, found.max_attempts) == (2, 2)
    assert (found.locked_by, found.lease_until) == (None, None)


async def test_a_dead_letter_is_parked_queryable_and_never_dispatched(store, clock):
    run = await running(store, max_attempts=1)
    await settle(store, run, Failed("the evidence"))
    clock.advance(1e7)
    assert await claim(store) == []
    assert await reap(store) == []
    (found,) = await store.list_jobs(DEAD_LETTERS)
    assert (found.id, found.last_error) == (run.job_id, "the evidence")
    assert (await store.counts(DEAD_LETTERS))[Status.DEAD_LETTERED] == 1


async def test_a_dead_letter_can_be_replayed_and_succeed(store):
    run = await running(store, max_attempts=1)
    await settle(store, run, Failed("x"))
    assert await store.replay([run.job_id]) == {run.job_id: (True, Status.PENDING)}
    again = await claim_one(store)
    assert again.attempt == 1
    assert await settle(store, again, Succeeded())
    assert (await row(store, run.job_id)).status is Status.SUCCEEDED


async def test_max_attempts_is_per_job(store, clock):
    few = await submitted(store, max_attempts=1, backoff=NO_WAIT)
    many = await submitted(store, max_attempts=10, backoff=NO_WAIT)
    for _ in range(10):
        for run in await claim(store, topics=[a_policy(max_attempts=3)]):
            await settle(store, run, Failed("x"))
        clock.advance(1)
    assert (await row(store, few)).attempts == 1
    assert (await row(store, many)).attempts == 10
    assert (await row(store, many)).status is Status.DEAD_LETTERED


async def test_only_the_last_error_is_on_the_row(store):
    job_id = await submitted(store, max_attempts=5, backoff=NO_WAIT)
    for n in range(3):
        await settle(store, await claim_one(store), Failed(f"error {n}"))
        assert (await row(store, job_id)).last_error == f"error {n}"


# -- backoff --------------------------------------------------------------------------------------


async def delays(store, clock, policy, attempts) -> list[float]:
    """Let a job fail again and again; return the waits it was given."""
    job_id = await submitted(store, max_attempts=attempts + 1, backoff=policy)
    waits = []
    for _ in range(attempts):
        await settle(store, await claim_one(store), Failed("x"))
        due = (await row(store, job_id)).next_run_at
        waits.append((due - clock.now).total_seconds())
        clock.now = due
    return waits


async def test_the_default_waits_one_four_and_nine_seconds(store, clock):
    assert await delays(store, clock, None, 4) == [1, 4, 9, 16]


async def test_quadratic_backoff_is_the_default_times_its_base(store, clock):
    assert await delays(store, clock, Backoff.quadratic(2.5), 3) == [2.5, 10, 22.5]


async def test_linear_backoff_waits_thirty_seconds_more_each_time(store, clock):
    assert await delays(store, clock, Backoff.linear(), 4) == [30, 60, 90, 120]


async def test_fixed_backoff_always_waits_the_same(store, clock):
    assert await delays(store, clock, Backoff.fixed(12.5), 3) == [12.5, 12.5, 12.5]


async def test_exponential_backoff_doubles_up_to_its_cap(store, clock):
    policy = Backoff.exponential(cap=10, jitter=0)
    assert await delays(store, clock, policy, 6) == [1, 2, 4, 8, 10, 10]


async def test_jitter_stays_within_its_range_and_varies(store, clock):
    policy = Backoff.exponential(100, cap=400, jitter=0.1)
    await store.submit([a_job(backoff=policy) for _ in range(40)])
    runs = await claim(store, limit=40)
    await store.settle([Report.of(run, Failed("x")) for run in runs])
    rows = (await store.get([run.job_id for run in runs])).values()
    waits = [(found.next_run_at - clock.now).total_seconds() for found in rows]
    assert all(90 <= wait <= 110 for wait in waits)
    assert len(set(waits)) > 20
    assert min(waits) < 100 < max(waits)


async def test_a_backoff_of_zero_is_due_at_once(store, clock):
    assert await delays(store, clock, Backoff.quadratic(0), 3) == [0, 0, 0]


async def test_an_enormous_backoff_ends_at_its_cap_and_hurts_no_neighbour(store, clock):
    """A power that overflows would fail every batch its row is in, for ever."""
    huge = Backoff(3e8, power=10, factor=100, cap=86_400)
    await store.submit([a_job(backoff=huge, max_attempts=1_000), a_job(backoff=NO_WAIT)])
    await store.settle([Report.of(run, Released()) for run in await claim(store)])
    for _ in range(3):
        runs = await claim(store)
        accepted = await store.settle([Report.of(run, Failed("x")) for run in runs])
        assert len(accepted) == len(runs)
        clock.advance(86_400)
    await claim(store)
    clock.advance(1e6)
    assert await reap(store)


async def test_the_thousandth_attempt_of_an_exponential_backoff_is_capped(store, backend, clock):
    job_id = await submitted(store, backoff=Backoff.exponential(jitter=0), max_attempts=5_000)
    backend.execute("UPDATE pulse_jobs SET attempts = 2000")
    await settle(store, await claim_one(store), Failed("x"))
    assert (await row(store, job_id)).next_run_at == clock.after(3_600)


# -- what a handler may say -----------------------------------------------------------------------


async def test_no_retry_parks_the_job_with_attempts_left(store, clock):
    run = await running(store, max_attempts=10)
    assert await settle(store, run, Failed("hopeless", final=True))
    found = await row(store, run.job_id)
    assert (found.status, found.attempts) == (Status.DEAD_LETTERED, 1)
    assert (found.last_error, found.completed_at) == ("hopeless", clock.now)


async def test_retry_after_overrules_the_backoff_and_uses_the_attempt(store, clock):
    run = await running(store, max_attempts=2, backoff=Backoff.fixed(1_000))
    await settle(store, run, Failed("later", delay=5))
    found = await row(store, run.job_id)
    assert (found.status, found.next_run_at) == (Status.RETRYING, clock.after(5))
    assert found.attempts == 1


async def test_retry_after_on_the_last_attempt_is_a_dead_letter(store):
    run = await running(store, max_attempts=1)
    await settle(store, run, Failed("later", delay=5))
    assert (await row(store, run.job_id)).status is Status.DEAD_LETTERED


async def test_snooze_gives_the_attempt_back(store, clock):
    job_id = await submitted(store, max_attempts=1)
    for _ in range(5):
        run = await claim_one(store)
        assert run.attempt == 1
        assert await settle(store, run, Snoozed(60))
        found = await row(store, job_id)
        assert (found.status, found.attempts) == (Status.PENDING, 0)
        assert (found.next_run_at, found.last_outcome) == (clock.after(60), "SNOOZED")
        clock.advance(59)
        assert await claim(store) == []
        clock.advance(1)
    assert await store.failures(job_id) == []


async def test_release_gives_the_attempt_back_and_is_due_at_once(store, clock):
    run = await running(store, max_attempts=1)
    clock.advance(3)
    assert await settle(store, run, Released())
    found = await row(store, run.job_id)
    assert (found.status, found.attempts) == (Status.PENDING, 0)
    assert (found.next_run_at, found.last_outcome) == (clock.now, "RELEASED")
    assert (found.locked_by, found.lease_until, found.completed_at) == (None, None, None)
    assert (await claim_one(store, BOB)).attempt == 1


async def test_snooze_and_release_keep_the_last_error(store):
    job_id = await submitted(store, max_attempts=5, backoff=NO_WAIT)
    for outcome in (Failed("kept"), Snoozed(0), Released()):
        await settle(store, await claim_one(store), outcome)
        assert (await row(store, job_id)).last_error == "kept"


async def test_a_cancelled_run_is_terminal_and_says_why(store, clock):
    run = await running(store)
    assert await settle(store, run, Cancelled("asked by ada"))
    found = await row(store, run.job_id)
    assert (found.status, found.last_error) == (Status.CANCELLED, "asked by ada")
    assert (found.completed_at, found.last_outcome) == (clock.now, "CANCELLED")


@pytest.mark.parametrize("outcome", [Failed("x", delay=-30.0), Snoozed(-30.0)])
async def test_next_run_at_is_never_before_now(store, clock, outcome):
    run = await running(store)
    assert await settle(store, run, outcome)
    assert (await row(store, run.job_id)).next_run_at == clock.now


@pytest.mark.parametrize("seconds", [1e12, 1e300, float("inf"), float("nan")])
async def test_an_absurd_delay_does_not_fail_the_batch_it_is_in(store, clock, seconds):
    await store.submit([a_job(), a_job()])
    first, second = await claim(store)
    reports = [Report.of(first, Failed("x", delay=seconds)), Report.of(second, Succeeded())]
    assert await store.settle(reports) == {first.lease, second.lease}
    assert isinstance((await row(store, first.job_id)).next_run_at, datetime)
    assert (await row(store, second.job_id)).status is Status.SUCCEEDED


@pytest.mark.parametrize("text", ["nul \0 here", "half a pair \ud83d"], ids=["nul", "surrogate"])
async def test_text_that_a_database_refuses_never_stops_a_report(store, text):
    await store.submit([a_job(max_attempts=1), a_job()])
    first, second = await claim(store)
    reports = [Report.of(first, Failed(text, text)), Report.of(second, Succeeded())]
    assert await store.settle(reports) == {first.lease, second.lease}
    found = await row(store, first.job_id)
    assert found.status is Status.DEAD_LETTERED
    assert found.last_error is not None
    assert found.last_error.startswith(text[:3])


# -- one row for each failed attempt --------------------------------------------------------------


async def test_each_failed_attempt_leaves_a_row_loud_or_silent(store, clock):
    job_id = await submitted(store, max_attempts=3, backoff=NO_WAIT)
    first = await claim_one(store, ALICE)
    started = clock.now
    clock.advance(2)
    await settle(store, first, Failed("loud", "Traceback: loud"))
    second = await claim_one(store, BOB)
    clock.advance(31)
    await reap(store)
    third = await claim_one(store, ALICE)
    await settle(store, third, Failed("last", final=True))

    found = await store.failures(job_id)
    assert [failure.attempt for failure in found] == [1, 2, 3]
    assert [failure.error for failure in found] == ["loud", "worker lease expired", "last"]
    assert [failure.worker_id for failure in found] == [ALICE, BOB, ALICE]
    assert [failure.lease_token for failure in found] == [
        run.lease_token for run in (first, second, third)
    ]
    assert (found[0].started_at, found[0].ended_at) == (started, started.replace(second=2))
    assert [failure.traceback for failure in found] == ["Traceback: loud", None, None]


@pytest.mark.parametrize("outcome", [Succeeded(), Snoozed(1), Released(), Cancelled()])
async def test_what_is_not_a_failure_leaves_no_failure_row(store, outcome):
    run = await running(store)
    await settle(store, run, outcome)
    assert await store.failures(run.job_id) == []


async def test_a_refused_report_leaves_no_failure_row(store, clock):
    run = await running(store, ALICE, backoff=NO_WAIT)
    await settle(store, run, Released())
    assert not await settle(store, run, Failed("too late"))
    assert await store.failures(run.job_id) == []


async def test_a_failure_names_the_worker_that_held_the_lease(store, clock):
    """Also when a stale report of another worker for the same job comes in the same batch."""
    run = await running(store, ALICE)
    await settle(store, run, Released())
    current = await claim_one(store, BOB)
    await store.settle([Report.of(current, Failed("bob's")), Report.of(run, Failed("alice's"))])
    (failure,) = await store.failures(run.job_id)
    assert (failure.worker_id, failure.error) == (BOB, "bob's")
    assert (await row(store, run.job_id)).last_error == "bob's"


# -- many at once ---------------------------------------------------------------------------------


async def test_each_report_of_a_batch_is_judged_on_its_own(store):
    await store.submit([a_job(max_attempts=1) for _ in range(6)])
    runs = await claim(store)
    lost = runs[2]
    await settle(store, lost, Released())
    outcomes: list[Outcome] = [Succeeded("1"), Failed("x"), Succeeded(), Snoozed(5), Cancelled()]
    outcomes.append(Released())
    reports = [Report.of(run, outcome) for run, outcome in zip(runs, outcomes, strict=True)]
    nobody = Report(Lease(new_job_id(), 1, ALICE), Succeeded())
    accepted = await store.settle([*reports, nobody])
    assert accepted == {run.lease for run in runs} - {lost.lease}
    statuses = [(await row(store, run.job_id)).status.value for run in runs]
    assert statuses == [
        "SUCCEEDED",
        "DEAD_LETTERED",
        "PENDING",
        "PENDING",
        "CANCELLED",
        "PENDING",
    ]


@pytest.mark.parametrize("worker", [ALICE, BOB])
@pytest.mark.parametrize(
    "stale, current",
    [
        (Succeeded("1"), Succeeded("2")),
        (Succeeded("1"), Failed("2")),
        (Failed("1"), Failed("2")),
        (Snoozed(1), Released()),
    ],
)
async def test_a_stale_and_the_current_report_of_a_job_each_get_their_answer(
    store, worker, stale, current
):
    old = await running(store, ALICE, backoff=NO_WAIT, max_attempts=5)
    await settle(store, old, Released())
    new = await claim_one(store, worker)
    reports = [Report.of(old, stale), Report.of(new, current), Report.of(old, stale)]
    assert await store.settle(reports) == {new.lease}
    assert await store.settle(reports) == {new.lease}  # the same when it is asked again
    found = await row(store, new.job_id)
    assert found.last_worker == worker
    assert found.last_outcome == outcome_name(current)


async def test_without_locks_settling_around_them_is_settling(store):
    run, lost = [await running(store, ALICE) for _ in range(2)]
    await settle(store, lost, Released())
    reports = [Report.of(run, Succeeded("1")), Report.of(lost, Succeeded("1"))]
    assert await store.settle_free(reports) == Partly(Accepted([run.lease]), set())
    assert (await row(store, run.job_id)).result == "1"
    assert await store.settle_free([]) == Partly(Accepted(), set())


async def test_a_report_on_a_job_that_does_not_exist_is_lost(store):
    assert await store.settle([Report(Lease(new_job_id(), 1, ALICE), Succeeded())]) == set()
    assert await store.settle([]) == set()


async def test_the_same_report_again_is_accepted_and_changes_nothing(store, clock):
    run = await running(store, max_attempts=3)
    assert await settle(store, run, Failed("x"))
    before = await row(store, run.job_id)
    clock.advance(10)
    assert await settle(store, run, Failed("x"))
    assert await row(store, run.job_id) == before
    assert len(await store.failures(run.job_id)) == 1


async def test_a_second_report_with_another_outcome_is_refused(store):
    run = await running(store)
    assert await settle(store, run, Succeeded("1"))
    before = await row(store, run.job_id)
    for outcome in (Failed("x"), Snoozed(1), Released(), Cancelled()):
        assert not await settle(store, run, outcome)
    assert await row(store, run.job_id) == before


# -- two reporters, one winner --------------------------------------------------------------------

ENDINGS: dict[type, Status] = {
    Succeeded: Status.SUCCEEDED,
    Failed: Status.DEAD_LETTERED,
    Cancelled: Status.CANCELLED,
    Snoozed: Status.PENDING,
}


@pytest.mark.parametrize(
    "first, second",
    [
        (Succeeded("1"), Failed("x")),
        (Failed("x"), Succeeded("1")),
        (Cancelled(), Snoozed(5)),
        (Snoozed(5), Succeeded("1")),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_two_reporters_of_one_run_and_one_of_them_wins(backend, first, second):
    """Read-decide-write would let both in; one guarded statement cannot."""
    stores = [backend.open(), backend.open()]
    for _ in range(10):
        job = a_job(max_attempts=1)
        run_blocking(stores[0].submit([job]))
        run = run_blocking(claim_one(stores[0]))
        barrier = threading.Barrier(2)
        answers: list[Any] = [None, None]

        def report(n, outcome, barrier=barrier, answers=answers, run=run):
            run_blocking(stores[n].get([run.job_id]))  # have a connection open
            barrier.wait()
            answers[n] = run_blocking(settle(stores[n], run, outcome))

        threads = [
            threading.Thread(target=report, args=(n, outcome))
            for n, outcome in enumerate(random.sample([first, second], 2))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == [False, True]
        found = run_blocking(row(stores[0], job.id))
        assert found.status in {ENDINGS[type(first)], ENDINGS[type(second)]}
        failures = run_blocking(stores[0].failures(job.id))
        assert len(failures) == (found.status is Status.DEAD_LETTERED)
        run_blocking(stores[0].cancel([job.id]))
    for store in stores:
        close_blocking(store)


def test_two_batches_over_the_same_rows_do_not_deadlock(backend):
    """Rows are locked in the order of their ids, whatever the order of the reports."""
    stores = [backend.open(), backend.open()]
    for _ in range(5):
        run_blocking(stores[0].submit([a_job() for _ in range(30)]))
        reports = [Report.of(run, Succeeded()) for run in run_blocking(claim(stores[0], limit=30))]
        orders = [reports, reports[::-1]]
        barrier = threading.Barrier(2)
        answers: list[Any] = [None, None]

        def report(n, barrier=barrier, answers=answers, orders=orders):
            barrier.wait()
            answers[n] = run_blocking(stores[n].settle(orders[n]))

        threads = [threading.Thread(target=report, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        everyone = {report.lease for report in reports}
        assert answers == [everyone, everyone]  # the same report twice is one report
    for store in stores:
        close_blocking(store)


async def test_one_batch_has_the_reports_of_several_workers(store):
    runs = [await running(store, worker) for worker in (ALICE, BOB, ALICE)]
    stolen = runs[1].lease._replace(worker_id=ALICE)
    reports = [Report(lease, Succeeded("1")) for lease in (runs[0].lease, stolen, runs[2].lease)]
    assert await store.settle(reports) == {runs[0].lease, runs[2].lease}
    assert await store.settle([Report.of(run, Succeeded("1")) for run in runs]) == {
        run.lease for run in runs
    }


@pytest.mark.embedded("a server hints at its own store")
async def test_a_job_that_is_due_again_at_once_is_announced_and_a_later_one_is_not(store, clock):
    heard: list[set[str]] = []

    async def hint(queues: set[str]) -> None:
        heard.append(queues)

    store.hint = hint
    await submitted(store, backoff=NO_WAIT, max_attempts=3)
    heard.clear()

    async def announced_after(outcome: Outcome) -> list[set[str]]:
        (run,) = await claim(store)
        assert await settle(store, run, outcome)
        told = heard.copy()
        heard.clear()
        return told

    assert await announced_after(Failed("again")) == [{"default"}]
    assert await announced_after(Released()) == [{"default"}]
    assert await announced_after(Snoozed(60.0)) == []
    clock.advance(60)
    (silent,) = await claim(store)
    clock.advance(31)
    assert await reap(store) == [silent.job_id]
    assert heard == [{"default"}]
    heard.clear()
    assert await announced_after(Failed("for good")) == []
    assert await store.replay([silent.job_id]) == {silent.job_id: (True, Status.PENDING)}
    assert heard == [{"default"}]
