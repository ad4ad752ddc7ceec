"""A short storm of each kind in every run of the suite, and tests of the checker it ends with."""

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from pulsed.model.timetable import EPOCH
from pulsed.store.verbs.ticks import Tick, Ticks
from tests.chaos import checker, cluster, crashes, load
from tests.chaos.facts import Facts, Failure, Row, Schedule, Tables
from tests.chaos.hosts import HostsSite
from tests.chaos.ledger import Entry
from tests.chaos.observer import Observer, Sampled
from tests.chaos.patroni import PatroniSite
from tests.chaos.producer import Asked
from tests.chaos.proxy import FaultyProxy
from tests.chaos.scans import SCANS, UNSCANNED, Scan, Scans, unscanned
from tests.support.programs import python


def storm(*options: str) -> str:
    """Run a storm of a few seconds, which must end well; returns its table."""
    said = python("-m", "tests.chaos", *options, seconds=200).stdout
    assert "every invariant held" in said
    return said


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "server"])
def test_every_invariant_holds_while_everything_breaks(engine: str):
    said = storm("--engine", engine, "--seconds", "2.5", "--jobs", "100", "--workers", "2")
    assert "worker killed" in said


def test_nobody_pays_for_jobs_that_kill_their_worker():
    """One of 111, with real processes under a supervisor."""
    storm("--crashes", "--engine", "sqlite", "--jobs", "111", "--workers", "2")


# -- the checker of crashes -----------------------------------------------------------------------

CRASHED = [
    (UUID(int=1), "neighbour", "SUCCEEDED", 1, 3, {"n": 0}),
    (UUID(int=2), "crash", "DEAD_LETTERED", 1, 1, {"n": 1}),
]
RUNS = {0: 3, 1: 3}


@pytest.mark.parametrize(
    "rows, runs, broken",
    [
        (CRASHED, RUNS, []),
        (CRASHED[1:], RUNS, ["acknowledged", "neighbours", "interrupted"]),
        (CRASHED, {0: 3, 1: 4}, ["crashing jobs run"]),
        (CRASHED, {0: 1, 1: 3}, ["interrupted"]),
        ([(*CRASHED[0][:3], 2, 3, {"n": 0}), CRASHED[1]], RUNS, ["interrupted"]),
        ([(*CRASHED[0][:3], 2, 3, {"n": 0}), CRASHED[1]], {0: 4, 1: 3}, []),
        ([(*CRASHED[0][:2], "RUNNING", 1, 3, {"n": 0}), CRASHED[1]], RUNS, ["neighbours"]),
        (
            [CRASHED[0], (*CRASHED[1][:2], "PENDING", 0, None, {"n": 1})],
            {0: 2, 1: 2},
            ["crashing jobs are"],
        ),
    ],
)
def test_who_paid_for_a_crash_is_noticed(rows: Any, runs: dict[int, int], broken: list[str]):
    promised = [row[0] for row in CRASHED]
    checks = crashes.check(lambda _: rows, promised, Counter(runs))
    bad = [check.what for check in checks if not check.holds]
    assert len(bad) == len(broken)
    assert all(what.startswith(part) for what, part in zip(bad, broken, strict=True))


# -- the checker of storms ------------------------------------------------------------------------

EVERY = 1_000_000
WORKER = 4711
S = 1_000_000
"""A second, in microseconds."""


def scans_at(seconds: Iterable[float]) -> list[Scan]:
    """Return a scan at each of these seconds, each with the one before it."""
    return [Scan(round(a * S), round(b * S)) for a, b in pairwise([0, *seconds])]


