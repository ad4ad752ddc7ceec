"""Limits as people see them: their numbers, what they have in use, and why a job waits for one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from pulsed.engine.why import paused_reason
from pulsed.model.control import Control, ControlScope, Numbers, described
from pulsed.model.job import JobFilter, JobRow, Status
from pulsed.model.limit import KeyUse, split_key
from pulsed.store.base import Store
from pulsed.wording import counted, format_duration

MOST_LIMITS = 200
"""Limits in one list: each costs a few index scans."""

SHOWN = 5
"""Jobs that a sentence names."""


class LimitState(msgspec.Struct, frozen=True, kw_only=True):
    """A limit: its numbers, and what it has in use."""

    name: str
    numbers: Numbers
    """Those that count: an operator's, or else the declared ones."""
    declared: Numbers | None = None
    override: Numbers | None = None
    paused: bool = False
    running: int = 0
    waiting: int = 0
    at_least: bool = False
    """There is more in use than was counted."""
    keys: tuple[KeyState, ...] = ()
    """The busiest keys, if they were asked for."""

    @property
    def most_running(self) -> int | None:
        """How many jobs of a key may run at once; None: as many as there are."""
        return 1 if self.numbers.sequential else self.numbers.running

    @property
    def full(self) -> tuple[KeyState, ...]:
        """The busiest keys whose jobs wait for a slot or for the rate."""
        return tuple(each for each in self.keys if each.waiting and self._is_used_up(each))

    @property
    def in_words(self) -> str:
        """What it has in use: ``5 of 5 run``, or for several keys ``12 run, 3 keys are full``."""
        if any(each.value is not None for each in self.keys):
            verb = "is" if len(self.full) == 1 else "are"
            return f"{self.running:,} run, {counted(len(self.full), 'key')} {verb} full"
        most = self.most_running
        return f"{self.running:,} run" if most is None else f"{self.running:,} of {most:,} run"

    def _is_used_up(self, key: KeyState) -> bool:
        most = self.most_running
        return key.next_start is not None or (most is not None and key.running >= most)


class KeyState(msgspec.Struct, frozen=True, kw_only=True):
    """What one value of a limit has in use."""

    value: str | None
    running: int
    waiting: int
    holders: tuple[str, ...]
    """The ids of the first jobs that run."""
    next_start: datetime | None = None
    """When its rate permits the next start, if that is not now."""


async def read_limits(store: Store) -> list[LimitState]:
    """Read the limits that have numbers or are paused, by name."""
    controls = await store.controls.list_page(ControlScope.LIMIT, limit=MOST_LIMITS)
    return [await limit_state(store, control, 0) for control in controls]


async def read_limit(store: Store, name: str, keys: int) -> LimitState:
    """Read one limit, with its busiest keys."""
    return await limit_state(store, await store.controls.get(ControlScope.LIMIT, name), keys)


async def limit_state(store: Store, control: Control, keys: int) -> LimitState:
    """Read what a limit has in use, with its busiest keys."""
    use = await store.controls.limit_use(control.name, keys=keys)
    now = await store.now() if use.keys else None
    return LimitState(
        name=control.name,
        numbers=control.numbers,
        declared=control.declared,
        override=control.override,
        paused=control.paused,
        running=use.running,
        waiting=use.waiting,
        at_least=use.at_least,
        keys=tuple(_key(each, control.numbers, now) for each in use.keys if now is not None),
    )


def _key(use: KeyUse, numbers: Numbers, now: datetime) -> KeyState:
    wait = 0.0 if numbers.rate is None else numbers.rate.wait(use.tat, now)
    return KeyState(
        value=use.value,
        running=use.running,
        waiting=use.waiting,
        holders=tuple(map(str, use.holders)),
        next_start=now + timedelta(seconds=wait) if wait > 0 else None,
    )


async def limit_reasons(store: Store, job: JobRow, now: datetime) -> list[str]:
    """Return why a due job waits for its limit; nothing if it need not."""
    if job.limit_key is None:
        return []
    control = await store.controls.get(ControlScope.LIMIT, split_key(job.limit_key)[0])
    name = job.limit_key
    if control.paused:
        return [paused_reason(control, now)]
    return [
        *await _slots_reason(store, name, control.numbers),
        *await _order_reason(store, job, control.numbers),
        *await _rate_reason(store, name, control.numbers, now),
    ]


async def _slots_reason(store: Store, key: str, numbers: Numbers) -> list[str]:
    most = 1 if numbers.sequential else numbers.running
    if most is None:
        return []
    where = JobFilter(status=(Status.RUNNING,), limit_key=key)
    running = (await store.counts(where))[Status.RUNNING]
    if running < most:
        return []
    holders = await store.list_jobs(where, limit=SHOWN)
    said = _named((str(each.id) for each in holders), running)
    return [f"its limit {key!r} allows {counted(most, 'job')} at once, and these run: {said}"]


async def _order_reason(store: Store, job: JobRow, numbers: Numbers) -> list[str]:
    """Return which job comes first: of a sequence, one that has started keeps its turn."""
    if not numbers.sequential or job.started_at is not None:
        return []
    where = JobFilter(status=(Status.RETRYING, Status.WAITING), limit_key=job.limit_key)
    started = [each for each in await store.list_jobs(where, limit=SHOWN) if each.started_at]
    return [
        f"its limit {job.limit_key!r} runs jobs in order, and {each.id} keeps its turn until it "
        f"ends: it is {each.status}"
        for each in started[:1]
    ]


async def _rate_reason(store: Store, key: str, numbers: Numbers, now: datetime) -> list[str]:
    if numbers.rate is None:
        return []
    tats = await store.controls.rates(ControlScope.LIMIT, [key])
    wait = numbers.rate.wait(tats.get(key), now)
    if wait <= 0:
        return []
    rate = described(Numbers(rate=numbers.rate))
    return [f"its limit {key!r} has a {rate}: the next may start in {format_duration(wait)}"]


def _named(ids: Iterable[str], total: int) -> str:
    known = list(ids)
    more = f" and {total - len(known):,} more" if total > len(known) else ""
    return ", ".join(known) + more
