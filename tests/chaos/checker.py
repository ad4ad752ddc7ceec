"""The invariants of docs/faults.md, each checked on the facts. Nothing here knows how pulsed works.

A check that found nothing to check has failed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from uuid import UUID

from tests.chaos import load
from tests.chaos.facts import GIVEN_BACK, Facts, Row, Run, Schedule
from tests.chaos.observer import Tally
from tests.chaos.scans import UNSCANNED, unscanned
from tests.chaos.tables import ENDED

POLLS = 20
"""A job must start within so many polls, on a machine that is busy."""
NOT_A_FAILURE = ("Snooze", "Suspension", "CancelledError")
"""How a handler is left by a run whose attempt is given back."""
EXAMPLES = 5
EARLY = 0.01
"""Seconds by which two clocks of one machine may differ."""


@dataclass(frozen=True)
class Check:
    """What was found about one invariant."""

    invariant: str
    what: str
    checked: int
    violations: int
    example: str = ""

    @property
    def holds(self) -> bool:
        return self.checked > 0 and not self.violations


def check(facts: Facts) -> list[Check]:
    """Return every invariant with what was found."""
    return [made for invariant in INVARIANTS for made in invariant(facts)]


def _check(invariant: str, what: str, checked: int, bad: Collection[object]) -> Check:
    return Check(invariant, what, checked, len(bad), "; ".join(map(str, islice(bad, EXAMPLES))))


def _sampled(invariant: str, what: str, tally: Tally) -> Check:
    return _check(invariant, what, tally.checked, tally.bad)


# -- jobs -----------------------------------------------------------------------------------------


def stored(facts: Facts) -> Iterator[Check]:
    promised = [each for each in facts.asked if each.job is not None]
    lost = [f"{each.topic} {each.job}" for each in promised if each.job not in facts.rows]
    yield _check("I1", "acknowledged jobs are stored", len(promised), lost)
    top = [row for row in facts.tables.jobs if row.parent is None and row.schedule is None]
    asked = {each.n for each in facts.asked}
    number = Counter(row.payload["n"] for row in top)
    wrong = [f"n={n}: {count}" for n, count in number.items() if count > 1 or n not in asked]
    yield _check("I1", "jobs are stored once, and only if asked for", len(top), wrong)


def leased(facts: Facts) -> Iterator[Check]:
    rows = facts.tables.jobs
    bad = [row.id for row in rows if row.leased != (row.status == "RUNNING")]
    tally = facts.observer.leases
    yield _check("I2", "RUNNING means leased", len(rows) + tally.checked, [*bad, *tally.bad])


def tokens(facts: Facts) -> Iterator[Check]:
    begun = Counter((entry.job, entry.token) for entry in facts.of("begin"))
    twice = [f"{job} token {token}" for (job, token), count in begun.items() if count > 1]
    yield _check("I3", "a lease starts one run", len(begun), twice)
    yield _sampled("I3", "lease tokens only rise", facts.observer.tokens)


def final(facts: Facts) -> Iterator[Check]:
    done = [row for row in facts.tables.jobs if row.status == "SUCCEEDED"]
    stale = [f"{r.topic} {r.id}" for r in done if r.result["token"] != r.token]
    yield _check("I4", "results are those of the last lease", len(done), stale)
    yield _sampled("I4", "jobs that have ended stay as they are", facts.observer.ends)


def attempts(facts: Facts) -> Iterator[Check]:
    rows = facts.tables.jobs
    off = [r.id for r in rows if r.max_attempts is None or not 1 <= r.attempts <= r.max_attempts]
    yield _check("I5", "attempts are between 1 and max_attempts", len(rows), off)
    untold = [
        f"{row.topic} {row.id}: {row.attempts} attempts"
        for row in rows
        if row.attempts != _paid(facts, row.id) + (row.status == "SUCCEEDED")
    ]
    yield _check("I5", "each attempt is a failure or the success", len(rows), untold)
    yield _starts(facts)


def _paid(facts: Facts, job: UUID) -> int:
    return sum(not each.error.endswith(GIVEN_BACK) for each in facts.failures[job])


def _starts(facts: Facts) -> Check:
    ends = defaultdict[UUID, dict[int, str]](dict)
    for entry in facts.of("begin", "end"):
        ends[entry.job][entry.token] = entry.detail if entry.event == "end" else "no end"
    too_often = [
        f"{facts.rows[job].topic} {job}: {facts.rows[job].attempts} attempts, {told}"
        for job, runs in ends.items()
        if job in facts.rows and len(told := _counted(facts, job, runs)) > facts.rows[job].attempts
    ]
    return _check("I5", "runs are attempts, or given back", len(ends), too_often)


def _counted(facts: Facts, job: UUID, runs: dict[int, str]) -> list[str]:
    """Return how those runs ended that must have used an attempt."""
    given_back = {each.token for each in facts.failures[job] if each.error.endswith(GIVEN_BACK)}
    return [
        end for token, end in runs.items() if end not in NOT_A_FAILURE and token not in given_back
    ]


def recovered(facts: Facts) -> Iterator[Check]:
    yield _sampled("I6", "expired leases outlive at most two scans", facts.observer.overdue)
    scans = facts.observer.scan_times()
    between = list(unscanned(scans, facts.entries, facts.frozen))
    late = [each for each in between if each.seconds > UNSCANNED]
    yield _check("I6", "processes that start jobs scan, too", len(scans), late)


def ended(facts: Facts) -> Iterator[Check]:
    rows = facts.tables.jobs
    left = [f"{row.topic} {row.id} is {row.status}" for row in rows if row.status not in ENDED]
    yield _check("I11", "in the end nothing runs, waits or is due", len(rows), left)
    wrong = [f"{row.topic} {row.id}: {row.status}" for row in rows if _ended_wrong(row)]
    yield _check("I11", "jobs ended as their handlers say", len(rows), wrong)
    missing = load.TOPICS - {row.topic for row in rows}
    yield _check(
        "I11", "every kind of job was there", len(rows) and len(load.TOPICS), sorted(missing)
    )


def _ended_wrong(row: Row) -> bool:
    if row.topic in load.PARKED:
        return (row.status, row.attempts) != ("DEAD_LETTERED", row.max_attempts)
    if row.topic == load.part.topic and row.payload["number"] == 0:
        return row.status != "DEAD_LETTERED"
    return row.status != "SUCCEEDED" or row.result["n"] != row.payload["n"]


def punctual(facts: Facts) -> Iterator[Check]:
    due = {each.job: each.at + each.delay for each in facts.asked if each.delay and each.job}
    begun = [entry for entry in facts.of("begin") if entry.job in due]
    early = [entry.job for entry in begun if entry.at < due[entry.job] - EARLY]
    yield _check("-", "delayed jobs start not before their time", len(begun), early)


def polled(facts: Facts) -> Iterator[Check]:
    """Without notifications, jobs start by polling."""
    begun = {entry.job: entry.at for entry in reversed([*facts.of("begin")])}
    within = facts.poll * POLLS
    late = [
        f"{each.job}: {begun.get(each.job, float('inf')) - each.at:.1f} s"  # type: ignore[arg-type]
        for each in facts.probes
        if each.job not in begun or begun[each.job] - each.at > within
    ]
    yield _check("I13", "without notifications, polling starts jobs", len(facts.probes), late)


# -- schedules ------------------------------------------------------------------------------------


def fired(facts: Facts) -> Iterator[Check]:
    occurrences, wrong = 0, list[str]()
    for schedule in facts.tables.schedules:
        mine = [r.occurrence or 0 for r in facts.tables.jobs if r.schedule == schedule.id]
        occurrences += len(mine)
        wrong += unlike(schedule, round(facts.every * 1e6), mine)
    yield _check("I7", "each occurrence is one job, and none is missing", occurrences, wrong)


def unlike(schedule: Schedule, interval: int, fired: list[int]) -> list[str]:
    """Compare what was fired with what should have been, before the cursor."""
    expected = set(range(schedule.anchor + interval, schedule.cursor, interval))
    found: dict[str, Collection[int]] = {
        "missing": expected - set(fired),
        "fired twice": [at for at, count in Counter(fired).items() if count > 1],
        "not due": set(fired) - expected,
        "passed over": range(schedule.missed),
    }
    lines = [f"{schedule.name}: {len(which)} {what}" for what, which in found.items() if which]
    return [*lines, f"{schedule.name}: {schedule.error}"] if schedule.error else lines


# -- workflows ------------------------------------------------------------------------------------


def families(facts: Facts) -> Iterator[Check]:
    parents = [r for r in facts.tables.jobs if r.topic in (load.order.topic, load.album.topic)]
    wrong = [
        f"{row.topic} {row.id}: {len(facts.children[row.id])} children"
        for row in parents
        if len(facts.children[row.id]) != load.CHILDREN
        or any(child.status not in ENDED for child in facts.children[row.id])
    ]
    yield _check("I8", "each fan-out has its children once, all ended", len(parents), wrong)
    allowed = {f"packed={load.CHILDREN}+0", f"parts={load.CHILDREN - 1}+1"}
    gathered = [e for e in facts.of("past") if e.detail.startswith(("packed=", "parts="))]
    partial = [f"{e.job} {e.detail}" for e in gathered if e.detail not in allowed]
    yield _check("I8", "parents continue with the result of all children", len(gathered), partial)
    yield _wakes(facts)


def _wakes(facts: Facts) -> Check:
    """A parent that is woken too early, or again, suspends again: albums wait for nothing else."""
    suspended = defaultdict[UUID, set[int]](set)
    for entry in facts.of("end"):
        if entry.topic == load.album.topic and entry.detail == "Suspension":
            suspended[entry.job].add(entry.token)
    for failure in facts.tables.failures:  # this run's suspension was never stored
        suspended.get(failure.job, set()).discard(failure.token)
    twice = [f"{job}: {len(runs)} times" for job, runs in suspended.items() if len(runs) > 1]
    return _check("I8", "a parent wakes once", len(suspended), twice)


def steps(facts: Facts) -> Iterator[Check]:
    past = dict[tuple[UUID, str], int]()
    again, called = list[str](), 0
    for entry in facts.of("step", "past"):
        place = (entry.job, entry.detail)
        if entry.event == "past":
            past[place] = min(past.get(place, entry.token), entry.token)
        else:
            called += 1
            # A run that has lost its lease without knowing may call once more: its token is lower.
            if entry.token >= past.get(place, entry.token + 1):
                again.append(f"{entry.job} {entry.detail}")
    yield _check("I9", "a stored step is not called again", called, again)
    if facts.tx:
        yield _effects(facts)
    sent = [e for e in facts.of("past") if e.detail.startswith("approved=")]
    other = [f"{e.job} {e.detail}" for e in sent if e.detail != f"approved={e.n}"]
    yield _check("I9", "a signal's payload arrives, the same in every run", len(sent), other)


def _effects(facts: Facts) -> Check:
    done = Counter(facts.tables.effects)
    orders = [row for row in facts.tables.jobs if row.topic == load.order.topic]
    wrong = [
        f"order {row.payload['n']} {step}: {done[row.payload['n'], step]} times"
        for row in orders
        for step in ("book", "close")
        if done[row.payload["n"], step] != 1
    ]
    return _check("I9", "an effect in a step's transaction happens once", 2 * len(orders), wrong)


# -- keys and limits ------------------------------------------------------------------------------


def keys(facts: Facts) -> Iterator[Check]:
    """Check samples of the table, and the runs: a storm of seconds may have no such sample."""
    groups = defaultdict[str, list[Run]](list)
    for name, run in _slot_runs(facts):
        if name.startswith("keyed"):
            groups[name].append(run)
    beside = [
        f"{name}: {a.job} and {b.job}"
        for name, runs in groups.items()
        for a, b in pairwise(sorted(runs, key=lambda run: run.begin))
        if a.job != b.job and b.begin < a.end
    ]
    sampled = facts.observer.keys
    number = sampled.checked + sum(map(len, groups.values()))
    yield _check("I10", "one living job for each key", number, [*sampled.bad, *beside])


def slots(facts: Facts) -> Iterator[Check]:
    groups = defaultdict[str, list[Run]](list)
    for name, run in _slot_runs(facts):
        groups[name].append(run)
    limited = {name: runs for name, runs in groups.items() if not name.startswith("keyed")}
    over = [
        f"{name}: {most} at once"
        for name, runs in limited.items()
        if (most := most_at_once(runs)) > (load.SHARED if name == "shared" else 1)
    ]
    yield _check("I12", "no limit is exceeded", sum(map(len, limited.values())), over)
    ordered = {name: runs for name, runs in groups.items() if name.startswith("ordered")}
    turned = [f"{name}: {line}" for name, runs in ordered.items() for line in out_of_order(runs)]
    yield _check("I12", "sequential jobs keep their order", sum(map(len, ordered.values())), turned)
    rows = facts.tables.jobs
    held = [f"{r.topic} {r.id}" for r in rows if r.status in ENDED and (r.key_held or r.leased)]
    yield _check("I12", "jobs that have ended hold no key and no slot", len(rows), held)


def _slot_runs(facts: Facts) -> Iterator[tuple[str, Run]]:
    """Runs with a slot. One whose process was frozen may have lost its slot without knowing."""
    runs = {(run.job, run.token): run for run in _runs(facts)}
    for entry in facts.of("slot"):
        run = runs.get((entry.job, entry.token))
        if run is not None and not _was_frozen(run, facts.frozen):
            yield entry.detail, run


def _runs(facts: Facts) -> Iterable[Run]:
    runs = dict[tuple[UUID, int], Run]()
    for e in facts.of("begin", "end"):
        if e.event == "begin":
            died = facts.died.get(e.pid, float("inf"))
            runs[e.job, e.token] = Run(e.job, e.token, e.n, e.pid, e.at, died)
        else:
            runs[e.job, e.token] = runs[e.job, e.token]._replace(end=e.at)
    return runs.values()


def _was_frozen(run: Run, frozen: list[tuple[int, float, float]]) -> bool:
    return any(
        run.pid == pid and run.begin < until + load.LONG_LEASE and run.end > since
        for pid, since, until in frozen
    )


def most_at_once(runs: Iterable[Run]) -> int:
    """Return how many ran at the same time."""
    changes = sorted(change for run in runs for change in ((run.begin, 1), (run.end, -1)))
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def out_of_order(runs: Iterable[Run]) -> list[str]:
    """Return jobs that began before an earlier one of their key had its last run."""
    last, first = dict[int, float](), dict[int, float]()
    for run in runs:
        last[run.n] = max(last.get(run.n, 0.0), run.begin)
        first[run.n] = min(first.get(run.n, run.begin), run.begin)
    return [f"{b} before {a}" for a, b in pairwise(sorted(first)) if first[b] < last[a]]


# -- the storm itself -----------------------------------------------------------------------------


def tested(facts: Facts) -> Iterator[Check]:
    """A storm in which nothing was interrupted has shown nothing."""
    lost = [each for each in facts.tables.failures if each.error.startswith("worker lease expired")]
    yield _check("-", "faults interrupted runs", min(facts.struck, len(lost)), [])


INVARIANTS: list[Callable[[Facts], Iterator[Check]]] = [
    stored,
    leased,
    tokens,
    final,
    attempts,
    recovered,
    fired,
    families,
    steps,
    keys,
    ended,
    slots,
    polled,
    punctual,
    tested,
]