class Lab:
    """The facts of a storm in which all went well, with one job of each kind."""

    def __init__(self) -> None:
        self.jobs: dict[UUID, Row] = {}
        self.failures: list[Failure] = []
        self.entries: list[Entry] = []
        self.asked: list[Asked] = []
        self.effects: list[tuple[int, str]] = []
        self.frozen: list[tuple[int, float, float]] = []
        self.schedule = Schedule(UUID(int=900), "s0", 0, 3 * EVERY, 0, None)
        for kind in (*load.WEIGHTS, load.poison):
            self._add(kind.topic, delay=1.0 if kind is load.delayed else 0.0)
        for parent in [row for row in self.jobs.values() if row.topic in ("order", "album")]:
            for number in range(load.CHILDREN):
                kind = load.pack if parent.topic == "order" else load.part
                self._add(kind.topic, n=parent.payload["n"], parent=parent.id, number=number)
        for occurrence in (EVERY, 2 * EVERY):
            self._add(load.quick.topic, n=-1, schedule=UUID(int=900), occurrence=occurrence)
        self._walk()
        self._slots()
        self.observer = Observer(lambda: "")
        self.observer.scans.add(scans_at(range(1, 60)))
        self.sample = Sampled(UUID(int=950), "keyed", "RUNNING", 3, True, "key-1", 3 * S, 60 * S)
        self.observer.take([self.sample])
        self.observer.take([self.sample])
        self.after = Sampled(UUID(int=951), "quick", "SUCCEEDED", 3, False, None)
        self.observer.take([self.after])
        self.observer.take([self.after])

    def of(self, topic: str) -> Row:
        return next(row for row in self.jobs.values() if row.topic == topic)

    def change(self, topic: str, **values: Any) -> None:
        row = self.of(topic)
        self.jobs[row.id] = row._replace(**values)

    def _add(self, topic: str, *, n: int | None = None, delay: float = 0.0, **more: Any) -> None:
        job, at = UUID(int=len(self.jobs) + 1), 10.0 * len(self.jobs)
        if n is None:
            n = len(self.asked)
            self.asked.append(Asked(n, topic, at, delay, job))
        parked = topic in load.PARKED or (topic == "part" and more.get("number") == 0)
        most = 3 if topic in load.PARKED else 1
        self.jobs[job] = Row(
            id=job,
            topic=topic,
            status="DEAD_LETTERED" if parked else "SUCCEEDED",
            attempts=most,
            max_attempts=3,
            token=most,
            payload={"n": n, "number": more.get("number")},
            result=None if parked else {"n": n, "token": most},
            leased=False,
            error=None,
            parent=more.get("parent"),
            schedule=more.get("schedule"),
            occurrence=more.get("occurrence"),
            key_held=False,
        )
        for token in range(1, most + 1):
            self.note("begin", job, token, at + delay + token)
            self.note("end", job, token, at + delay + token + 0.5, "ValueError" if parked else "ok")
            if parked:
                error = "worker lease expired" if topic == "poison" else "ValueError"
                self.failures.append(Failure(job, token, error))

    def note(self, event: str, job: UUID, token: int, at: float, detail: str = "-") -> None:
        row = self.jobs[job]
        n = row.payload["n"]
        self.entries.append(Entry(event, row.topic, n, job, token, 1, WORKER, at, detail))

    def _walk(self) -> None:
        order, album = self.of("order"), self.of("album")
        for step in ("charge", "book", "close"):
            self.note("step", order.id, 1, 1.0, step)
            self.note("past", order.id, 1, 1.0, step)
        self.effects += [(order.payload["n"], "book"), (order.payload["n"], "close")]
        self.note("past", order.id, 1, 1.0, f"approved={order.payload['n']}")
        self.note("past", order.id, 1, 1.0, "packed=3+0")
        self.note("begin", album.id, 0, 1.0)
        self.note("end", album.id, 0, 1.0, "Suspension")
        self.note("past", album.id, 1, 2.0, "parts=2+1")

    def _slots(self) -> None:
        for topic in ("shared", "shared_too", "ordered"):
            slot = "ordered-1" if topic == "ordered" else "shared"
            self.note("slot", self.of(topic).id, 1, 1.0, slot)

    def facts(self) -> Facts:
        tables = Tables(list(self.jobs.values()), self.failures, [self.schedule], self.effects)
        probes = [self.asked[0]]
        return Facts(
            tables, self.entries, self.asked, self.observer, probes, 1.0, 1.0, frozen=self.frozen
        )

    def another_run(
        self, topic: str, begin: float, end: float, *, slot: str = "", n: int = 99
    ) -> None:
        """Let another job of a topic run at a time of its own."""
        job = UUID(int=800 + len(self.entries))
        for event, at, detail in (("begin", begin, "-"), ("end", end, "ok"), ("slot", begin, slot)):
            self.entries.append(Entry(event, topic, n, job, 1, 1, WORKER, at, detail))


