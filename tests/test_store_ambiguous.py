"""A connection lost before or after COMMIT: the call is made again, and answers as if nothing was.

Every verb, with the answer lost once and twice. What was done is not done again, what was not done
is done, and the caller does not know it.
"""

import asyncio

import pytest

from pulsed.errors import TransientStorageError
from pulsed.model.job import JobFilter, Status, WorkerInfo
from pulsed.model.outcome import (
    Beat,
    Cancelled,
    Failed,
    Outcome,
    Released,
    Report,
    Snoozed,
    Succeeded,
)
from pulsed.store import migrations
from tests.support.faults import Fault
from tests.support.jobs import (
    ALICE,
    EVERYTHING,
    NO_WAIT,
    a_job,
    claim,
    claim_one,
    ids,
    never_away,
    row,
    running,
    settle,
    submitted,
)
from tests.support.waiting import until


async def test_submit(store, when, times):
    jobs = [a_job() for _ in range(3)]
    fault = Fault(store, "submit", when, times)
    submitted = await store.submit(jobs)
    assert fault.hits == times
    assert set(await store.get([job.id for job in jobs])) == {job.id for job in jobs}
    assert sum((await store.counts(EVERYTHING)).values()) == 3
    assert submitted.new == (3 if when == "before" else 0)  # the lost try had inserted them


OUTCOMES: list[Outcome] = [
    Succeeded('{"n":1}'),
    Failed("boom", "Traceback"),
    Failed("boom", delay=7),
    Failed("boom", final=True),
    Snoozed(60),
    Cancelled("stop"),
    Released(),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=repr)
async def test_settle(store, backend, clock, when, times, outcome):
    await store.submit([a_job(max_attempts=3), a_job(max_attempts=3)])
    mine, undisturbed = await claim(store)
    assert await settle(store, undisturbed, outcome)
    fault = Fault(store, "settle", when, times)
    assert await settle(store, mine, outcome)
    assert fault.hits == times
    ours, theirs = backend.row(mine.job_id), backend.row(undisturbed.job_id)
    assert {name for name in ours if ours[name] != theirs[name]} <= {"id", "lease_token"}
    expected = 1 if isinstance(outcome, Failed) else 0
    assert len(await store.failures(mine.job_id)) == expected


async def test_settle_of_a_batch_in_which_one_had_lost_its_lease(store, when):
    await store.submit([a_job() for _ in range(3)])
    runs = await claim(store)
    await settle(store, runs[1], Released())
    Fault(store, "settle", when)
    reports = [Report.of(run, Succeeded()) for run in runs]
    assert await store.settle(reports) == {runs[0].lease, runs[2].lease}


def claimed_before_it_asks_again(store) -> None:
    """Let a worker claim between a try whose answer was lost and the next one."""
    perform = store.perform

    async def and_then_somebody_claims(verb):
        try:
            return await perform(verb)
        except TransientStorageError:
            await claim_one(store)
            raise

    store.perform = and_then_somebody_claims


async def test_settle_whose_job_was_claimed_again_before_the_retry_is_lost(store):
    """The outcome of the first try is unknowable by now: the new lease decides."""
    run = await running(store, backoff=NO_WAIT, max_attempts=5)
    fault = Fault(store, "settle", "after")
    claimed_before_it_asks_again(store)
    assert not await settle(store, run, Failed("x"))
    assert fault.hits == 1
    assert (await row(store, run.job_id)).status is Status.RUNNING
    assert len(await store.failures(run.job_id)) == 1


async def test_beat(store, clock, when, times):
    run = await running(store)
    asked = await running(store)
    await store.cancel([asked.job_id])
    clock.advance(10)
    fault = Fault(store, "beat", when, times)
    assert await store.beat([run.lease, asked.lease]) == {
        run.lease: Beat.OK,
        asked.lease: Beat.CANCEL,
    }
    assert fault.hits == times
    assert (await row(store, run.job_id)).lease_until == clock.after(30)


