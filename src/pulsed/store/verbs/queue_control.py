"""The claim from a queue that a control governs: as many jobs as it permits.

Claims from such a queue take turns, by the lock of the queue, and so do changes of its control.
What a claim decides by is read after it has the lock, in a new statement: only then does it see
what the claim before it has committed. Runs that end meanwhile only make room.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from pulsed.errors import InvalidOption
from pulsed.model.control import Ageing, Control, ControlKey, ControlScope
from pulsed.store.sql.statement import Statement
from pulsed.store.verbs import controls
from pulsed.store.verbs.claim import LeasedRows, claim_due
from pulsed.store.verbs.engine import Claim, Engine
from pulsed.store.verbs.floors import Floors
from pulsed.store.verbs.script import Script, Verb, VerbKind
from pulsed.store.verbs.topics import Topics


class Permission(NamedTuple):
    """How many jobs of a queue may start now, by its control."""

    most: int
    control: Control
    now: datetime
    tat: datetime | None = None

    @property
    def ageing(self) -> Ageing | None:
        """How the priorities of waiting jobs rise."""
        age = self.control.numbers.age
        return None if age is None else Ageing(age, self.now)


Inner = Callable[[Permission], Script[LeasedRows]]
"""Claims as many jobs as are permitted."""


def claim(
    engine: Engine, worker_id: UUID, queue: str, topics: Topics, limit: int, floors: Floors
) -> Verb[LeasedRows]:
    """Lease due jobs of a queue that a control governs.

    If none does any more, it leases nothing, and ``floors.is_governed`` says so.
    """
    tried = False

    def inner(permission: Permission) -> Script[LeasedRows]:
        wanted = Claim(worker_id, queue, topics, is_governed=True, ageing=permission.ageing)
        return (yield from claim_due(engine, wanted, permission.most, floors))

    def script() -> Script[LeasedRows]:
        nonlocal tried
        if tried:
            floors.forget()
        tried = True
        return (yield from governed(engine, queue, limit, floors, inner))

    return Verb("claim", VerbKind.TRANSACTION, script, claim_lane=True, looks_for_work=True)


def governed(
    engine: Engine, queue: str, limit: int, floors: Floors, inner: Inner
) -> Script[LeasedRows]:
    """Claim by ``inner`` what the control of a queue permits, of up to ``limit`` jobs."""
    permission = yield from _permission(engine, queue, limit)
    if permission.control.is_neutral:
        # Also a row that says nothing, such as SQL by hand may leave: it would stop the queue.
        yield from controls.remove(engine, ControlKey(ControlScope.QUEUE, queue))
        floors.is_governed = False
        floors.forget()
        return LeasedRows([])
    claimed = LeasedRows([])
    if permission.most > 0:
        claimed = yield from inner(permission)
    return (yield from _charged(engine, permission, claimed, limit))


def _permission(engine: Engine, queue: str, limit: int) -> Script[Permission]:
    """Return how many jobs may start, of up to ``limit``, under the lock of the queue."""
    yield from engine.lock_queue(queue)
    try:
        control = yield from controls.read(engine, ControlKey(ControlScope.QUEUE, queue))
    except InvalidOption:  # whatever was meant, a claim that raises would stop all other queues
        control = Control(scope=ControlScope.QUEUE, name=queue, paused=True)
    numbers = control.numbers
    usage = {"name": queue, "most": numbers.running or 0}
    [(running, tat, now)] = yield Statement(engine.controls.queue_usage, usage)
    time = engine.dialect.time
    found = Permission(limit, control, time(now), None if tat is None else time(tat))
    if control.paused:
        return found._replace(most=0)
    if numbers.running is not None:
        found = found._replace(most=min(found.most, numbers.running - running))
    if numbers.rate is not None:
        permits = numbers.rate.permits(found.tat, found.now)
        found = found._replace(most=min(found.most, permits))
    return found


def _charged(
    engine: Engine, permission: Permission, claimed: LeasedRows, limit: int
) -> Script[LeasedRows]:
    """Charge what has started to the queue's rate, and say when that permits more."""
    rate, tat = permission.control.numbers.rate, permission.tat
    if rate is None or permission.control.paused:
        return claimed
    started = len(claimed.rows)
    if started:
        tat = rate.after(tat, permission.now, started)
        queue = permission.control.name
        yield from controls.write_rates(engine, ControlScope.QUEUE, {queue: tat})
    wait = rate.wait(tat, permission.now)
    if wait > 0 and permission.most <= started < limit:
        known = [wait] if claimed.again_in is None else [wait, claimed.again_in]
        return LeasedRows(claimed.rows, again_in=min(known))
    return claimed
