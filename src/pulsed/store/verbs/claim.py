"""The claim: due jobs are leased, best first, from where the last look ended."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any
from uuid import UUID

from pulsed.model.fields import POLICY, fields_of
from pulsed.model.job import Assignment, TopicPolicy
from pulsed.store.sql import rows as decode
from pulsed.store.sql.columns import ASSIGNED_PLACES, FILLED_PLACES, LONG_COLUMNS
from pulsed.store.sql.dialect import column_names
from pulsed.store.sql.insertion import as_json, stored
from pulsed.store.sql.jobs import LEVEL, Statements
from pulsed.store.sql.statement import Row, Sql, Statement
from pulsed.store.verbs.floors import LONG_LOOK, MANY, Floors, Walk
from pulsed.store.verbs.script import Kind, Script, Verb

HIGHEST, LOWEST = 100, -100
"""Priorities."""


def _column(*names: str) -> Callable[[Row], Any]:
    """Return what gets columns out of a claimed row, as the driver has read them."""
    return itemgetter(*(ASSIGNED_PLACES[name] for name in names))


_id = _column("id")
_priority = _column("priority")
_payload = _column("payload")
_by_time = _column("next_run_at", "id")
_topic = _column("topic")
_id_and_token = _column("id", "lease_token")
_LONG = [ASSIGNED_PLACES[name] for name in LONG_COLUMNS]
_LEVEL = column_names(LEVEL)


class Topics:
    """What a worker's handlers say about their topics, in the forms that a claim needs."""

    def __init__(self, topics: Sequence[TopicPolicy]) -> None:
        policies = {topic.topic: _policy(topic) for topic in topics}
        self.names = as_json(list(policies))
        self.as_json = as_json([{"t_topic": name} | fills for name, fills in policies.items()])
        different = {tuple(fills.values()): fills for fills in policies.values()}
        numbers = {values: number for number, values in enumerate(different)}
        self.policies = list(different.values())
        """Those that differ. Most topics have the same one."""
        self.policy_of = {name: numbers[tuple(fills.values())] for name, fills in policies.items()}
        """Which of them a topic has."""


def _policy(topic: TopicPolicy) -> dict[str, Any]:
    return {
        f"t_{column}": value
        for field in fields_of(POLICY)
        for column, (value,) in stored(field, [getattr(topic, field.attribute(POLICY))])
    }


topics_of = functools.lru_cache(maxsize=64)(Topics)
"""Of a tuple, made once."""


def claim(
    s: Statements, worker_id: UUID, queue: str, topics: Topics, limit: int, floors: Floors
) -> Verb[list[Assignment]]:
    """Lease due jobs, best first."""
    params = {"worker": worker_id, "queue": queue, "names": topics.names}
    if s.dialect.lateral:
        params["topics"] = topics.as_json
    tried = False

    def script() -> Script[list[Assignment]]:
        nonlocal tried
        if tried:  # and undone: what it claimed lies below the floors again
            floors.forget()
        tried = True
        walk = floors.walk()
        claimed: list[Row] = []
        suspect: list[Row] = []
        if not walk.must_look:
            claimed = yield from _visit(s, params, topics, limit, walk)
        if walk.must_look or (not claimed and walk.may_look):
            walk.begin_look()
            levels = yield Statement(s.levels, {"queue": queue})
            found = [priority for priority, _ in levels if priority is not None]
            walk.look(found)
            if any(suspects for _, suspects in levels):
                suspect = yield from _claim_suspect(s, params, topics, found)
            if found and limit > len(suspect):
                claimed = yield from _visit(s, params, topics, limit - len(suspect), walk)
            elif not found:  # the queue is empty, as it mostly is for an idle worker: that was all
                walk.claimed([level.priority for level in walk.levels()], None, full=False)
            if walk.took > LONG_LOOK:  # to a far database that may have been the way there
                asked = floors.clock()
                yield Statement(s.read_clock, {})
                walk.took -= (2 if found else 1) * (floors.clock() - asked)
            walk.end_look()
        if walk.is_surprising:
            [(others,)] = yield Statement(s.others_first, {**params, "most": MANY})
            if others > MANY // 2:
                walk.was_long()
        return decode.assignment.all(s.dialect, claimed + suspect, queue, worker_id)

    return Verb("claim", Kind.SINGLE, script, apart=True)