async def test_watchdog(store, clock, when, times):
    run = await running(store, max_attempts=5)
    clock.advance(31)
    await never_away(store)
    fault = Fault(store, "watchdog", when, times)
    tick = await store.watchdog()
    assert fault.hits == times
    assert not tick.in_grace
    found = await row(store, run.job_id)
    assert (found.status, found.attempts) == (Status.RETRYING, 1)
    assert len(await store.failures(run.job_id)) == 1
    # What a lost try reaped is reaped; only the retry's own catch is named in the answer.
    assert len(tick.reaped) == (1 if when == "before" else 0)


async def test_a_watchdog_that_has_to_look_again_gives_one_grace(
    store, backend, clock, when, times
):
    await running(store)
    await store.watchdog()
    clock.advance(100)
    Fault(store, "watchdog", when, times)
    assert (await store.watchdog()).in_grace
    for _ in range(2):
        clock.advance(7.4)
        assert (await store.watchdog()).in_grace
    clock.advance(0.2)
    assert not (await store.watchdog()).in_grace


async def test_set_progress(store, when, times):
    run = await running(store)
    fault = Fault(store, "set_progress", when, times)
    assert await store.set_progress(run.lease, "0.5")
    assert fault.hits == times
    assert (await row(store, run.job_id)).progress == "0.5"


async def test_announce_and_retire(store, clock, when, times):
    worker = WorkerInfo(id=ALICE, host="h", pid=1, queues=("q",), topics=("t",), slots=1)
    faults = [Fault(store, "announce", when, times), Fault(store, "retire", when, times)]
    await store.announce(worker)
    (found,) = await store.workers()
    assert (found.id, found.started_at) == (ALICE, clock.now)
    await store.retire(ALICE)
    assert await store.workers() == []
    assert [fault.hits for fault in faults] == [times, times]


async def test_cancel(store, clock, when, times):
    waiting, run = await submitted(store, delay=60), await running(store)
    fault = Fault(store, "cancel", when, times)
    answers = await store.cancel([waiting, run.job_id])
    assert fault.hits == times
    assert answers == {waiting: Status.CANCELLED, run.job_id: Status.RUNNING}
    assert (await row(store, run.job_id)).cancel_requested


async def test_replay(store, when, times):
    """The retry must not say "not replayed" about what its own first try replayed."""
    dead = await running(store, max_attempts=1)
    await settle(store, dead, Failed("x"))
    live = await submitted(store)
    fault = Fault(store, "replay", when, times)
    answers = await store.replay([dead.job_id, live])
    assert fault.hits == times
    assert answers == {dead.job_id: (True, Status.PENDING), live: (False, Status.PENDING)}
    assert (await row(store, dead.job_id)).attempts == 0


async def test_edit_and_replay(store, when, times):
    dead = await running(store, max_attempts=1)
    await settle(store, dead, Failed("x"))
    fault = Fault(store, "replay", when, times)
    answer = await store.edit_and_replay(dead.job_id, '{"n": 12345678901234567890123}')
    assert fault.hits == times
    assert answer == {dead.job_id: (True, Status.PENDING)}
    assert (await row(store, dead.job_id)).payload == '{"n": 12345678901234567890123}'


async def test_replay_whose_job_is_already_running_again(store):
    dead = await running(store, max_attempts=1)
    await settle(store, dead, Failed("x"))
    Fault(store, "replay", "after")
    claimed_before_it_asks_again(store)
    assert await store.replay([dead.job_id]) == {dead.job_id: (True, Status.RUNNING)}


async def test_expedite(store, when, times):
    later, run = await submitted(store, delay=3_600), await running(store, topic="other")
    fault = Fault(store, "expedite", when, times)
    answers = await store.expedite([later, run.job_id])
    assert fault.hits == times
    assert answers == {later: (True, Status.PENDING), run.job_id: (False, Status.RUNNING)}
    assert [claimed.job_id for claimed in await claim(store)] == [later]


async def test_delete(store, when, times):
    run = await running(store)
    waiting = await submitted(store)
    fault = Fault(store, "delete", when, times)
    answers = await store.delete([waiting, run.job_id])
    assert fault.hits == times
    assert answers == {waiting: (True, Status.PENDING), run.job_id: (False, Status.RUNNING)}
    assert await store.get([waiting]) == {}


