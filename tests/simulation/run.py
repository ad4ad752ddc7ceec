"""One run: a fleet under load and faults for a while, then calm, until every job has ended."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from pulsed import Context, PulsedError
from pulsed.engine.worker.options import WorkerOptions
from pulsed.engine.worker.worker import Worker
from pulsed.errors import TransientStorageError
from pulsed.store.sqlite.engine import SqliteEngine
from pulsed.store.verbs.engine import Engine
from pulsed.store.verbs.script import Verb
from tests.simulation import load
from tests.simulation.checker import Caller, Checker
from tests.simulation.database import Database
from tests.simulation.event_loop import SimulatedLoop
from tests.simulation.faults import Fault, Kind, planned
from tests.simulation.fleet import Process
from tests.simulation.machine import EPOCH, Clock, simulated_machine

T = TypeVar("T")

CALLS = 180
"""Storage calls in which faults happen, about as many as a storm makes."""
STORM = 10.0
"""Seconds of load and faults."""
CALM = 80.0
"""Seconds in which everything must have ended after the storm."""
POLL, TICK = 3.0, 2.0
ALL_ALIVE = 18.0
"""Seconds after which every frozen process has gone on, and every dead one was replaced."""
GRACES = 4 * load.LEASE * 2 / 3
"""Seconds that watchdogs wait at most, so that the living can send a heartbeat after an outage: a
gap of more than a third of a lease between two ticks, which a slow database makes, too, earns a
grace, and three more may extend it (decision 11)."""
DELAYS = (0.0, 0.001, 0.001, 0.003, 0.003, 0.01, 0.03, 0.15)
RESTARTS = (0.2, 1.0, 5.0)
EVERY, OCCURRENCES = 3, 5
"""A schedule that catches up on everything."""

_engine = SqliteEngine()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run has shown."""

    seed: int
    faults: Sequence[Fault]
    violations: Sequence[str]
    struck: Sequence[Fault] = ()
    """The faults that happened; a run may end before others are due."""
    calls: int = 0
    counted: dict[str, int] = field(default_factory=dict)
    checked: Counter[str] = field(default_factory=Counter)
    """How much there was to check of each invariant."""
    digest: str = ""


