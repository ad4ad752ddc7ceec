"""One run: a fleet under load and faults for a while, then calm, until every job has ended."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from pulsed import Context, PulsedError
from pulsed.engine.worker.options import WorkerOptions
from pulsed.engine.worker.worker import Worker
from pulsed.rpc.server.server import Server, ServerOptions
from pulsed.store.listener import Wake
from pulsed.store.sqlite.engine import SqliteEngine
from pulsed.store.verbs.engine import Engine
from tests.simulation import load
from tests.simulation.checker import Checker
from tests.simulation.database import Database
from tests.simulation.event_loop import SimulatedLoop
from tests.simulation.faults import DELAYS, Fault, Plan, planned
from tests.simulation.fleet import InOrder, Process, Role
from tests.simulation.machine import EPOCH, Clock, simulated_machine
from tests.simulation.network import Network
from tests.simulation.storage import Storage
from tests.simulation.threads import HandlersInLine

STORM = 10.0
"""Seconds of load and faults."""
CALM = 80.0
"""Seconds in which everything must have ended after the storm."""
POLL, TICK = 3.0, 2.0
ALL_ALIVE = 18.0
"""Seconds after which every frozen process has gone on, and every dead one was replaced."""
LONGEST_ANSWER = 8
"""Seconds after which every answer has arrived, however slow."""
GRACES = 4 * load.LEASE * 2 / 3
"""Seconds that watchdogs wait at most, so that the living can send a heartbeat after an outage: a
gap of more than a third of a lease between two ticks, which a slow database makes, too, earns a
grace, and three more may extend it (decision 11)."""
RESTARTS = (0.2, 1.0, 5.0)
EVERY, OCCURRENCES = 3, 5
"""A schedule that catches up on everything."""

SERVERS = (0, 0, 1, 2)
"""How many servers a fleet may have."""
NEAR = 0.25
"""How many workers and clients of a fleet with servers have a database URL all the same."""
DEPLOYED = 0.3
"""How often a server is drained, and another one takes its place."""

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
    servers = random.Random(f"{seed} servers").choice(SERVERS)
    if faults is None:
        faults = planned(random.Random(f"{seed} faults"), servers=servers)
    with (
        simulated_machine(loop, seed),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        run = Run(seed, loop, faults, engine or _engine, servers)
        try:
            return runner.run(run.play())
        finally:
            run.end()


class Run:
    """The world of one seed."""

    def __init__(
        self,
        seed: int,
        loop: SimulatedLoop,
        faults: Sequence[Fault],
        engine: Engine,
        servers: int,
    ) -> None:
        self._seed = seed
        self.loop = loop
        self._chance = random.Random(f"{seed} load")
        self._planned = faults
        self._hints_lost = self._chance.choice([0.0, 0.3, 1.0])
        self.engine = engine
        self.clock = Clock(loop)
        self.plan = Plan(seed, faults)
        self.database = Database(self.clock.micros)
        self.checker = Checker(self.database)
        self.storage = Storage(self)
        self.network = Network(self)
        self.listeners: list[tuple[Process, Wake]] = []
        self._hosts = [f"server-{number}:1" for number in range(1, servers + 1)]
        self._does_upkeep = self._chance.random() < 0.7
        self._processes: list[Process] = []
        self._ids: list[UUID] = []
        self._graves: list[Process] = []
        self._unanswered: list[asyncio.Task[Any] | None] = []
        self._started = 0
        self._has_transactions = False
        """Whether a worker has a database URL: no step has a transaction through a server."""

    # -- what happens to processes --------------------------------------------------------------

    async def die(self, process: Process) -> None:
        """Kill a process, in the middle of what it does."""
        self._kill(process)
        self._unanswered.append(asyncio.current_task())  # else it would be collected, and ended
        await self.loop.create_future()

    def _kill(self, process: Process) -> None:
        process.kill()
        if self.database.holder is process:
            self.database.unlock()
        self.network.died(process)
        self._leave(process)
        self._graves.append(process)
        self._replace(process)

    def _leave(self, process: Process) -> None:
        self._processes.remove(process)
        self.listeners = [entry for entry in self.listeners if entry[0] is not process]

    def _replace(self, process: Process) -> None:
        if process.role is not Role.CLIENT:
            again = functools.partial(self._start, process.role, process.place)
            self.at(self.loop.time() + self._chance.choice(RESTARTS), again)

    def at(self, when: float, callback: Callable[[], object]) -> None:
        """Call something at a time, whatever has happened to processes."""
        self.loop.outside(when - self.loop.time(), callback)

    def notify(self, names: set[str]) -> None:
        """Wake those who listen, each after a while, or never."""
        for process, wake in self.listeners:
            if self._chance.random() >= self._hints_lost:
                delay = self._chance.choice(DELAYS)
                self.loop.call_later(delay, wake, names, context=process.context)

    # -- the fleet ------------------------------------------------------------------------------

    async def play(self) -> Verdict:
        """Let it all happen; returns what was found."""
        self.loop.set_exception_handler(self._surprised)
        for host in self._hosts:
            self._start(Role.SERVER, host)
        for _ in range(self._chance.choice([1, 2, 3])):
            worker = self._start(Role.WORKER, self._url())
            self._has_transactions |= worker.is_near
        for _ in range(2):
            self._start(Role.CLIENT, self._url())
        if self._hosts and self._chance.random() < DEPLOYED:
            self.at(self._chance.uniform(1.0, STORM), self._deploy)
        await asyncio.sleep(STORM)
        self.plan.is_calm = True
        self.storage.calm()
        await self._until_quiet()
        await self._probe()
        self.checker.check_end(occurrences=self._occurrences())
        self._check_slots()
        verdict = self._verdict()
        await self._end_tasks()
        return verdict

    def _url(self) -> str | None:
        """Draw how a process reaches the jobs: by a server or, now and then, without one."""
        if not self._hosts or self._chance.random() < NEAR:
            return None
        return f"pulse://{','.join(self._hosts)}"

    def _start(self, role: Role, place: str | None) -> Process:
        self._started += 1
        process = Process(self, self.loop, f"{role}-{self._started}", role, place)
        self._processes.append(process)
        make = {Role.WORKER: self._work, Role.CLIENT: self._produce, Role.SERVER: self._serve}
        process.start(make[role](process))
        return process

    def _work(self, process: Process) -> Callable[[], Any]:
        options = WorkerOptions(
            concurrency=self._chance.choice([1, 2, 5]),
            poll=POLL,
            tick=TICK,
            stats=False,
            fence=self._chance.choice([None, True]),
        )

        async def work() -> None:
            registry = load.app.registry if process.is_near else load.far_registry
            process.worker = Worker(process.store, registry, options, threads=HandlersInLine())
            await process.worker.run()

        return work

    def _serve(self, process: Process) -> Callable[[], Any]:
        assert process.place is not None
        options = ServerOptions(
            listen=process.place, upkeep=self._does_upkeep, stats=False, tick=TICK
        )

        async def serve() -> None:
            process.server = server = Server(process.store, options)
            server._streams, server.dispatcher.streams = InOrder(), InOrder()  # type: ignore[assignment]
            await server.start()
            await server.failed()

        return serve

    def _deploy(self) -> None:
        """Drain a server, and start another one in its place."""
        process = next((each for each in self._processes if each.role is Role.SERVER), None)
        if process is not None and process.server is not None:
            process.start(lambda: self._drain(process))

    async def _drain(self, process: Process) -> None:
        assert process.server is not None
        await process.server.drain()
        if process in self._processes:
            self._leave(process)
            self._graves.append(process)
            self._replace(process)

    def _produce(self, process: Process) -> Callable[[], Any]:
        chance = random.Random(f"{self._seed} {process.name}")
        schedules = not any(each.role is Role.CLIENT for each in self._processes[:-1])

        async def produce() -> None:
            if schedules:
                with contextlib.suppress(PulsedError):
                    await self._schedule()
            for _ in range(chance.randint(2, 14)):
                await asyncio.sleep(chance.choice([0.0, 0.1, 0.5, 2.0]))
                with contextlib.suppress(PulsedError):
                    await self._act(chance)
            self._processes.remove(process)

        return produce

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
            if kind is load.transactional and not self._has_transactions:
                kind = load.steps
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
        began = self.loop.time()
        while (lasted := self.loop.time() - began) < CALM:
            await asyncio.sleep(1.0)
            if lasted > ALL_ALIVE:
                overdue = load.LEASE + 2 * TICK + GRACES
                self.checker.check_expired(self.clock.micros() - int(overdue * 1e6))
            has_clients = any(process.role is Role.CLIENT for process in self._processes)
            if not (has_clients or self.checker.unfinished() or self._schedule_is_active()):
                return

    async def _probe(self) -> None:
        """Enqueue a job without any notification: an idle worker must find it by polling."""
        self._hints_lost = 1.0
        process = Process(self, self.loop, "probe", Role.CLIENT)

        async def enqueue() -> UUID:
            return (await load.plain.aenqueue(0)).id

        job = await process.start(enqueue)
        await asyncio.sleep(1.1 * POLL + 4 * max(DELAYS))
        if not self.checker.is_running_or_over(job.bytes):
            self.checker.violated("I13", "a job was not found by polling")
        await asyncio.sleep(2.0)  # for its end, and the answers that are on their way
        if self.checker.unfinished():
            # A process that was frozen went on, claimed it, and died as its fault had planned.
            await self._until_quiet()
            await asyncio.sleep(2.0)
        for _ in range(LONGEST_ANSWER):
            if not any(worker._settler.backlog for worker in self._living_workers()):
                break
            await asyncio.sleep(1.0)  # a report is stored, and its answer is slow

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
        for worker, name in self._living_workers().items():
            if worker._runner.runs or worker._settler.backlog or worker._leases._held:
                self.checker.violated("I12", f"{name} has a slot or a lease left over")

    def _living_workers(self) -> dict[Worker, str]:
        """Return the started workers that are not frozen, and the names of their processes."""
        return {
            process.worker: process.name
            for process in self._processes
            if process.worker is not None
            and process.worker._loop_thread is not None
            and not process.is_frozen
        }

    def _verdict(self) -> Verdict:
        return Verdict(
            self._seed,
            self._planned,
            tuple(self.checker.violations),
            tuple(self.plan.struck),
            self.plan.calls,
            {**self.checker.counted(), "messages": self.network.messages},
            self.checker.checked,
            self.storage.trace
            + hashlib.sha256(repr(self.checker.digest()).encode()).hexdigest()[:16],
        )

    async def _end_tasks(self) -> None:
        """End every task, so that none is destroyed while it is pending."""
        self.loop.set_exception_handler(lambda *_: None)
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
