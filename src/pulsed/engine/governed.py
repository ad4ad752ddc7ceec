"""What governs the queues, topics and limits of a database, for overviews and metrics."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from pulsed.engine.lanes import Lanes
from pulsed.engine.limits import LimitState, limit_state
from pulsed.engine.why import pause_in_words, resume_command
from pulsed.errors import AccessDenied, InvalidOption, ServerTooOld
from pulsed.model.control import Control, ControlKey, ControlScope
from pulsed.store.base import Store
from pulsed.store.results import Backlog
from pulsed.wording import counted, format_duration

GOVERNED_KEPT = 10.0
"""Seconds for which it stands: each limit costs a few index scans."""
MOST_LIMITS = 50
"""Limits whose use is counted, the first by name."""
MOST_KEYS = 20
"""Keys of each limit that are examined, those with the most waiting jobs."""
MANY_WAITING = 100
"""Waiting jobs from which a full limit is worth a warning."""


class Warn(NamedTuple):
    """Something that needs a person, and the command that helps."""

    text: str
    command: str = ""


class Governed(NamedTuple):
    """The controls of a database, and what its limits have in use."""

    controls: Mapping[ControlKey, Control] = {}
    limits: Sequence[LimitState] = ()
    """The first of them by name, with their busiest keys."""

    def of(self, scope: ControlScope) -> dict[str, Control]:
        """Return the controls of queues, topics or limits, by name."""
        return {key.name: control for key, control in self.controls.items() if key.scope is scope}

    @property
    def full_limits(self) -> list[LimitState]:
        """The limits that hold jobs back, those with the most waiting jobs first."""
        return sorted((each for each in self.limits if each.full), key=lambda each: -each.waiting)


NOTHING = Governed()


async def read_governed(store: Store) -> Governed:
    """Read what governs a database; nothing, if the caller may not see it."""
    try:
        queues, topics, limited = await asyncio.gather(
            store.controls.list_page(ControlScope.QUEUE),
            store.controls.list_page(ControlScope.TOPIC),
            store.controls.list_page(ControlScope.LIMIT, limit=MOST_LIMITS),
        )
        limits = [await limit_state(store, control, MOST_KEYS) for control in limited]
    except (AccessDenied, ServerTooOld, InvalidOption):
        return NOTHING
    return Governed({each.key: each for each in (*queues, *topics, *limited)}, limits)


def control_warnings(lanes: Lanes, governed: Governed) -> list[Warn]:
    """Return what holds due jobs back until a person acts: pauses, and limits that are full."""
    found = []
    for control in governed.controls.values():
        if control.paused and control.scope is not ControlScope.LIMIT:
            due = [each for each in lanes.backlog if getattr(each, control.scope) == control.name]
            found += [_paused_with(control, due, lanes.now)] if due else []
    paused = governed.of(ControlScope.LIMIT)
    for limit in governed.limits:
        if limit.paused and limit.waiting:
            jobs = _jobs(limit.waiting, at_least=limit.at_least)
            verb = "waits" if limit.waiting == 1 else "wait"
            found.append(_paused(paused[limit.name], f"{jobs} {verb}", lanes.now))
    return found + [_full(each) for each in governed.full_limits if each.waiting >= MANY_WAITING]


def _paused_with(control: Control, due: Sequence[Backlog], now: datetime) -> Warn:
    number = sum(each.due for each in due)
    jobs = _jobs(number, at_least=any(each.at_least for each in due))
    oldest = format_duration((now - min(each.oldest for each in due)).total_seconds())
    verb = "is" if number == 1 else "are"
    return _paused(control, f"{jobs} {verb} due, the oldest for {oldest}", now)


def _paused(control: Control, waiting: str, now: datetime) -> Warn:
    what = f"{control.scope.capitalize()} {control.name} {pause_in_words(control, now)}"
    return Warn(f"{what}, and {waiting}.", resume_command(control))


def _full(limit: LimitState) -> Warn:
    waiting = f"{_jobs(limit.waiting, at_least=limit.at_least)} wait"
    return Warn(
        f"Limit {limit.name} is full: {limit.in_words}, and {waiting}.",
        f"pulsed limits show {shlex.quote(limit.name)}",
    )


def _jobs(number: int, *, at_least: bool) -> str:
    return counted(number, "job") + (" or more" if at_least else "")
