"""The claim of jobs with a limit.

The lease is the slot: what a key has in use is counted from its jobs, and nothing is counted up or
down. In one transaction, for a bounded number of keys at a time:

1. *keys*: which keys have due jobs, from where the rotation stands. Each key is locked until the
   transaction ends, or left out if another claim has its lock.
2. *in use*: in the next statement, which sees all that was committed before the locks were
   acquired, count what the keys have in use. From here on only ends of runs change that, which
   make room. So no limit is ever exceeded.
3. *grant*: decide here how many jobs each key may have, in fair shares.
4. *claim* them, and charge the rates.

SQLite has one writer, so it needs no locks.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from pulsed.errors import InvalidOption
from pulsed.model.control import ControlScope, Numbers, decoded
from pulsed.model.limit import LimitRule, split_key
from pulsed.model.timetable import EPOCH
from pulsed.store.sql.insertion import as_json
from pulsed.store.sql.jobs import LOWEST_ID
from pulsed.store.sql.statement import Row, Statement, one_column
from pulsed.store.verbs.claim import LeasedRows
from pulsed.store.verbs.engine import Claim, Engine, KeyGrant, by_id, by_priority, by_time
from pulsed.store.verbs.floors import Floors
from pulsed.store.verbs.queue_control import Permission, governed
from pulsed.store.verbs.rotation import KEYS, MOST_STEPS, Rotation, shares
from pulsed.store.verbs.script import Script, Verb, VerbKind

MOST_ROUNDS = 4
"""Rounds in which slots that some keys could not use go to the others."""

CONTENDED = 0.02
"""Seconds after which to try again a key that another claim had locked."""

MOST_SUSPECT_KEYS = 64

FEWEST_KEYS = 16
"""Keys that the first step of a claim visits at least, however few slots are free."""

KEY_STRETCH = 2_000
"""Jobs of a priority that one scan for missing keys visits."""

MOST_NEW_KEYS = 500

_decoded = functools.lru_cache(maxsize=1_000)(decoded)


@dataclass(slots=True)
class _Standing:
    """What a key may have, and what it has in use."""

    numbers: Numbers
    free: int
    """Jobs that it may start now."""
    begun: bool
    """Of a sequential limit: a job has started and not ended, so no other may start."""
    tat: datetime | None
    now: datetime


@dataclass(slots=True)
class _Walk:
    """One claim's way through the keys of a queue."""

    engine: Engine
    wanted: Claim
    rotation: Rotation
    left: int
    """Slots that are still to be filled."""
    rows: list[Row] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    claimed: Counter[str] = field(default_factory=Counter)
    weights: dict[str, int] = field(default_factory=dict)
    again_in: float | None = None
    suspects: bool = False
    is_governed: bool = False
    """A control governs the queue, which a claim has to know."""

    def come_back(self, seconds: float | None) -> None:
        """Claim again after so many seconds at the latest."""
        if seconds is not None:
            self.again_in = seconds if self.again_in is None else min(self.again_in, seconds)


def claim_limited(
    engine: Engine,
    wanted: Claim,
    limit: int,
    floors: Floors,
    rotation: Rotation,
    keys: dict[UUID, str],
) -> Verb[LeasedRows]:
    """Lease due jobs of limits, in fair shares and within their numbers.

    ``keys`` gets the keys of the claimed jobs. If a control governs the queue, that has to permit
    them, too; ``floors.is_governed`` says so, as for other claims.
    """

    def script() -> Script[LeasedRows]:
        keys.clear()
        if not wanted.is_governed:
            return (yield from _claim(engine, wanted, limit, floors, rotation, keys))

        def permitted(permission: Permission) -> Script[LeasedRows]:
            aged = replace(wanted, ageing=permission.ageing)
            return _claim(engine, aged, permission.most, floors, rotation, keys)

        return (yield from governed(engine, wanted.queue, limit, floors, permitted))

    return Verb("claim", VerbKind.TRANSACTION, script, claim_lane=True, looks_for_work=True)


def _claim(
    engine: Engine,
    wanted: Claim,
    limit: int,
    floors: Floors,
    rotation: Rotation,
    keys: dict[UUID, str],
) -> Script[LeasedRows]:
    """Claim as part of a verb. Jobs that lack their key get it first, now and then."""
    walk = _Walk(engine, wanted, rotation, limit)
    if rotation.scan_is_due():
        if rules := wanted.topics.rules:
            yield from _give_keys(engine, wanted.queue, rules, rotation)
        yield from _claim_suspect(walk)
    yield from _claim_by_turns(walk)
    if walk.is_governed and not wanted.is_governed:
        floors.is_governed = True
        floors.forget()
    walk.come_back(rotation.next_permit())
    return _leased(walk, keys)