def broken(lab: Lab) -> list[str]:
    return [
        f"{each.invariant} {each.what}" for each in checker.check(lab.facts()) if not each.holds
    ]


def test_a_storm_in_which_all_went_well_passes():
    assert broken(Lab()) == []


def lose(lab: Lab) -> None:
    del lab.jobs[lab.of("quick").id]


def double(lab: Lab) -> None:
    lab.jobs[UUID(int=700)] = lab.of("quick")._replace(id=UUID(int=700))


def leave_a_lease(lab: Lab) -> None:
    lab.change("quick", leased=True)


def start_a_lease_twice(lab: Lab) -> None:
    lab.note("begin", lab.of("quick").id, 1, 5.0)


def believe_a_zombie(lab: Lab) -> None:
    lab.change("quick", token=2)


def overrun(lab: Lab) -> None:
    lab.change("hopeless", attempts=4)


def forget_a_failure(lab: Lab) -> None:
    lab.failures.pop()


def run_for_free(lab: Lab) -> None:
    lab.note("begin", lab.of("quick").id, 2, 5.0)


def miss(lab: Lab) -> None:
    lab.schedule = lab.schedule._replace(cursor=4 * EVERY)


def fire_twice(lab: Lab) -> None:
    fired = next(row for row in lab.jobs.values() if row.occurrence)
    lab.jobs[UUID(int=700)] = fired._replace(id=UUID(int=700))


def lose_a_child(lab: Lab) -> None:
    lab.change("pack", parent=UUID(int=700))


def wake_too_early(lab: Lab) -> None:
    lab.note("past", lab.of("album").id, 1, 2.0, "parts=1+1")


def wake_twice(lab: Lab) -> None:
    lab.note("begin", lab.of("album").id, 3, 1.0)
    lab.note("end", lab.of("album").id, 3, 1.0, "Suspension")


def repeat_a_step(lab: Lab) -> None:
    lab.note("step", lab.of("order").id, 2, 2.0, "charge")


def repeat_an_effect(lab: Lab) -> None:
    lab.effects.append(lab.effects[0])


def lose_an_effect(lab: Lab) -> None:
    lab.effects.pop()


def mix_up_signals(lab: Lab) -> None:
    lab.note("past", lab.of("order").id, 1, 1.0, "approved=77")


def leave_a_job(lab: Lab) -> None:
    lab.change("quick", status="PENDING")


def mix_up_results(lab: Lab) -> None:
    lab.change("quick", result={"n": 77, "token": 1})


def exceed_a_limit(lab: Lab) -> None:
    for _ in range(load.SHARED + 1):
        lab.another_run("shared", 900, 901, slot="shared")


def turn_around(lab: Lab) -> None:
    lab.another_run("ordered", 900, 901, slot="ordered-1", n=99)
    lab.another_run("ordered", 902, 903, slot="ordered-1", n=98)


def keep_a_key(lab: Lab) -> None:
    lab.change("keyed", key_held=True)


def start_late(lab: Lab) -> None:
    lab.asked[0].at -= 2 * checker.POLLS


def start_early(lab: Lab) -> None:
    for each in lab.asked:
        each.delay *= 3


