"""Every verb once without an event loop: the same coroutines, driven in the calling thread."""

import threading

import pytest

from pulsed.model.job import JobFilter, Status, WorkerInfo
from pulsed.model.outcome import Beat, Failed, Released, Report, Succeeded
from pulsed.store import migrations
from pulsed.store.blocking import run_blocking
from tests.support.backends import close_blocking
from tests.support.jobs import ALICE, EVERYTHING, POLICIES, a_job, reap


@pytest.fixture
def store(backend):
    store = backend.open()
    yield store
    close_blocking(store)


def test_every_verb_works_without_an_event_loop(store, clock):
    jobs = [a_job(max_attempts=1, tags=("x",)) for _ in range(4)]
    assert run_blocking(store.submit(jobs)).new == 4
    runs = run_blocking(store.claim(ALICE, "default", POLICIES, 3))
    assert [run.job_id for run in runs] == [job.id for job in jobs[:3]]
    assert set(run_blocking(store.held(ALICE))) == {run.lease for run in runs}
    done, failed, silent = runs
    assert run_blocking(store.beat([done.lease])) == {done.lease: Beat.OK}
    assert run_blocking(store.set_progress(done.lease, "1"))
    reports = [Report.of(done, Succeeded("2")), Report.of(failed, Failed("boom"))]
    assert run_blocking(store.settle(reports)) == {done.lease, failed.lease}
    clock.advance(31)
    assert run_blocking(reap(store)) == [silent.job_id]
    assert run_blocking(store.cancel([jobs[3].id])) == {jobs[3].id: Status.CANCELLED}
    assert run_blocking(store.replay([failed.job_id])) == {failed.job_id: (True, Status.PENDING)}
    assert run_blocking(store.delete([done.job_id])) == {done.job_id: (True, Status.SUCCEEDED)}
    assert set(run_blocking(store.get([job.id for job in jobs]))) == {job.id for job in jobs[1:]}
    assert len(run_blocking(store.list_jobs(JobFilter(tag="x"), limit=2))) == 2
    assert run_blocking(store.counts(EVERYTHING))[Status.DEAD_LETTERED] == 1
    assert [one.error for one in run_blocking(store.failures(failed.job_id))] == ["boom"]
    worker = WorkerInfo(id=ALICE, host="h", pid=1, queues=("q",), topics=("t",), slots=1)
    run_blocking(store.announce(worker))
    assert [one.id for one in run_blocking(store.workers())] == [ALICE]
    run_blocking(store.retire(ALICE))
    assert run_blocking(store.workers()) == []
    assert run_blocking(store.now()) == clock.now
    assert run_blocking(store.check())["schema"] == str(migrations.newest(store.dialect.engine))


def test_threads_share_a_store(store):
    jobs = [a_job() for _ in range(40)]
    threads = [
        threading.Thread(target=lambda job=job: run_blocking(store.submit([job]))) for job in jobs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(run_blocking(store.get([job.id for job in jobs]))) == {job.id for job in jobs}


def test_a_run_is_released_and_claimed_again_without_a_loop(store):
    run_blocking(store.submit([a_job()]))
    (run,) = run_blocking(store.claim(ALICE, "default", POLICIES, 1))
    run_blocking(store.settle([Report.of(run, Released())]))
    (again,) = run_blocking(store.claim(ALICE, "default", POLICIES, 1))
    assert (again.attempt, again.lease_token > run.lease_token) == (1, True)