def _leased(walk: _Walk, keys: dict[UUID, str]) -> LeasedRows:
    """Return the rows without their keys, which go into ``keys``."""
    rows = sorted(walk.rows, key=by_time)
    rows.sort(key=by_priority, reverse=True)
    keys.update((by_id(row), row[-1]) for row in rows)
    return LeasedRows([row[:-1] for row in rows], walk.again_in)


# -- the walk -------------------------------------------------------------------------------------


def _claim_by_turns(walk: _Walk) -> Script[None]:
    """Claim from one stretch of keys after the other, until all slots are filled."""
    rotation = walk.rotation
    rotation.begin()
    after, seen = rotation.after, set[str]()
    wrapped = not after
    reached_end = False
    most = min(KEYS, max(FEWEST_KEYS, walk.left + 1))  # mostly, each key takes a slot
    for _ in range(MOST_STEPS):
        if walk.left <= 0:
            break
        rows, is_cut = yield from _keys(walk, after, most)
        most = KEYS
        new = {key: levels for key, levels in rows.items() if key not in seen}
        seen |= rows.keys()
        yield from _claim_keys(walk, new)
        if is_cut and (len(new) == len(rows) or not wrapped):
            after = list(rows)[-1]
        elif wrapped:
            rotation.saw_all(seen)
            break
        else:
            after, wrapped, reached_end = "", True, True
    else:
        if not walk.claimed:  # otherwise it begins behind the last key that had its turn
            rotation.after = after
        if not reached_end:
            walk.come_back(0.0)
    rotation.found_keys(found=bool(seen))
    rotation.move(walk.order, walk.claimed, walk.weights)


class _Level(NamedTuple):
    priority: int
    is_due: bool
    is_locked: bool


def _keys(walk: _Walk, after: str, most: int) -> Script[tuple[dict[str, list[_Level]], bool]]:
    """Read and lock a stretch of keys, each with its priorities; returns whether there are more."""
    skipped = walk.rotation.blocked()
    params = {
        "queue": walk.wanted.queue,
        "after": after,
        "skipped": as_json(list(skipped)),
        "most": most,
    }
    rows = yield Statement(walk.engine.limited.limit_keys, params)
    found: dict[str, list[_Level]] = {}
    for key, priority, is_due, is_locked, is_governed in rows:
        walk.is_governed |= bool(is_governed)
        found.setdefault(key, []).append(_Level(priority, bool(is_due), bool(is_locked)))
        if is_due and not is_locked and key not in skipped:
            walk.come_back(CONTENDED)
    is_cut = len(rows) >= most
    if is_cut and len(found) == 1 and most < KEYS:  # a key with so many priorities
        return (yield from _keys(walk, after, KEYS))
    if is_cut and len(found) > 1:  # its further priorities are behind the cut
        found.popitem()
    return found, is_cut


def _claim_suspect(walk: _Walk) -> Script[None]:
    """Claim one suspect, unless the worker runs one."""
    params = {"queue": walk.wanted.queue, "most": MOST_SUSPECT_KEYS}
    found: dict[str, list[_Level]] = {}
    rows = yield Statement(walk.engine.limited.limit_suspects, params)
    for key, priority, is_locked in rows:
        found.setdefault(key, []).append(_Level(priority, True, bool(is_locked)))
    if found:
        slots, walk.left, walk.suspects = walk.left, 1, True
        yield from _claim_keys(walk, found)
        walk.left, walk.suspects = slots - len(walk.rows), False


def _claim_keys(walk: _Walk, found: Mapping[str, list[_Level]]) -> Script[None]:
    """Claim from keys that are due and locked, in rounds: what some cannot use, others get."""
    due = {
        key: [level.priority for level in levels if level.is_due and level.is_locked]
        for key, levels in found.items()
    }
    due = {key: priorities for key, priorities in due.items() if priorities}
    if not due or (walk.is_governed and not walk.wanted.is_governed):
        return
    standing = yield from _standing(walk, list(due))
    free = {key: min(standing[key].free, walk.left) for key in due}
    walk.order += due
    started: Counter[str] = Counter()
    for _ in range(MOST_ROUNDS):
        given = shares(free, walk.weights, walk.left)
        grants = [
            KeyGrant(key, priority, place, number, standing[key].begun)
            for key, number in given.items()
            if number
            for place, priority in enumerate(due[key])
        ]
        if not grants:
            break
        rows = yield from walk.engine.claim_granted(walk.wanted, grants, suspects=walk.suspects)
        walk.rows += rows
        walk.left -= len(rows)
        new = Counter(row[-1] for row in rows)
        started += new
        for key, number in given.items():  # one that did not use its share has no more
            free[key] = free[key] - number if new[key] == number else 0
    walk.claimed += started
    yield from _charge(walk, standing, started)
    _remember(walk, standing, free, started)


# -- what a key may have --------------------------------------------------------------------------