def interrupt_nothing(lab: Lab) -> None:
    lab.failures = [each._replace(error="another") for each in lab.failures]


def fall_back(lab: Lab) -> None:
    lab.observer.take([replace(lab.sample, token=2)])


def rise_from_the_dead(lab: Lab) -> None:
    lab.observer.take([replace(lab.after, status="PENDING")])


def never_recover(lab: Lab) -> None:
    for last in (60, 61 + SCANS):
        lab.observer.scans.add(scans_at(range(1, last + 1)))
        lab.observer.take([replace(lab.sample, until=59 * S)])


def stop_scanning(lab: Lab) -> None:
    ahead = time.time() - time.monotonic()
    last = round((ahead + 10_000) * S)
    lab.observer.scans.add([Scan(last, last), Scan(last, last + 100 * S)])
    for at in (1.0, 1.5 + UNSCANNED):
        lab.note("begin", lab.of("flaky").id, 1, 10_000 + at)


def share_a_key(lab: Lab) -> None:
    lab.observer.take([Sampled(UUID(int=n), "keyed", "PENDING", 0, False, "k") for n in (960, 961)])


DAMAGE: list[tuple[Callable[[Lab], None], str]] = [
    (lose, "I1 acknowledged"),
    (double, "I1 jobs are stored once"),
    (leave_a_lease, "I2"),
    (start_a_lease_twice, "I3 a lease starts"),
    (fall_back, "I3 lease tokens"),
    (believe_a_zombie, "I4 results"),
    (rise_from_the_dead, "I4 jobs that have ended"),
    (overrun, "I5 attempts are"),
    (forget_a_failure, "I5 each attempt"),
    (run_for_free, "I5 runs are"),
    (never_recover, "I6 expired leases"),
    (stop_scanning, "I6 processes"),
    (miss, "I7"),
    (fire_twice, "I7"),
    (lose_a_child, "I8 each fan-out"),
    (wake_too_early, "I8 parents continue"),
    (wake_twice, "I8 a parent wakes"),
    (repeat_a_step, "I9 a stored step"),
    (repeat_an_effect, "I9 an effect"),
    (lose_an_effect, "I9 an effect"),
    (mix_up_signals, "I9 a signal"),
    (share_a_key, "I10"),
    (leave_a_job, "I11 in the end"),
    (mix_up_results, "I11 jobs ended"),
    (exceed_a_limit, "I12 no limit"),
    (turn_around, "I12 sequential"),
    (keep_a_key, "I12 jobs that have ended"),
    (start_late, "I13"),
    (start_early, "- delayed"),
    (interrupt_nothing, "- faults"),
]


@pytest.mark.parametrize("damage, said", DAMAGE)
def test_every_violation_is_noticed(damage: Callable[[Lab], None], said: str):
    lab = Lab()
    damage(lab)
    assert any(line.startswith(said) for line in broken(lab)), broken(lab)


def test_a_run_in_a_process_that_was_frozen_may_have_lost_its_slot():
    lab = Lab()
    exceed_a_limit(lab)
    lab.frozen.append((WORKER, 899.0, 900.5))
    assert broken(lab) == []


def test_a_lease_that_a_session_has_locked_is_passed_over():
    lab = Lab()
    for last in (60, 61 + SCANS):
        lab.observer.scans.add(scans_at(range(1, last + 1)))
        lab.observer.take([replace(lab.sample, until=59 * S)], lambda _: [])
    assert broken(lab) == []


@pytest.mark.parametrize(
    "scans, unexcused",
    [
        ([98, 99, 99.9, 100.1, 100.4], 2),
        ([100.1, 100.4, 103, 103.9, 104.8, 105.2], 1),  # after two gaps and their graces
        ([102, 104, 106, 108, 110], 2),  # a gap at each scan: spared for three of them
    ],
)
def test_a_gap_between_scans_excuses_them(scans: list[float], unexcused: int):
    """The lease of three seconds expired at second 100; a grace takes two."""
    seen = Scans()
    seen.add(scans_at([*(n / 2 for n in range(195)), *scans]))
    assert seen.unexcused(100 * S, 3 * S) == unexcused


