"""Random lives of jobs, on a store and on a model of it, compared after every step."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pulsed.model.backoff import Backoff
from pulsed.model.ids import new_job_id
from pulsed.model.job import Lease, Status
from pulsed.model.lifecycle import TERMINAL
from pulsed.model.outcome import Cancelled, Failed, Released, Report, Snoozed, Succeeded, Waiting
from pulsed.model.step import Checkpoint, StepKind, StepState, Wait
from pulsed.model.workflow import Signal
from pulsed.store.blocking import run_blocking
from pulsed.store.sql_store.store import SqlStore
from tests.support.backends import Backend, close_blocking
from tests.support.clock import Clock
from tests.support.jobs import ALICE, BOB, EVERYTHING, a_job, a_policy
from tests.support.model import Model

STRANGER = Lease(new_job_id(), 1, ALICE)

BACKOFFS = [
    None,
    Backoff.quadratic(),
    Backoff.linear(),
    Backoff.exponential(cap=20, jitter=0),
    Backoff.fixed(0),
]
TOPICS = [
    a_policy("a", max_attempts=2, lease=20.0, backoff=Backoff.linear(5)),
    a_policy("b", lease=60.0),
]
OUTCOMES = st.one_of(
    st.just(Succeeded("1")),
    st.builds(Failed, st.sampled_from(["boom", "bang"])),
    st.builds(Failed, st.just("later"), delay=st.sampled_from([0.0, 3.0])),
    st.just(Failed("hopeless", final=True)),
    st.builds(Snoozed, st.sampled_from([0.0, 10.0])),
    st.just(Cancelled()),
    st.just(Released()),
    st.builds(
        lambda wait: Waiting(
            wait, Checkpoint(name="wait", nth=1, seq=1, kind=wait.kind, state=StepState.OPEN)
        ),
        st.builds(Wait, kind=st.just(StepKind.SLEEP), delay=st.sampled_from([0.0, 10.0]))
        | st.builds(
            Wait,
            kind=st.just(StepKind.SIGNAL),
            key=st.just("go"),
            delay=st.sampled_from([None, 10.0]),
        ),
    ),
)


class StoreAgainstModel(RuleBasedStateMachine):
    """Each rule does the same to both and compares the answers; the invariants compare the rows."""

    backend: Backend
    store: SqlStore

    def __init__(self) -> None:
        super().__init__()
        self.clock = self.backend.clock
        self.clock.now = Clock().now
        self.model = Model(self.clock)
        self.leases = [STRANGER]
        self.ids = [STRANGER.job_id]
        self.highest: dict[Any, int] = {}

    @initialize(
        allowed=st.lists(st.sampled_from([None, 1, 2, 3]), min_size=1, max_size=4),
        backoff=st.sampled_from(BACKOFFS),
    )
    def begin_with_a_few(self, allowed: Any, backoff: Any) -> None:
        self.run(self.store.counts(EVERYTHING))
        self.backend.empty()
        self.store.claims.floors.clear()  # time went back to the start
        for n, max_attempts in enumerate(allowed):
            self.submit_one(topic="ab"[n % 2], max_attempts=max_attempts, backoff=backoff)

    def run(self, verb: Any) -> Any:
        return run_blocking(verb)

    def submit_one(self, **options: Any) -> None:
        job = a_job(**options)
        self.ids.append(job.id)
        assert self.run(self.store.submit([job])).new == self.model.submit(job)

    @precondition(lambda self: len(self.model.jobs) < 6)
    @rule(
        topic=st.sampled_from("ab"),
        queue=st.sampled_from(["default", "default", "other"]),
        priority=st.integers(-2, 2),
        delay=st.sampled_from([0.0, 0.0, 0.0, 5.0, -5.0]),
        max_attempts=st.sampled_from([None, 1, 2, 4]),
        backoff=st.sampled_from(BACKOFFS),
        lease=st.sampled_from([None, 10.0]),
    )
    def submit(self, **options: Any) -> None:
        self.submit_one(**options)

    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        job = a_job(id=data.draw(st.sampled_from(self.ids)), topic="a", backoff=Backoff.fixed(1))
        assert self.run(self.store.submit([job])).new == self.model.submit(job)

    @rule(
        worker=st.sampled_from([ALICE, BOB]),
        queue=st.sampled_from(["default", "default", "other"]),
        topics=st.sampled_from([TOPICS, TOPICS, TOPICS[:1], TOPICS[1:]]),
        limit=st.integers(1, 4),
    )
    def claim_some(self, **options: Any) -> None:
        self.claim(**options)

    def claim(self, worker: Any, queue: str, topics: Any, limit: int) -> None:
        runs = self.run(self.store.claim(worker, queue, topics, limit))
        found = [(run.job_id, run.attempt, run.lease_token) for run in runs]
        looks = any(self.model.is_suspect(run.job_id) for run in runs)
        assert found == self.model.claim(worker, queue, topics, limit, looks=looks)
        self.leases += [run.lease for run in runs]

    @rule(worker=st.sampled_from([ALICE, BOB]), outcome=OUTCOMES, cancel=st.integers(0, 5))
    def run_once(self, worker: Any, outcome: Any, cancel: int) -> None:
        """A whole run, from claim to report: this is what jobs mostly meet."""
        before = len(self.leases)
        self.claim(worker, "default", TOPICS, 1)
        for lease in self.leases[before:]:
            if cancel == 0:
                self.cancel_one(lease.job_id)
            report = [Report(lease, outcome)]
            assert self.run(self.store.settle(report)) == self.model.settle(report)

    def some_leases(self, data: st.DataObject) -> list[Lease]:
        """Current, stale and made-up leases, the latest ones more often."""
        drawn = data.draw(
            st.lists(
                st.one_of(st.sampled_from(self.leases[-4:]), st.sampled_from(self.leases)),
                min_size=1,
                max_size=4,
                unique_by=lambda lease: lease.job_id,
            )
        )
        first = drawn[0]
        match data.draw(st.integers(0, 9)):
            case 0:
                drawn[0] = first._replace(token=first.token + 1)
            case 1:
                drawn[0] = first._replace(worker_id=BOB if first.worker_id == ALICE else ALICE)
        return drawn

    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        leases = self.some_leases(data)
        assert self.run(self.store.beat(leases)) == self.model.beat(leases)

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        reports = [Report(lease, data.draw(OUTCOMES)) for lease in self.some_leases(data)]
        assert self.run(self.store.settle(reports)) == self.model.settle(reports)

    @rule(data=st.data())
    def signal(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.ids))
        sent = Signal(id=new_job_id(), job_id=job_id, name="go", payload="1")
        assert self.run(self.store.workflows.signal(sent)) == self.model.signal(job_id)

    @rule(data=st.data())
    def set_progress(self, data: st.DataObject) -> None:
        lease = self.some_leases(data)[0]
        expected = self.model.set_progress(lease, "0.5")
        assert self.run(self.store.set_progress(lease, "0.5")) is expected

    @rule()
    def watchdog(self) -> None:
        found = self.run(self.store.watchdog())
        reaped = {one.job_id for one in found.reaped}
        assert (reaped, found.in_grace) == self.model.watchdog(500)

    @rule(looks=st.integers(2, 6), apart=st.sampled_from([1, 9, 11, 40]))
    def watchdogs_go_on(self, looks: int, apart: int) -> None:
        for _ in range(looks):
            self.clock.advance(apart)
            self.watchdog()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        running = [job.id for job in self.model.jobs.values() if job.status is Status.RUNNING]
        self.cancel_one(data.draw(st.sampled_from([*self.ids, *running, *running])))

    def cancel_one(self, job_id: Any) -> None:
        assert self.run(self.store.cancel([job_id])) == self.model.cancel(job_id)

    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        parked = [job.id for job in self.model.jobs.values() if job.status in TERMINAL]
        job_id = data.draw(st.sampled_from(parked or self.ids))
        assert self.run(self.store.replay([job_id])) == self.model.replay(job_id)

    @precondition(lambda self: len(self.model.jobs) > 3)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(self.ids))
        assert self.run(self.store.delete([job_id])) == self.model.delete(job_id)
        if job_id not in self.model.jobs:
            self.highest.pop(job_id, None)

    @rule(
        ages=st.dictionaries(
            st.sampled_from(TERMINAL), st.sampled_from([0.0, 5.0, 60.0]), min_size=1
        )
    )
    def prune(self, ages: Any) -> None:
        before = set(self.model.jobs)
        pruned = self.run(self.store.prune(ages, limit=100))
        assert pruned.removed == self.model.prune(ages, 100)
        for job_id in before - set(self.model.jobs):
            self.highest.pop(job_id, None)
            assert self.run(self.store.failures(job_id)) == []

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 12.0, 31.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def every_row_is_as_the_model_says(self) -> None:
        rows = {job.id: job for job in self.run(self.store.list_jobs(EVERYTHING, limit=1_000))}
        assert set(rows) == set(self.model.jobs)
        for job_id, row in rows.items():
            assert self.model.jobs[job_id].differences(row) == {}
            self.check(row)

    def check(self, row: Any) -> None:
        leased = row.locked_by is not None and row.lease_until is not None
        assert (row.status is Status.RUNNING) is leased
        assert row.lease_token >= self.highest.get(row.id, 0)
        self.highest[row.id] = row.lease_token
        assert row.attempts <= (row.max_attempts or 1_000)
        assert (row.completed_at is not None) is (row.status in TERMINAL)

    def teardown(self) -> None:
        for job in self.model.jobs.values():
            found = self.run(self.store.failures(job.id))
            assert [(failure.lease_token, failure.error) for failure in found] == job.failures


def test_a_store_does_what_the_model_does(backend):
    store = backend.open()
    machine = type("Machine", (StoreAgainstModel,), {"backend": backend, "store": store})
    # Behind a server is the same SQLite store; what may differ is how its answers are carried.
    part = 3 if isinstance(store, SqlStore) else 10
    fewer = settings(max_examples=settings().max_examples // part)
    run_state_machine_as_test(machine, settings=fewer)
    close_blocking(store)
