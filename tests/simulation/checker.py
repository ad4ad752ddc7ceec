"""Checks what a run has done to the jobs, from the journal of their rows and from their handlers.

It shares no code with pulsed: the states, their transitions and who may make them are written down
here once more. Each violation names its invariant of docs/faults.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.simulation.database import Change, Database, JobState, StepDone
from tests.simulation.load import EMITTING, LIMITS, MAY_FAIL, emitted

CLAIMABLE = ("PENDING", "RETRYING", "WAITING")
ENDED = ("SUCCEEDED", "DEAD_LETTERED", "CANCELLED")
REPORTS = ("settle", "settle_free", "suspend")
REPLAYS = ("replay",)
REMOVALS = ("prune", "delete")


GAP = 6_000_000
"""Microseconds between two scans after which the watchdogs were away: three ticks."""


class Caller(NamedTuple):
    """Who made a call."""

    process: str
    verb: str
    reported: set[tuple[bytes, int, bytes]]
    """The leases that its reports were made under."""
    given_back: set[tuple[bytes, int]]
    """The runs that it gave back as never begun."""


class Checker:
    """Follows every job from its first row to its end."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.violations: list[str] = []
        self.acknowledged: set[bytes] = set()
        self._jobs: dict[bytes, JobState] = {}
        self._removed: set[bytes] = set()
        self._highest: dict[bytes, int] = {}
        self._fired: set[tuple[bytes, int]] = set()
        self._starts: set[tuple[bytes, int]] = set()
        self._given_back: set[tuple[bytes, int]] = set()
        self._claims: Counter[bytes] = Counter()
        self._steps: set[tuple[bytes, str]] = set()
        self._waits: Counter[bytes] = Counter()
        """How often a job has begun to wait, less how often it was woken."""
        self.checked: Counter[str] = Counter()
        """How much there was to check of each invariant."""
        self._scanned_at = self._scanning_since = 0
        """The last scan for expired leases, and the first one after the last gap between two."""

    def violated(self, invariant: str, what: str) -> None:
        """Note a violation."""
        self.violations.append(f"{invariant}: {what}")

    # -- after every commit ---------------------------------------------------------------------

    def committed(self, caller: Caller, now: int) -> None:
        """Check what a call has changed."""
        if caller.verb == "watchdog":
            if now - self._scanned_at > GAP:
                self._scanning_since = now
            self._scanned_at = now
        changes = self._database.changes()
        for change in changes:
            if isinstance(change, StepDone):
                self._steps.add(change)
            elif change.old is None:
                self._stored(change)
            elif change.new is None:
                self._gone(change.old, caller)
            else:
                self._changed(change.old, change.new, caller, now)
        if any(isinstance(change, Change) for change in changes):
            self._check_together()

    def _stored(self, change: Change) -> None:
        job = change.new
        assert job is not None
        self._jobs[job.id] = job
        self._highest[job.id] = job.lease_token
        if job.schedule_id is not None and job.occurrence is not None:
            fired = (job.schedule_id, job.occurrence)
            self.checked["I7"] += 1
            if fired in self._fired:
                self.violated("I7", f"the occurrence {job.occurrence} was fired twice")
            self._fired.add(fired)

    def _gone(self, job: JobState, caller: Caller) -> None:
        if caller.verb not in REMOVALS:
            self.violated("I1", f"{caller.verb} removed {_named(job)}")
        if caller.verb == "prune" and job.status not in ENDED:
            self.violated("I1", f"{_named(job)} was pruned, although it was {job.status}")
        self._jobs.pop(job.id, None)
        self._removed.add(job.id)

    def _changed(self, old: JobState, new: JobState, caller: Caller, now: int) -> None:
        self._jobs[new.id] = new
        self.checked.update(("I2", "I3", "I5"))
        name = _named(new)
        is_leased = new.locked_by is not None and new.lease_until is not None
        if (new.status == "RUNNING") != is_leased:
            self.violated("I2", f"{name} is {new.status}, leased: {is_leased}")
        if new.lease_token < self._highest[new.id]:
            self.violated("I3", f"the token of {name} fell to {new.lease_token}")
        if new.max_attempts is not None and new.attempts > new.max_attempts:
            self.violated("I5", f"{name} is at attempt {new.attempts} of {new.max_attempts}")
        if new.status == "RUNNING" and (
            old.status != "RUNNING" or new.lease_token != old.lease_token
        ):
            self._claimed(old, new)
        if old.status == "RUNNING" and new.status != "RUNNING":
            self._run_ended(old, caller, now)
        if old.status in ENDED and new.status != old.status and caller.verb not in REPLAYS:
            self.violated("I4", f"{caller.verb} made {name} {new.status} after {old.status}")
        self._check_wait(old, new)
        self._highest[new.id] = max(self._highest[new.id], new.lease_token)

    def _check_wait(self, old: JobState, new: JobState) -> None:
        if new.status == "WAITING" and old.status != "WAITING":
            self._waits[new.id] = 1
        elif old.status == "WAITING" and new.status == "PENDING":
            self.checked["I8"] += 1
            self._waits[new.id] -= 1
            if self._waits[new.id] < 0:
                self.violated("I8", f"{_named(new)} was woken twice")

    def _claimed(self, old: JobState, new: JobState) -> None:
        self._claims[new.id] += 1
        if old.status not in CLAIMABLE:
            self.violated("I4", f"{_named(new)} was claimed while it was {old.status}")
        if new.lease_token <= self._highest[new.id]:
            self.violated("I3", f"{_named(new)} was claimed with a token of an earlier run")

    def _run_ended(self, old: JobState, caller: Caller, now: int) -> None:
        assert old.locked_by is not None
        self.checked["I4"] += 1
        if caller.verb in REPORTS:
            if (old.id, old.lease_token, old.locked_by) not in caller.reported:
                run = f"run {old.lease_token} of {_named(old)}"
                self.violated("I4", f"{caller.process} ended {run} without its lease")
            if (old.id, old.lease_token) in caller.given_back:
                self._gave_back(old, caller)
        elif caller.verb == "watchdog":
            if old.lease_until is None or old.lease_until >= now:
                self.violated("I4", f"{_named(old)} was reaped although its lease had not ended")
        else:
            self.violated("I4", f"{caller.verb} ended a run of {_named(old)}")

    def _gave_back(self, job: JobState, caller: Caller) -> None:
        """Check that a run whose attempt is given back has not begun."""
        run = (job.id, job.lease_token)
        self._given_back.add(run)
        if run in self._starts:
            self.violated("I5", f"{caller.process} gave back {_named(job)}, which had begun")

    def _check_together(self) -> None:
        """Check what several rows must agree on."""
        self.checked.update(("I10", "I12"))
        running = Counter(job.topic for job in self._jobs.values() if job.status == "RUNNING")
        for topic, most in LIMITS.items():
            if running[topic] > most:
                self.violated("I12", f"{running[topic]} jobs of {topic} run, and {most} may")
        alive = (job for job in self._jobs.values() if job.status not in ENDED)
        holders = Counter((job.topic, job.key) for job in alive if job.key is not None)
        for (topic, key), count in holders.items():
            if count > 1:
                self.violated("I10", f"{count} jobs of {topic} have the key {key} at once")

    # -- what handlers tell -----------------------------------------------------------------------

    def began(self, job: bytes, token: int) -> None:
        """Note that a handler was called."""
        if (job, token) in self._starts:
            self.violated("I5", f"run {token} of {self._name(job)} began twice")
        self._starts.add((job, token))
        if (job, token) in self._given_back:
            self.violated("I5", f"run {token} of {self._name(job)} began after it was given back")
        if self._highest.get(job, -1) < token:
            self.violated("I4", f"run {token} of {self._name(job)} began without a lease")

    def stepped(self, job: bytes, token: int, step: str) -> None:
        """Note that a step's function was called."""
        self.checked["I9"] += 1
        row = self._jobs.get(job)
        holds = row is not None and row.status == "RUNNING" and row.lease_token == token
        if holds and (job, step) in self._steps:
            self.violated("I9", f"the step {step} of {self._name(job)} ran after it was stored")

    # -- in the calm -----------------------------------------------------------------------------

    def check_expired(self, since: int) -> None:
        """Check that no lease ended before an instant and was not recovered since.

        While the only watchdog is frozen, no lease is recovered: the time counts from its return.
        """
        if self._scanning_since >= since:
            return
        for job in self._jobs.values():
            self.checked["I6"] += job.status == "RUNNING"
            if job.status == "RUNNING" and job.lease_until is not None and job.lease_until < since:
                self.violated("I6", f"nobody recovers {_named(job)}, whose lease has ended")

    def is_running_or_over(self, job: bytes) -> bool:
        """Return whether a job was claimed at least once."""
        self.checked["I13"] += 1
        return self._claims[job] > 0

    # -- at the end -------------------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        """Return the jobs that have not ended."""
        return [
            f"{_named(job)} is {job.status}"
            + (f", waiting for {job.wait_kind}" if job.status == "WAITING" else "")
            for job in self._jobs.values()
            if job.status not in ENDED
        ]

    def check_end(self, *, occurrences: Iterable[int]) -> None:
        """Check what must hold when all is quiet."""
        self.checked.update(I1=len(self.acknowledged), I11=len(self._jobs))
        for left in self.unfinished():
            self.violated("I11", left)
        for row in self._jobs.values():
            if row.status == "DEAD_LETTERED" and row.topic not in MAY_FAIL:
                self.violated("I5", f"{_named(row)} has failed after {row.attempts} attempts")
        lost = self.acknowledged - self._jobs.keys() - self._removed
        for job in lost:
            self.violated("I1", f"the acknowledged job {job.hex()} is gone")
        fired = {occurrence for _, occurrence in self._fired}
        self._check_effects()
        self._check_streams()
        if missed := sorted(set(occurrences) - fired):
            self.violated("I7", f"{len(missed)} occurrences were never fired: {missed}")

    def _check_effects(self) -> None:
        """Check that each step in a transaction has had its effect once."""
        effects = Counter(job for job, _ in self._database.rows("SELECT job, run FROM effects"))
        stored = Counter(job for job, step in self._steps if step.startswith("write"))
        self.checked["I9"] += len(effects)
        for job in effects.keys() | stored.keys():
            if effects[job] != stored[job]:
                what = f"{effects[job]} effects of {stored[job]} stored steps"
                self.violated("I9", f"{self._name(job)} has {what}")

    def _check_streams(self) -> None:
        """Check that each run has emitted its items in order, and the one that succeeded all."""
        query = "SELECT job_id, position, run, value FROM pulse_stream ORDER BY job_id, position"
        streams: dict[bytes, list[tuple[int, int, str]]] = {}
        for job, position, run, value in self._database.rows(query):
            streams.setdefault(job, []).append((position, run, value))
        for job, items in streams.items():
            self.checked["I9"] += 1
            first, runs = items[0][0], [run for _, run, _ in items]
            each = {run: [int(value) for _, of, value in items if of == run] for run in runs}
            is_whole = [position for position, _, _ in items] == [*range(first, first + len(items))]
            if not is_whole or any(values != [*range(len(values))] for values in each.values()):
                self.violated("I9", f"the stream of {self._name(job)} is {items}")
        ended = "SELECT id, payload FROM pulse_jobs WHERE topic = ? AND status = 'SUCCEEDED'"
        for job, payload in self._database.rows(ended, EMITTING):
            items, wanted = streams.get(job, []), emitted(json.loads(payload)["n"])
            if not items or [run for _, run, _ in items].count(items[-1][1]) != wanted:
                self.violated("I9", f"the stream of {self._name(job)} lacks items: {items}")

    def _name(self, job: bytes) -> str:
        row = self._jobs.get(job)
        return job.hex() if row is None else _named(row)

    def counted(self) -> dict[str, int]:
        """Return how much there was to check."""
        return {
            "jobs": len(self._highest),
            "runs": len(self._starts),
            "fires": len(self._fired),
            "steps": len(self._steps),
        }

    def digest(self) -> Any:
        """Return what two runs of a seed must have in common."""
        return sorted((job.hex(), *map(str, row[1:7])) for job, row in self._jobs.items())


def _named(job: JobState) -> str:
    return f"{job.topic} {job.id.hex()[:12]}"