@pytest.mark.parametrize("seed", range(50))
def test_the_rule_of_the_checker_is_the_rule_of_the_watchdog(seed: int):
    rng = random.Random(seed)
    lease = rng.choice([1, 3, 30]) * S
    ticks, seen, now = list[Tick](), Scans(), 1_000 * S
    expired = now + rng.randrange(10 * lease)
    for _ in range(60):
        now += round(lease * rng.choice([0.05, 0.1, 0.3, 0.4, 1.0]) * rng.uniform(0.5, 1.5))
        at = EPOCH + timedelta(microseconds=now)
        decided = Ticks.with_new(ticks, at, at)
        ticks = [tick for tick in [*ticks, decided.own] if tick.id not in decided.stale]
        own = decided.own.previous
        before = seen.unexcused(expired, lease)
        seen.add([Scan(None if own is None else (own - EPOCH) // timedelta(microseconds=1), now)])
        reaps = EPOCH + timedelta(microseconds=expired) < decided.reaped_before(
            timedelta(microseconds=lease)
        )
        assert (seen.unexcused(expired, lease) > before) == reaps


def test_a_frozen_process_need_not_scan():
    lab = Lab()
    begun = [entry for entry in lab.entries if entry.event == "begin"]
    last = max(entry.at for entry in begun) + 1
    assert [each.pid for each in unscanned([0.0, last], begun, [])] == [WORKER]
    assert not [*unscanned([0.0, last], begun, [(WORKER, 5.0, 6.0)])]


def test_a_storm_that_put_nothing_to_the_test_fails():
    nothing = Facts(Tables(), [], [], Observer(lambda: ""))
    assert not any(each.holds for each in checker.check(nothing))


# -- the tools of a storm -------------------------------------------------------------------------


@pytest.fixture
def echo() -> Iterator[tuple[FaultyProxy, list[bytes]]]:
    """A proxy before a server that answers what it got, and what that server got."""
    got: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=answer, args=(client,), daemon=True).start()

    def answer(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while data := client.recv(100):
                got.append(data)
                client.sendall(data)

    threading.Thread(target=serve, daemon=True).start()
    with FaultyProxy(*listener.getsockname()) as proxy:
        yield proxy, got
    listener.close()


def asked(proxy: FaultyProxy) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", proxy.port), 10)
    client.sendall(b"COMMIT")
    return client


def test_a_cut_answer_leaves_its_request_done(echo: tuple[FaultyProxy, list[bytes]]):
    proxy, got = echo
    proxy.cut_answers(1)
    with asked(proxy) as client, contextlib.suppress(ConnectionResetError):
        assert client.recv(100) == b""
    assert got == [b"COMMIT"]
    with asked(proxy) as client:
        assert client.recv(100) == b"COMMIT"


def test_a_silent_connection_goes_on_when_it_is_healed(echo: tuple[FaultyProxy, list[bytes]]):
    proxy, got = echo
    with asked(proxy) as client:
        assert client.recv(100) == b"COMMIT"
        proxy.swallows = True
        client.sendall(b"more")
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(100)
        proxy.swallows = False
        client.settimeout(10)
        assert client.recv(100) == b"more"
    assert got == [b"COMMIT", b"more"]


def test_a_dropped_connection_ends(echo: tuple[FaultyProxy, list[bytes]]):
    proxy, _ = echo
    with asked(proxy) as client:
        assert client.recv(100) == b"COMMIT"
        proxy.drop()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""


def test_what_a_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(cluster, "_binaries", lambda: None)
    assert "apt-get install patroni etcd-server haproxy" in PatroniSite.lacking()
    assert "apt-get install iproute2" in HostsSite.lacking()