def simulate(
    seed: int, faults: Sequence[Fault] | None = None, engine: Engine | None = None
) -> Verdict:
    """Run a seed, with its own faults or with these, on these statements."""
    loop = SimulatedLoop()
    plan = planned(random.Random(f"{seed} faults"), CALLS) if faults is None else list(faults)
    with (
        simulated_machine(loop, seed),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        run = Run(seed, loop, plan, engine or _engine)
        try:
            return runner.run(run.play())
        finally:
            run.end()


class Run:
    """The world of one seed."""

    def __init__(
        self, seed: int, loop: SimulatedLoop, faults: Sequence[Fault], engine: Engine
    ) -> None:
        self._seed = seed
        self._loop = loop
        self._chance = random.Random(f"{seed} load")
        self._planned = faults
        self._faults = {fault.call: fault for fault in faults}
        self._struck: list[Fault] = []
        self._calls = 0
        self._away_until = 0.0
        self._is_calm = False
        self._hints_lost = self._chance.choice([0.0, 0.3, 1.0])
        self._trace = hashlib.sha256()
        self.engine = engine
        self.clock = Clock(loop)
        self.database = Database(self.clock.micros)
        self.checker = Checker(self.database)
        self.listeners: list[tuple[Process, Callable[[], None]]] = []
        self._processes: list[Process] = []
        self._ids: list[UUID] = []
        self._graves: list[Process] = []
        self._unanswered: list[asyncio.Task[Any] | None] = []
        self._workers = 0

    # -- storage calls --------------------------------------------------------------------------

    async def call(self, process: Process, verb: Verb[T]) -> T:
        """Make a call of a process, as this run has it."""
        self._calls += 1
        number = self._calls
        delays = random.Random(self._seed * 1_000_003 + number)
        fault = None if self._is_calm else self._faults.get(number)
        if fault is not None:
            self._struck.append(fault)
            if fault.kind is Kind.OUTAGE:
                self._away_until = self._loop.time() + fault.seconds
        kind = None if fault is None else fault.kind
        slow = fault.seconds if fault is not None and kind is Kind.SLOW else 0.0
        await asyncio.sleep(delays.choice(DELAYS) + slow * delays.random())
        if self._loop.time() < self._away_until:
            raise TransientStorageError("The simulated database is away.")
        if kind is Kind.REFUSED:
            raise TransientStorageError("The simulated connection was lost.")
        if kind is Kind.DIES_BEFORE:
            await self._die(process)
        answer = self._commit(process, verb, number)
        if kind is Kind.DIES_AFTER:
            await self._die(process)
        if fault is not None and kind is Kind.FREEZES:
            process.freeze(fault.seconds)
        await asyncio.sleep(delays.choice(DELAYS) + slow)
        if kind is Kind.UNANSWERED:
            raise TransientStorageError("The simulated answer was lost.")
        return answer

    def _commit(self, process: Process, verb: Verb[T], number: int) -> T:
        answer = self.database.perform(verb)
        caller = Caller(process.name, verb.name, process.store.reported)
        self.checker.committed(caller, self.clock.micros())
        self._trace.update(f"{number} {process.name} {verb.name} {self._loop.time()}\n".encode())
        return answer

    async def _die(self, process: Process) -> None:
        self._kill(process)
        self._unanswered.append(asyncio.current_task())  # else it would be collected, and ended
        await self._loop.create_future()

    def _kill(self, process: Process) -> None:
        process.kill()
        self._processes.remove(process)
        self.listeners = [entry for entry in self.listeners if entry[0] is not process]
        self._graves.append(process)
        if process.worker is not None:
            self._loop.outside(self._chance.choice(RESTARTS), self._start_worker)

    def notify(self) -> None:
        """Wake those who listen, each after a while, or never."""
        for process, wake in self.listeners:
            if self._chance.random() >= self._hints_lost:
                delay = self._chance.choice(DELAYS)
                self._loop.call_later(delay, wake, context=process.context)

    # -- the fleet ------------------------------------------------------------------------------

    async def play(self) -> Verdict:
        """Let it all happen; returns what was found."""
        self._loop.set_exception_handler(self._surprised)
        for _ in range(self._chance.choice([1, 2, 3])):
            self._start_worker()
        for name in ("client-1", "client-2"):
            self._start_client(name)
        await asyncio.sleep(STORM)
        self._is_calm = True
        self._away_until = 0.0
        await self._until_quiet()
        await self._probe()
        self.checker.check_end(occurrences=self._occurrences())
        self._check_slots()
        verdict = self._verdict()
        await self._end_tasks()
        return verdict

    def _start_worker(self) -> None:
        self._workers += 1
        process = self._new_process(f"worker-{self._workers}")
        options = WorkerOptions(
            concurrency=self._chance.choice([1, 2, 5]),
            poll=POLL,
            tick=TICK,
            stats=False,
            fence=self._chance.choice([None, True]),
        )

        async def work() -> None:
            process.worker = Worker(process.store, load.app.registry, options)
            await process.worker.run()

        process.start(work)

    def _new_process(self, name: str) -> Process:
        process = Process(self, self._loop, name)
        self._processes.append(process)
        return process

    def _start_client(self, name: str) -> None:
        process = self._new_process(name)
        chance = random.Random(f"{self._seed} {name}")

        async def produce() -> None:
            if name == "client-1":
                with contextlib.suppress(PulsedError):
                    await self._schedule()
            for _ in range(chance.randint(2, 14)):
                await asyncio.sleep(chance.choice([0.0, 0.1, 0.5, 2.0]))
                with contextlib.suppress(PulsedError):
                    await self._act(chance)
            self._processes.remove(process)

        process.start(produce)

    async def _schedule(self) -> None:
        await load.app.schedules.aput(
            "tick",
            load.scheduled.bind(),
            every=EVERY,
            catch_up="all",
            end=EPOCH + timedelta(seconds=EVERY * (OCCURRENCES + 1)),
        )

    async def _act(self, chance: random.Random) -> None:
        """Enqueue something, or do what an operator may do."""
        act = chance.random()
        if act < 0.8 or not self._ids:
            (kind,) = chance.choices(list(load.KINDS), weights=list(load.KINDS.values()))
            bound = kind.using(delay=chance.choice([0.0, 0.0, 0.0, 1.0, 4.0]))
            job = await bound.aenqueue(chance.randrange(20))
            self.checker.acknowledged.add(job.id.bytes)
            self._ids.append(job.id)
        elif act < 0.9:
            await load.app.asignal(chance.choice(self._ids), "go", "now")
        elif act < 0.95:
            await load.app.jobs.acancel(chance.choice(self._ids))
        else:
            await load.app.jobs.aretry(chance.choice(self._ids))

    # -- calm -------------------------------------------------------------------------------------

    async def _until_quiet(self) -> None:
        """Wait until there is nothing left to do, and check that expired leases are recovered."""
        began = self._loop.time()
        while (lasted := self._loop.time() - began) < CALM:
            await asyncio.sleep(1.0)
            if lasted > ALL_ALIVE:
                overdue = load.LEASE + 2 * TICK + GRACES
                self.checker.check_expired(self.clock.micros() - int(overdue * 1e6))
            has_clients = any(process.worker is None for process in self._processes)
            if not (has_clients or self.checker.unfinished() or self._schedule_is_active()):
                return

    async def _probe(self) -> None:
        """Enqueue a job without any notification: an idle worker must find it by polling."""
        self._hints_lost = 1.0
        process = self._new_process("probe")

        async def enqueue() -> UUID:
            return (await load.plain.aenqueue(0)).id

        job = await process.start(enqueue)
        self._processes.remove(process)
        await asyncio.sleep(1.1 * POLL + 4 * max(DELAYS))
        if not self.checker.is_running_or_over(job.bytes):
            self.checker.violated("I13", "a job was not found by polling")
        await asyncio.sleep(2.0)  # for its end, and the answers that are on their way

    def _schedule_is_active(self) -> bool:
        return bool(self.database.rows("SELECT 1 FROM pulse_schedules WHERE state = 'ACTIVE'"))

    def _occurrences(self) -> list[int]:
        """Return the occurrences that the schedule must have had, if it was stored."""
        rows = self.database.rows("SELECT anchor, spec, created_at FROM pulse_schedules")
        if not rows:
            return []
        anchor, step = rows[0][0], EVERY * 1_000_000
        end = int(EPOCH.timestamp() + EVERY * (OCCURRENCES + 1)) * 1_000_000
        return list(range(anchor + step, end, step))

    def _surprised(self, _: object, told: dict[str, Any]) -> None:
        error = told.get("exception")
        self.checker.violated("surprise", f"{told['message']}: {error!r}")

    def _check_slots(self) -> None:
        """Check that no living worker believes that something still runs."""
        for process in self._processes:
            worker = process.worker
            if worker is None or worker._loop_thread is None or process.is_frozen:
                continue
            if worker._runner.runs or worker._settler.backlog or worker._leases._held:
                self.checker.violated("I12", f"{process.name} has a slot or a lease left over")

    def _verdict(self) -> Verdict:
        return Verdict(
            self._seed,
            self._planned,
            tuple(self.checker.violations),
            tuple(self._struck),
            self._calls,
            self.checker.counted(),
            self.checker.checked,
            self._trace.hexdigest()[:16]
            + hashlib.sha256(repr(self.checker.digest()).encode()).hexdigest()[:16],
        )

    async def _end_tasks(self) -> None:
        """End every task, so that none is destroyed while it is pending."""
        self._loop.set_exception_handler(lambda *_: None)
        for process in (*self._processes, *self._graves):
            process.is_over = True
            process.resume()
        mine = asyncio.current_task()
        while tasks := [task for task in asyncio.all_tasks() if task is not mine]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=60.0)

    def end(self) -> None:
        """Close the database."""
        self.database.close()

    # -- what handlers tell -----------------------------------------------------------------------

    def began(self, ctx: Context) -> None:
        """Be told that a handler was called."""
        self.checker.began(ctx.job_id.bytes, ctx.lease_token)

    def stepped(self, ctx: Context, step: str) -> None:
        """Be told that a step's function was called."""
        self.checker.stepped(ctx.job_id.bytes, ctx.lease_token, step)


def described(verdict: Verdict) -> str:
    """Return a run as lines for people."""
    lines = [f"seed {verdict.seed}:", *(f"  VIOLATED {each}" for each in verdict.violations[:10])]
    faults: Any = verdict.faults or ["no fault at all"]
    return "\n".join([*lines, *(f"  with {each}" for each in faults)])
