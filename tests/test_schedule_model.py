"""Random lives of schedules: stale schedulers, lost answers, edits, pauses, clocks that jump.

Whatever happens, no occurrence becomes two jobs, none is fired before one that was fired already,
and a schedule that makes up for everything, and was left alone, has missed nothing.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
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

from pulsed.engine.upkeep.scheduler import decide
from pulsed.model.job import NewJob
from pulsed.model.schedule import CatchUp, Overlap, ScheduleRow, ScheduleState
from pulsed.model.timetable import Every
from pulsed.store.blocking import run_blocking
from pulsed.store.schedules import Fire
from pulsed.store.sql_store.store import SqlStore
from tests.support.backends import Backend, close_blocking
from tests.support.clock import Clock
from tests.support.faults import Fault
from tests.support.schedules import APP, MINUTE, a_spec, all_jobs, tick

NAMES = st.sampled_from(["x", "y"])
SPECS = st.sampled_from(
    [
        {"every": MINUTE, "catch_up": CatchUp.ALL},
        {"every": MINUTE, "catch_up": CatchUp.ALL, "priority": 1},
        {"every": 7 * MINUTE, "catch_up": CatchUp.ALL},
        {"every": MINUTE, "catch_up": CatchUp.ALL, "limit": 2},
        {"every": MINUTE},
        {"every": MINUTE, "catch_up": CatchUp.SKIP},
        {"every": MINUTE, "overlap": Overlap.SKIP},
        {"cron": "*/5 * * * *", "zone": "Europe/Berlin"},
        {"cron": "*/5 * * * *", "zone": "Europe/Berlin", "catch_up": CatchUp.ALL},
    ]
)


class Schedules(RuleBasedStateMachine):
    """One store, any number of schedulers that read at one time and act at another."""

    backend: Backend
    store: SqlStore

    def __init__(self) -> None:
        super().__init__()
        self.clock = self.backend.clock
        self.clock.now = Clock().now
        self.perform = type(self.store).perform.__get__(self.store)
        self.plans: list[Fire] = []
        self.rows: dict[UUID, ScheduleRow] = {}
        self.fired: dict[UUID, list[datetime]] = {}
        self.alone: set[UUID] = set()
        """Schedules that were not changed since they were created."""

    @initialize(x=SPECS, y=SPECS)
    def begin(self, x: dict[str, Any], y: dict[str, Any]) -> None:
        run_blocking(self.store.now())
        self.backend.empty()
        self.put("x", x)
        self.put("y", y)
        self.time_passes(61.0)

    @rule(name=NAMES, says=SPECS)
    def put(self, name: str, says: dict[str, Any]) -> None:
        done = run_blocking(self.store.schedules.put(APP, name, a_spec(**says)))
        if done.effect == "created":
            self.alone.add(done.row.id)
        elif done.effect == "changed":
            self.alone.discard(done.row.id)

    @rule(name=NAMES)
    def pause(self, name: str) -> None:
        run_blocking(self.store.schedules.pause(APP, name))

    @rule(name=NAMES)
    def resume(self, name: str) -> None:
        before = run_blocking(self.store.schedules.get(APP, name))
        row = run_blocking(self.store.schedules.resume(APP, name))
        if row is not None and row != before:
            self.alone.discard(row.id)

    @rule(name=NAMES, says=SPECS)
    def delete_and_make_anew(self, name: str, says: dict[str, Any]) -> None:
        run_blocking(self.store.schedules.delete(APP, name))
        self.put(name, says)

    def look(self) -> None:
        due = run_blocking(self.store.schedules.due(10))
        self.plans += [decide(row, due.now) for row in due.rows]

    @precondition(lambda self: self.plans)
    @rule(data=st.data())
    def act_on_what_was_seen(self, data: st.DataObject) -> None:
        self.note(run_blocking(self.store.schedules.fire([data.draw(st.sampled_from(self.plans))])))

    @precondition(lambda self: self.plans)
    @rule(data=st.data(), when=st.sampled_from(["before", "after"]))
    def act_and_lose_the_answer(self, data: st.DataObject, when: Any) -> None:
        Fault(self.store, "fire", when)
        run_blocking(self.store.schedules.fire([data.draw(st.sampled_from(self.plans))]))
        self.mend()
        self.note_what_is_there()

    @precondition(lambda self: self.plans)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.plans)).row
        run_blocking(self.store.schedules.set_error(row, "because"))

    @rule()
    def fire_all(self) -> None:
        self.note(run_blocking(tick(self.store)))

    @rule(seconds=st.sampled_from([1.0, 59.0, 60.0, 61.0, 400.0, 3_000.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.look()

    @rule(seconds=st.sampled_from([1.0, 60.0]))
    def the_clock_is_set_back(self, seconds: float) -> None:
        self.clock.advance(-seconds)

    # -- what must hold -------------------------------------------------------------------------

    def note(self, jobs: list[NewJob]) -> None:
        """Occurrences are fired in their order, and never again."""
        for job in jobs:
            assert job.schedule_id is not None
            assert job.occurrence is not None
            before = self.fired.setdefault(job.schedule_id, [])
            assert not before or job.occurrence > before[-1]
            before.append(job.occurrence)

    def note_what_is_there(self) -> None:
        there: list[Any] = run_blocking(all_jobs(self.store))
        for occurrence, schedule in sorted((job.occurrence, job.schedule_id) for job in there):
            before = self.fired.setdefault(schedule, [])
            if occurrence not in before:
                assert not before or occurrence > before[-1]
                before.append(occurrence)

    def mend(self) -> None:
        setattr(self.store, "perform", self.perform)  # noqa: B010

    @invariant()
    def jobs_are_what_was_fired(self) -> None:
        there = {(job.schedule_id, job.occurrence) for job in run_blocking(all_jobs(self.store))}
        told = {(one, each) for one, occurrences in self.fired.items() for each in occurrences}
        assert there == told

    @invariant()
    def cursors_only_go_forward(self) -> None:
        for row in run_blocking(self.store.schedules.list_page()):
            before = self.rows.get(row.id, row)
            assert row.missed >= before.missed
            assert row.revision >= before.revision
            if before.last_occurrence is not None:
                assert row.last_occurrence is not None
                assert row.last_occurrence >= before.last_occurrence
                assert row.next_run_at is None or row.next_run_at > before.last_occurrence
            self.rows[row.id] = row

    @invariant()
    def nothing_is_missed_by_who_makes_up_for_all(self) -> None:
        for row in run_blocking(self.store.schedules.list_page()):
            spec = row.spec
            if row.id not in self.alone or spec.catch_up is not CatchUp.ALL or spec.limit:
                continue
            if not isinstance(spec.timetable, Every) or row.state is ScheduleState.DONE:
                continue
            assert row.next_run_at is not None
            steps = (row.next_run_at - row.anchor) // spec.timetable.interval
            expected = [row.anchor + n * spec.timetable.interval for n in range(1, steps)]
            assert self.fired.get(row.id, []) == expected
            assert (row.next_run_at - row.anchor) % spec.timetable.interval == timedelta(0)


@pytest.mark.embedded("thousands of ticks, which a server makes beside its database")
def test_schedules_keep_their_promises_whatever_happens(backend):
    store = backend.open()
    machine = type("Machine", (Schedules,), {"backend": backend, "store": store})
    fewer = settings(max_examples=settings().max_examples // 4, stateful_step_count=40)
    run_state_machine_as_test(machine, settings=fewer)
    close_blocking(store)