def _claim_suspect(
    s: Statements, params: dict[str, Any], topics: Topics, priorities: list[int]
) -> Script[list[Row]]:
    """Claim one suspect, unless the worker runs one.

    It has no floors, for there are few, and goes before the others: the next look is a while away.
    On PostgreSQL it commits by itself. If the rest then fails, it is a claim whose answer was lost.
    """
    walk = Floors().walk()
    walk.look(priorities)
    return (yield from _visit(s, params, topics, 1, walk, suspects=True))


def _visit(
    s: Statements,
    params: dict[str, Any],
    topics: Topics,
    limit: int,
    walk: Walk,
    *,
    suspects: bool = False,
) -> Script[list[Row]]:
    """Claim from one priority after the other, beginning at their floors."""
    claimed: list[Row] = []
    if s.dialect.lateral:
        levels = walk.levels()
        visited = [level[0] for level in levels]
        gaps = {"above": [HIGHEST + 1, *visited], "below": [*visited, LOWEST - 1]}
        claim = s.claim_suspect if suspects else s.claim
        claimed += yield Statement(claim, params | gaps | {"most": limit}, levels)
        _sort(claimed)
        visited += set(map(_priority, claimed)).difference(visited)
    else:
        visited = []
        pick = s.pick_suspect if suspects else s.pick
        for priority, _ in (yield Statement(s.levels, {"queue": params["queue"]})):
            if priority is not None and len(claimed) < limit:
                visited.append(priority)
                level = dict(zip(_LEVEL, walk.level(priority), strict=True))
                level["most"] = limit - len(claimed)
                found = yield from _claim_level(s, pick, params | level, topics)
                claimed += sorted(found, key=_by_time)
    walk.claimed(visited, _worst(s, claimed), full=len(claimed) == limit)
    return claimed


def _sort(claimed: list[Row]) -> None:
    claimed.sort(key=_by_time)
    claimed.sort(key=_priority, reverse=True)


def _worst(s: Statements, claimed: list[Row]) -> tuple[int, Any, Any] | None:
    if not claimed:
        return None
    next_run_at, job_id = _by_time(claimed[-1])
    return _priority(claimed[-1]), s.dialect.instant(next_run_at), job_id


def _claim_level(
    s: Statements, pick: Sql, params: dict[str, Any], topics: Topics
) -> Script[list[Row]]:
    """Lease the due jobs of one priority: look, then lease what was seen."""
    by_policy: dict[int, list[Row]] = {}
    for row in (yield Statement(pick, params)):
        by_policy.setdefault(topics.policy_of[_topic(row)], []).append(row)
    picked: dict[UUID, Row] = {}
    count = 0
    for number, rows in by_policy.items():
        policy = topics.policies[number]
        picked |= {_id(row): _filled(row, policy) for row in rows}
        [(leased,)] = yield Statement(s.claim, params | policy, [(_id(row),) for row in rows])
        count += leased
    if count != len(picked):  # impossible under the write lock; but only a lease counts
        held = {(s.dialect.uuid(id_), token) for id_, token in (yield Statement(s.held, params))}
        picked = {job_id: row for job_id, row in picked.items() if _id_and_token(row) in held}
    if long := [(job_id,) for job_id, row in picked.items() if _payload(row) is None]:
        for id_, *texts in (yield Statement(s.long_texts, {}, long)):
            job_id = s.dialect.uuid(id_)
            picked[job_id] = _with_texts(picked[job_id], texts)
    return list(picked.values())


def _filled(row: Row, policy: dict[str, Any]) -> Row:
    """Return a picked row with what the job leaves to its topic."""
    columns = list(row)
    for name, place in FILLED_PLACES.items():
        if columns[place] is None:
            columns[place] = policy[name]
    return columns


def _with_texts(row: Row, texts: list[str | None]) -> Row:
    """Return a picked row with its long texts, which are read apart."""
    columns = list(row)
    for place, text in zip(_LONG, texts, strict=True):
        columns[place] = text
    return columns