async def test_reads(store, when, times):
    job_id = await submitted(store)
    run = await claim_one(store)
    await settle(store, run, Failed("x"))
    reads = {
        "get": lambda: store.get([job_id]),
        "list": lambda: store.list_jobs(JobFilter()),
        "counts": lambda: store.counts(JobFilter()),
        "failures": lambda: store.failures(job_id),
        "workers": store.workers,
        "held": lambda: store.held(ALICE),
        "now": store.now,
        "prunable": lambda: store.prunable({Status.SUCCEEDED: 0.0}),
    }
    undisturbed = {name: await read() for name, read in reads.items()}
    for name, read in reads.items():
        fault = Fault(store, name, when, times)
        assert await read() == undisturbed[name]
        assert fault.hits == times


@pytest.mark.embedded("only a database has a schema")
async def test_migrate(backend, when, times):
    if backend.engine == "sqlite":  # the other database is not empty any more
        backend.with_tables = False
    store = backend.open()
    faults = [Fault(store, "schema_check", when, times), Fault(store, "migrate", when, times)]
    job = a_job()
    assert (await store.submit([job])).new == 1
    assert faults[0].hits == times
    if backend.engine == "sqlite":
        assert faults[1].hits == times
    applied = await store.applied_migrations()
    assert [one.version for one in applied] == [
        one.version for one in migrations.migrations(backend.engine)
    ]
    assert set(await store.get([job.id])) == {job.id}
    await store.aclose()


# -- the claim ------------------------------------------------------------------------------------


async def give_back_strays(store, known):
    """Do what a claim loop does after a doubtful claim: release what it does not know."""
    strays = [lease for lease in await store.held(ALICE) if lease.job_id not in known]
    return await store.settle([Report(lease, Released()) for lease in strays])


async def test_a_claim_lost_before_it_began_costs_nothing(store, times):
    await store.submit([a_job() for _ in range(5)])
    fault = Fault(store, "claim", "before", times)
    runs = await claim(store, limit=2)
    assert (fault.hits, len(runs)) == (times, 2)
    assert store.doubtful_claims == times
    assert await give_back_strays(store, ids(runs)) == set()


async def test_jobs_leased_by_a_lost_answer_are_found_and_given_back(store, times):
    await store.submit([a_job(max_attempts=1) for _ in range(6)])
    Fault(store, "claim", "after", times)
    runs = await claim(store, limit=2)
    assert len(runs) == 2
    assert store.doubtful_claims == times
    released = await give_back_strays(store, ids(runs))
    assert len(released) == 2 * times
    found = await store.get([lease.job_id for lease in released])
    assert {(job.status, job.attempts) for job in found.values()} == {(Status.PENDING, 0)}
    rest = await claim(store)
    assert set(found) <= set(ids(rest))
    assert {run.attempt for run in rest} == {1}
    assert len(rest) + len(runs) == 6


async def test_a_claim_that_gave_up_counts_every_try_as_doubtful(store):
    await submitted(store)
    Fault(store, "claim", "after", 99)
    with pytest.raises(TransientStorageError):
        await claim(store)
    assert store.doubtful_claims == store.options.dequeue_retry.max_attempts
    assert len(await give_back_strays(store, set())) == 1


async def test_a_claim_without_trouble_leaves_no_doubt(store):
    await submitted(store)
    await claim_one(store)
    assert store.doubtful_claims == 0


async def test_a_claim_cancelled_while_under_way_is_doubtful(store):
    """Shutting down cancels the claim loop; what it had just leased must not be forgotten."""
    await submitted(store)
    perform = store.perform
    committed = asyncio.Event()

    async def without_an_answer(verb):
        answer = await perform(verb)
        if verb.name == "claim":
            committed.set()
            await asyncio.Event().wait()
        return answer

    store.perform = without_an_answer
    task = asyncio.create_task(claim(store))
    await until(committed.is_set)  # perhaps in a server's loop
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.doubtful_claims == 1
    store.perform = perform
    assert len(await give_back_strays(store, set())) == 1