def _standing(walk: _Walk, keys: Sequence[str]) -> Script[dict[str, _Standing]]:
    """Count what locked keys have in use, and decide how many jobs each may start."""
    parts = {key: split_key(key) for key in keys}
    names = [(key, name) for key, (name, _) in parts.items()]
    while True:
        most = walk.rotation.most_in_use
        found = yield Statement(walk.engine.limited.limit_use, {"most": most}, names)
        numbers = {row[0]: _numbers(row[2]) for row in found}
        largest = max((each.running or 0 for each in numbers.values() if each), default=0)
        if largest < most:
            break
        walk.rotation.most_in_use = largest + 1  # it could not have counted so many
    d = walk.engine.dialect
    standing = {}
    for key, paused, _, tat, running, begun, now in found:
        own = numbers[key]
        at = None if tat is None else d.time(tat)
        time = d.time(now)
        free = 0 if paused or own is None else free_slots(own, running, at, time)
        own = own or Numbers()
        standing[key] = _Standing(own, free, own.sequential and begun > 0, at, time)
        if own.weights:
            walk.weights[key] = own.weights.get(parts[key][1] or "", 1)
    return standing


def _numbers(text: str | None) -> Numbers | None:
    """Return the numbers of a control; None if they cannot be read, and then nothing starts."""
    try:
        return _decoded(text) or Numbers()
    except InvalidOption:
        return None


UNBOUNDED = 2**31 - 1


def free_slots(numbers: Numbers, running: int, tat: datetime | None, now: datetime) -> int:
    """Return how many jobs a key may start, with so many running."""
    free = UNBOUNDED
    if numbers.running is not None:
        free = max(0, numbers.running - running)
    if numbers.sequential:
        free = 1 if running == 0 else 0
    if numbers.rate is not None:
        free = min(free, numbers.rate.permits(tat, now))
    return free


def _charge(
    walk: _Walk, standing: Mapping[str, _Standing], started: Mapping[str, int]
) -> Script[None]:
    """Write the rates of keys that have started jobs, while their locks are held."""
    tats = []
    for key, number in started.items():
        own = standing[key]
        if own.numbers.rate is not None:
            own.tat = own.numbers.rate.after(own.tat, own.now, number)
            tats.append((key, own.tat))
    if tats:
        rates = walk.engine.controls.write_rates
        yield Statement(rates, {"scope": ControlScope.LIMIT.value}, sorted(tats))


def _remember(
    walk: _Walk,
    standing: Mapping[str, _Standing],
    free: Mapping[str, int],
    started: Mapping[str, int],
) -> None:
    """Skip the keys that can start nothing more, until that may have changed."""
    if walk.suspects:
        return
    for key, own in standing.items():
        rate = own.numbers.rate
        wait = 0.0 if rate is None else rate.wait(own.tat, own.now)
        if wait > 0:
            walk.rotation.await_permit(key, wait)
        elif own.free <= started.get(key, 0) or (free[key] == 0 and not started.get(key)):
            walk.rotation.block(key)


# -- jobs that lack their key ---------------------------------------------------------------------


def _give_keys(
    engine: Engine, queue: str, rules: Mapping[str, LimitRule], rotation: Rotation
) -> Script[None]:
    """Compute the keys of jobs whose producers did not, a stretch of each priority at a time.

    Those were stored by a producer without the code, or before the topic had a limit.
    """
    lacking: list[UUID] = []
    for priority, *_ in (yield Statement(engine.claiming.levels, {"queue": queue})):
        if priority is not None and len(lacking) < MOST_NEW_KEYS:
            lacking += yield from _lacking(engine, queue, priority, rules, rotation)
    if not lacking:
        return
    found = yield Statement(
        engine.limited.payloads_without_key, {}, one_column(lacking[:MOST_NEW_KEYS])
    )
    new = [(job_id, rules[topic].key_of(payload)) for job_id, topic, payload in found]
    if new:
        yield Statement(engine.limited.set_limit_keys, {}, new)


def _lacking(
    engine: Engine, queue: str, priority: int, rules: Mapping[str, LimitRule], rotation: Rotation
) -> Script[list[UUID]]:
    """Find jobs of topics with a limit among the next ones of a priority that have no key."""
    at, job_id = rotation.scanned.get(priority, (EPOCH, LOWEST_ID))
    params = {
        "queue": queue,
        "priority": priority,
        "after": at,
        "after_id": job_id,
        "most": KEY_STRETCH,
    }
    rows = yield Statement(engine.limited.without_key, params)
    if len(rows) < KEY_STRETCH:
        rotation.scanned.pop(priority, None)
    else:
        last_id, _, last_at = rows[-1]
        rotation.scanned[priority] = (engine.dialect.time(last_at), engine.dialect.uuid(last_id))
    return [engine.dialect.uuid(each) for each, topic, _ in rows if topic in rules]
